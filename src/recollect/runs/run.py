"""One run: build the learner from its config, teach it the stream, write the result."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import nn

from recollect.distributed.world import SINGLE, join_world
from recollect.engine import Engine, Observer, Record, Runtime, StopRequest, catch_signals
from recollect.errors import StoppedError, UserError
from recollect.methods import Learner, Schedule, build_backbone, build_learner
from recollect.methods.contents import bytes_by_kind
from recollect.metrics import summarise
from recollect.rng import Key
from recollect.runs.config import ConfigFile, RunConfig
from recollect.runs.folder import EventLog, RunFolder, code_version, last_data_root
from recollect.runs.live import Observers, live_observers
from recollect.storage import lock_folder, read_json
from recollect.streams import Stream, open_stream, streams


def create_learner(config: RunConfig, stream: Stream, backbone: nn.Module | None = None) -> Learner[Any]:
    """The learner of a config, before its first task; a module of the user's may replace the named backbone."""
    key = Key(config.seed) / "learner"
    if (backbone is not None) != (config.backbone == "own"):
        raise UserError(f"a module of one's own goes with backbone='own'; the config says {config.backbone!r}")
    if backbone is None:
        backbone = build_backbone(config.backbone, config.backbone_options, stream.image_shape, key)
    heads = stream.new_units() if config.fixed_heads else []
    schedule = Schedule(config.training.epochs, config.training.learning_rate)
    learner = config.method_row.learner
    return build_learner(
        learner,
        config.method_options,
        backbone,
        stream.image_shape,
        schedule,
        key,
        fixed_heads=heads,
        flips=stream.pixels.flip,
    )


def run(
    config: RunConfig,
    out: str | Path,
    *,
    data_root: str | Path | None = None,
    force: bool = False,
    device: str = "auto",
    threads: int = 0,
    checkpoint_seconds: float = 300.0,
    observer: Observer | None = None,
    command: str = "",
    stream: Stream | None = None,
    backbone: nn.Module | None = None,
    heed_signals: bool = False,
    live: Sequence[str] = (),
    shared: bool = False,
) -> dict[str, Any]:
    """Start or resume the run, or return its result if it is finished.

    While it works the folder is locked: another process is refused. With `heed_signals` (in a main thread) Ctrl-C and
    SIGTERM let the step under way finish, save it, and raise `StoppedError`. A config of the stream 'tensors' is run on
    the `stream` given; one of the backbone 'own' with the `backbone` given, which is trained in place. `live` names
    where figures go as they come, besides events.jsonl: tensorboard, mlflow, wandb. With `shared` all processes that
    torchrun started do the run together; the first of them holds the folder and writes.

    >>> from recollect import resolve
    >>> config = resolve("split-digits", "finetune", seed=0, settings={"epochs": 1, "train_per_class": 10})
    >>> result = run(config, "runs/finetune")
    >>> [len(row) for row in result["til"]["matrix"]]  # after each task, on each task
    [5, 5, 5, 5, 5]
    """
    out, data_root = Path(out), None if data_root is None else Path(data_root)
    with ExitStack() as stack:
        world = stack.enter_context(join_world()) if shared else SINGLE
        if not world.is_main:
            stack.enter_context(warnings.catch_warnings(action="ignore"))
        with world.main_first():
            config = resolve_precision(config, out, device, force=force)
            folder = RunFolder(out, config, force=force)
            finished = folder.result()
            if finished is not None and data_root is None and stream is None:
                return finished
            runtime = Runtime.choose(device, config.precision, threads, world)
            stream = for_learner(given_or_opened(stream, config, data_root), config.method_row.learner)
            learner = create_learner(config, stream, backbone)
            stream = as_pretrained(stream, learner)
            folder.check_data(stream.describe())
            if finished is not None:
                return finished
            world.check_batch_size(config.training.batch_size)
            if world.is_main:
                folder.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock_folder(folder.path))
                finished = folder.result()  # another process may have ended it meanwhile
                if finished is not None:
                    return finished
                folder.claim(stream.describe())
                others = [observer or Observer(), *live_observers(list(live), folder.path, config)]
                log: Observer = EventLog(folder.path / "events.jsonl", Observers(*others))
            else:
                log = Observer()
        log.event("started", command=command, config=config.hash, data_root=str(data_root) if data_root else None)
        with catch_signals(announce=world.is_main) if heed_signals else nullcontext(StopRequest()) as stop:
            engine = Engine(
                learner,
                stream,
                config.training,
                runtime,
                config.seed,
                observer=log,
                checkpoints=folder.checkpoints,
                checkpoint_seconds=checkpoint_seconds,
                drift=config.measure_drift,
                run=config.hash,
                stop=stop,
            )
            try:
                record = engine.run()
            except StoppedError:
                log.event("stopped")
                raise
        result = _result(config, learner, record, runtime, command) | {"data": stream.digest}
        if world.is_main:
            folder.finish(result)
        log.event("finished")
    return result


