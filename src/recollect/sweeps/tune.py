"""Search of larger spaces with Optuna: trials are ordinary run folders, judged by validation accuracy alone.

    stream = "split-cifar100"
    method = "rfe"
    seeds = [0]
    set = { epochs = 8, "backbone.width" = 16 }

    [space]
    alpha = { low = 0.1, high = 10.0, log = true }
    projection_dim = { low = 32, high = 128, step = 32 }
    stride = [1, 2]

The study is stored as `optuna.log` in the search's folder, and the same command resumes it: an interrupted trial
resumes at its last checkpoint, because a trial's folder is named by its configuration.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from recollect.engine.update import NonFiniteLossError
from recollect.errors import UserError
from recollect.methods import choose_method, relative_to
from recollect.runs import RunConfig, command_of, resolve, resolve_precision, run
from recollect.storage import lock_folder

KEYS = {"stream", "method", "seeds", "set", "space"}
MAX_FAILED = 10  # trials in one call
RANGE = {"low", "high", "log", "step"}


@dataclass(frozen=True)
class Space:
    """What is searched."""

    stream: str
    method: str
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]
    dimensions: Mapping[str, Any]

    def config(self, chosen: Mapping[str, Any], seed: int, precision: str) -> RunConfig:
        return resolve(self.stream, self.method, seed, {**self.settings, **chosen}, precision=precision)


@dataclass(frozen=True)
class Trial:
    """A finished trial."""

    number: int
    chosen: dict[str, Any]
    validation: float


def load_space(path: Path) -> Space:
    """From a TOML file, checked."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"the space {path} cannot be read ({error})") from error
    unknown = sorted(data.keys() - KEYS)
    if unknown or not {"stream", "method", "space"} <= data.keys():
        what = f"has {unknown[0]!r}" if unknown else "lacks stream, method or space"
        raise UserError(f"the space {path} {what}; it may have {', '.join(sorted(KEYS))}")
    for name in ("stream", "method"):
        if not isinstance(data[name], str):
            raise UserError(f"the space {path}: {name} is a name, got {data[name]!r}")
    if not isinstance(data["space"], dict) or not data["space"]:
        raise UserError(f"the space {path}: [space] names options and the values to try, got {data['space']!r}")
    for name, values in data["space"].items():
        if not _is_range(values) and not (isinstance(values, list) and values):
            raise UserError(
                f"the space {path}: {name} is a list of values, or has low up to high, and log = true or a step; "
                f"got {values!r}"
            )
    seeds, settings = data.get("seeds", [0]), data.get("set", {})
    if not isinstance(seeds, list) or any(type(seed) is not int for seed in seeds) or not isinstance(settings, dict):
        raise UserError(f"the space {path}: seeds is a list of whole numbers and set a table")
    return Space(data["stream"], relative_to(path, data["method"]), tuple(seeds), settings, data["space"])


def _is_range(values: Any) -> bool:
    if not isinstance(values, dict) or not {"low", "high"} <= values.keys() <= RANGE:
        return False
    numbers = [value for key, value in values.items() if key != "log"]
    if any(type(value) not in (int, float) for value in numbers) or type(values.get("log", False)) is not bool:
        return False
    can_be_log = not values.get("log") or ("step" not in values and values["low"] > 0)
    return bool(values["low"] <= values["high"] and values.get("step", 1) > 0 and can_be_log)


def tune(
    space: Space,
    out: Path,
    num_trials: int,
    *,
    precision: str = "auto",
    on_done: Callable[[Trial], None] = lambda trial: None,
    **options: Any,
) -> list[Trial]:
    """Search until `num_trials` trials are done in total; returns them, best first. `options` go to every run."""
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
    except ImportError as error:
        raise UserError("recollect tune needs Optuna: pip install 'recollect-rfe[optuna]'") from error
    if num_trials < 1:
        raise UserError(f"--trials counts trials, got {num_trials}")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    out.mkdir(parents=True, exist_ok=True)
    log = str(out / "optuna.log")
    with lock_folder(out):
        # Optuna's default lock is a symbolic link, which a killed process leaves behind and `lock_folder` refuses.
        storage = JournalStorage(JournalFileBackend(log, lock_obj=JournalFileOpenLock(log)))
        return _search(optuna, storage, space, out, num_trials, precision, on_done, options)


def _search(
    optuna: Any,
    storage: Any,
    space: Space,
    out: Path,
    num_trials: int,
    precision: str,
    on_done: Callable[[Trial], None],
    options: dict[str, Any],
) -> list[Trial]:
    device = str(options.get("device", "auto"))

    def validation(chosen: Mapping[str, Any]) -> float:
        accuracies = []
        for seed in space.seeds:
            config = space.config(chosen, seed, precision)
            folder = out / f"{config.hash}-{seed}"
            config = resolve_precision(config, folder, device, force=False)
            command = command_of(config, folder, options.get("threads", 0))
            result = run(config, folder, command=command, heed_signals=True, **options)
            accuracy = result["validation"]["til"]
            if accuracy is None:
                raise UserError("there are no validation images to choose by; set stream.validation above 0")
            accuracies.append(accuracy)
        return fmean(accuracies)

    study = optuna.create_study(study_name="recollect", storage=storage, direction="maximize", load_if_exists=True)
    method = choose_method(space.method)
    version = method.name if method.file is None else f"{method.name} {method.file.sha256}"
    identity = json.dumps(vars(space) | {"method": version}, sort_keys=True, default=str)
    searched = hashlib.sha256(identity.encode()).hexdigest()
    if study.user_attrs.get("space", searched) != searched:
        raise UserError(f"{out} holds a search of another space; choose another --out")
    study.set_user_attr("space", searched)
    done = optuna.trial.TrialState.COMPLETE
    for interrupted in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(interrupted.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(interrupted.params)
    failed = 0
    while len(study.get_trials(states=(done,))) < num_trials:
        study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
        trial = study.ask()
        chosen = {name: _suggest(trial, name, values) for name, values in space.dimensions.items()}
        try:
            study.tell(trial, validation(chosen))
        except UserError as error:  # settings that are invalid or cannot be trained; others may work
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            failed += 1
            warnings.warn(f"trial {trial.number} with {chosen} failed: {error}", stacklevel=2)
            is_due_to_settings = isinstance(error, NonFiniteLossError) or study.get_trials(states=(done,))
            if failed > MAX_FAILED or not is_due_to_settings:
                raise UserError(f"{failed} trials failed, the last one: {error}. Make the space narrower") from error
            continue
        on_done(Trial(trial.number, chosen, study.trials[trial.number].values[0]))
    trials = [Trial(t.number, dict(t.params), float(t.values[0])) for t in study.get_trials(states=(done,))]
    return sorted(trials, key=lambda trial: -trial.validation)


def _suggest(trial: Any, name: str, values: Any) -> Any:
    if isinstance(values, list):
        return trial.suggest_categorical(name, values)
    whole = isinstance(values["low"], int) and isinstance(values["high"], int)
    suggest = trial.suggest_int if whole else trial.suggest_float
    return suggest(name, values["low"], values["high"], log=values.get("log", False), **_step(values))


def _step(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"step": values["step"]} if "step" in values else {}
