"""The command that serves a model as a local web page: serve."""

from __future__ import annotations

from pathlib import Path

from recollect.cli.base import Device, Model, Threads, app


@app.command
def serve(
    model: Model,
    *,
    collect: Path | None = None,
    min_probability: float = 0.0,
    host: str = "127.0.0.1",
    port: int = 8000,
    max_megabytes: float = 20.0,
    device: Device = "auto",
    threads: Threads = 0,
) -> None:
    """Classify images on a local web page, and answer POST /predict with JSON. Requires recollect-rfe[serve].

    The server uses the current version of the model, even after a later `learn` or `export`. Ctrl-C stops it.

    Parameters
    ----------
    collect
        A folder for the next month. If you correct an answer on the page, the image is stored on disk, in
        `FOLDER/<class>/`. Without this option no image is stored.
    min_probability
        Predict `unknown` if the probability of the predicted class is below this.
    host
        The address to listen on. With any address other than 127.0.0.1 or localhost, other computers can use the
        server; there is no password.
    port
        The port to listen on; 0 chooses a free one.
    max_megabytes
        Refuse larger files.
    """
    import sys
    import warnings
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import closing, suppress

    from recollect.serve import require_packages

    require_packages()
    with suppress(KeyboardInterrupt):  # a server that is stopped has done its work
        from recollect.cli.console import print_text
        from recollect.errors import UserError
        from recollect.serve.app import MEGABYTE, Service, make_app
        from recollect.serve.collection import Collection
        from recollect.serve.current import CurrentModel
        from recollect.serve.guard import is_local
        from recollect.serve.server import address_of, bind, run

        if not 0 <= min_probability <= 1:
            raise UserError(f"--min-probability is between 0 and 1, got {min_probability:g}")
        if not max_megabytes > 0:
            raise UserError(f"--max-megabytes is a positive number, got {max_megabytes:g}")
        with (
            closing(bind(host, port)) as listening,
            ThreadPoolExecutor(1) as worker,
            closing(worker.submit(CurrentModel, model, device, threads).result()) as current,
        ):
            collection = None if collect is None else Collection(collect, model)
            service = Service(current, worker, collection, min_probability, round(max_megabytes * MEGABYTE))

            def announce() -> None:
                print_text(f"{model} is served at {address_of(host, listening)} (Ctrl-C stops it).")
                if collection is not None:
                    print_text(f"Corrected images are stored on disk in {collection.folder}/<class>/.")
                sys.stdout.flush()  # also to a file or a pipe, since the command does not end

            if not is_local(host):
                warnings.warn(
                    f"there is no password: whoever reaches {host} can use the model"
                    f"{' and store images' if collection else ''}",
                    stacklevel=2,
                )
            run(make_app(service, host), listening, announce)