def given_or_opened(stream: Stream | None, config: RunConfig, data_root: Path | None) -> Stream:
    """The stream that was given, if it is the config's; else the config's, from its data."""
    if stream is None:
        return open_stream(config.stream, config.stream_options, config.seed, data_root)
    if config.stream != stream.name:
        raise UserError(f"the config is for the stream {config.stream!r}, the one given is {stream.name!r}")
    return stream


def read_run(out: Path, method: str | None = None) -> tuple[RunConfig, Path | None]:
    """The config of the run in a folder, and its data folder when it was last started; `method` as for `from_json`."""
    if not (out / "config.json").exists():
        raise UserError(f"{out} holds no run; start one with recollect run --out {out}")
    config = RunConfig.from_json(read_json(out / "config.json", ConfigFile), method)
    return config, last_data_root(out / "events.jsonl")


def resolve_precision(config: RunConfig, out: Path, device: str, *, force: bool) -> RunConfig:
    """Replace the precision `auto`: by that of the run in the folder, else by what the device computes natively."""
    if config.precision != "auto":
        return config
    path = out / "config.json"
    precision = read_json(path, ConfigFile)["precision"] if path.exists() and not force else None
    if precision not in ("fp32", "bf16"):
        precision = Runtime.choose(device, "auto").precision
    return replace(config, precision=precision)


def command_of(config: RunConfig, out: Path, threads: int = 0) -> str:
    """The command line of the run, without options that have their defaults."""
    method = config.file_argument or config.method
    arguments = ["recollect", "run", "--stream", config.stream, "--method", method, "--seed", str(config.seed)]
    arguments += ["--fixed-heads"] * config.fixed_heads + ["--measure-drift"] * config.measure_drift
    arguments += ["--precision", config.precision] if config.precision != "auto" else []
    arguments += ["--threads", str(threads)] if threads else []
    changed = config.non_default_options().items()
    settings = {f"{section}.{name}": value for section, options in changed for name, value in options.items()}
    if config.backbone != streams()[config.stream].protocol.backbone:
        settings["backbone"] = config.backbone
    sets = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()]
    return shlex.join([*arguments, "--out", str(out), *(["--set", *sets] if sets else [])])


def _result(config: RunConfig, learner: Learner[Any], record: Record, runtime: Runtime, command: str) -> dict[str, Any]:
    def summary(name: str) -> dict[str, Any]:
        matrix = record.matrices[name]
        return summarise(matrix, record.at_start.get(name, [None] * len(matrix)))

    has_chain = any(cell is not None for cell in record.matrices["til_without_chain"][-1])
    parameters, row = learner.parameter_counts(), config.method_row
    training_seconds = sum(
        seconds for name, seconds in record.seconds.items() if name not in ("statistics", "evaluate")
    )
    return {
        "til": summary("til"),
        "cil": summary("cil"),
        "til_without_chain": summary("til_without_chain") if has_chain else None,
        "task_prediction": summary("task_prediction"),
        "validation": record.validation,
        "drift": _drift(record) if config.measure_drift else None,
        "parameters": {"training": parameters.training, "inference": parameters.inference},
        "values_held": _values_held(learner),
        "bytes_held": bytes_by_kind(learner.state_dict(), row.contents),
        "memory": {"samples": sum(map(len, learner.memories())), "bytes": sum(m.num_bytes for m in learner.memories())},
        "seconds": record.seconds,
        "images_per_second": record.num_images / training_seconds if training_seconds else 0.0,
        "seed": config.seed,
        "config": config.to_json(),
        "display": {"colour": row.colour, "order": row.order, "marker": row.marker},
        "non_default_options": config.non_default_options(),
        "command": command,
        "commit": code_version(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": runtime.describe(),
    }


def for_learner(stream: Stream, learner: type[Learner[Any]]) -> Stream:
    """The stream with labels as the learner's classifier counts its units."""
    return stream.with_one_unit_per_class() if learner.one_unit_per_class else stream


def as_pretrained(stream: Stream, learner: Learner[Any]) -> Stream:
    """The stream shown with the constants that a pretrained backbone was trained with; else as it is."""
    constants = getattr(learner.network.backbone, "normalisation", None)
    if constants is None or len(constants[0]) != stream.image_shape[0]:
        return stream
    mean, std = constants
    return replace(stream, pixels=replace(stream.pixels, mean=mean, std=std))


def _drift(record: Record) -> dict[str, Any]:
    return {"drifted": record.drifted, "rectified": record.rectified, "scatter": record.scatter}


def _values_held(learner: Learner[Any]) -> int:
    """All values kept for the next task, in float32 equivalents: weights, statistics, importances, samples."""
    slots = {id(buffer) for memory in learner.memories() for buffer in memory.buffers()}
    tensors = [*learner.parameters(), *learner.buffers()]
    num_bytes = sum(tensor.nbytes for tensor in tensors if id(tensor) not in slots)
    return (num_bytes + sum(memory.num_bytes for memory in learner.memories())) // 4
