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
resumes at its last checkpoint, because a run's folder is named by its configuration. Runs are executed as in a sweep,
one after the other or several at a time; only this process writes to the study.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from recollect.engine import catch_signals
from recollect.errors import UserError
from recollect.methods import choose_method, relative_to
from recollect.runs import RunConfig, resolve, resolve_precision
from recollect.storage import lock_folder, read_json
from recollect.sweeps.execute import Diverged, Status
from recollect.sweeps.preset import Job
from recollect.sweeps.processes import engine_for
from recollect.sweeps.select import By

KEYS = {"stream", "method", "seeds", "set", "space"}
INTERRUPTED = "interrupted"  # attribute of the study: numbers of trials that are repeated under another number
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
    workers: int = 1,
    precision: str = "auto",
    by: By = "til",
    on_done: Callable[[Trial], None] = lambda trial: None,
    **options: Any,
) -> list[Trial]:
    """Search until `num_trials` trials are done in total; returns them, best first. `options` go to every run.

    `by` is the validation accuracy that decides: with the task known (til) or among all classes (cil).
    """
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
    except ImportError as error:
        raise UserError("recollect tune needs Optuna: pip install 'recollect-rfe[optuna]'") from error
    if num_trials < 1:
        raise UserError(f"--trials counts trials, got {num_trials}")
    engine = engine_for(workers)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    out.mkdir(parents=True, exist_ok=True)
    log = str(out / "optuna.log")
    with lock_folder(out), catch_signals() as stop:
        # Optuna's default lock is a symbolic link, which a killed process leaves behind and `lock_folder` refuses.
        storage = JournalStorage(JournalFileBackend(log, lock_obj=JournalFileOpenLock(log)))
        study = optuna.create_study(study_name="recollect", storage=storage, direction="maximize", load_if_exists=True)
        method = choose_method(space.method)
        version = method.name if method.file is None else f"{method.name} {method.file.sha256}"
        decided = {} if by == "til" else {"by": by}  # studies from before this choice were decided by til
        identity = json.dumps(vars(space) | {"method": version} | decided, sort_keys=True, default=str)
        searched = hashlib.sha256(identity.encode()).hexdigest()
        if study.user_attrs.get("space", searched) != searched:
            raise UserError(f"{out} holds a search of another space or by another accuracy; choose another --out")
        study.set_user_attr("space", searched)
        search = _Search(study, optuna, space, out, precision, by, str(options.get("device", "auto")), workers, on_done)
        while (num_missing := num_trials - len(search.finished())) > 0:
            for status, reason in engine(search.runs(num_missing), options, stop):
                search.record(status, reason)
            stop.check()
    return sorted(search.finished(), key=lambda trial: -trial.validation)


@dataclass(frozen=True)
class _Running:
    """A trial whose runs have not all ended."""

    trial: Any
    """Optuna's."""
    chosen: dict[str, Any]
    folders: tuple[Path, ...]
    """Of its runs, one per seed."""


class _Search:
    """Asks Optuna for trials, and tells it the validation accuracy of each when all its runs have ended."""

    def __init__(
        self,
        study: Any,
        optuna: Any,
        space: Space,
        out: Path,
        precision: str,
        by: By,
        device: str,
        workers: int,
        on_done: Callable[[Trial], None],
    ) -> None:
        self._study, self._optuna, self._states = study, optuna, optuna.trial.TrialState
        self._space, self._out, self._precision, self._device = space, out, precision, device
        self._by, self._workers, self._on_done = by, workers, on_done
        self._running: list[_Running] = []
        self._outcomes: dict[Path, float | str | None] = {}
        """Of each run that was started: its accuracy, why it failed, or None while it runs."""
        self._num_failed = 0
        for interrupted in study.get_trials(states=(self._states.RUNNING,)):
            study.set_user_attr(INTERRUPTED, [*study.user_attrs.get(INTERRUPTED, []), interrupted.number])
            study.tell(interrupted.number, state=self._states.FAIL)
            if interrupted.params.keys() == space.dimensions.keys():  # else it is chosen again, from the same seed
                study.enqueue_trial(interrupted.params)

    def finished(self) -> list[Trial]:
        trials = self._study.get_trials(states=(self._states.COMPLETE,))
        return [Trial(trial.number, dict(trial.params), float(trial.values[0])) for trial in trials]

    def runs(self, num_trials: int) -> Iterator[Status]:
        """The runs of new trials; each trial is chosen when its first run can start, by the results until then.

        Trials may choose the same settings; such a run is started once and counts for all of them.
        """
        for _ in range(num_trials):
            # Trials that run count as bad ones, so that those beside them are chosen elsewhere.
            self._study.sampler = self._optuna.samplers.TPESampler(
                seed=self._num_chosen(), constant_liar=self._workers > 1
            )
            trial = self._study.ask()
            chosen = {name: _suggest(trial, name, values) for name, values in self._space.dimensions.items()}
            try:
                configs = [self._space.config(chosen, seed, self._precision) for seed in self._space.seeds]
            except UserError as error:
                self._fail(trial, chosen, str(error), is_due_to_settings=True)
                continue
            statuses = [self._status(config) for config in configs]
            running = _Running(trial, chosen, tuple(status.folder for status in statuses))
            self._running.append(running)
            for status in statuses:
                if running in self._running and status.folder not in self._outcomes:
                    self._outcomes[status.folder] = None
                    yield status
            self._end_trials()

    def _num_chosen(self) -> int:
        """How many trials an uninterrupted search would have chosen by now."""
        trials = self._study.get_trials(deepcopy=False)
        repeated = self._study.user_attrs.get(INTERRUPTED, [])
        return sum(trial.state != self._states.WAITING and trial.number not in repeated for trial in trials)

    def _status(self, config: RunConfig) -> Status:
        folder = self._out / f"{config.hash}-{config.seed}"
        return Status(Job(folder.name, resolve_precision(config, folder, self._device, force=False)), folder)

    def record(self, status: Status, reason: str | None) -> None:
        """Note that a run has ended."""
        if reason is None:
            result = read_json(status.folder / "result.json", dict[str, Any])
            accuracy = result["validation"][self._by]
            reason = "there are no validation images to choose by; set stream.validation above 0"
            self._outcomes[status.folder] = reason if accuracy is None else float(accuracy)
        else:
            self._outcomes[status.folder] = reason
        self._end_trials()

    def _end_trials(self) -> None:
        for running in list(self._running):
            outcomes = [self._outcomes.get(folder) for folder in running.folders]
            reasons = [outcome for outcome in outcomes if isinstance(outcome, str)]
            accuracies = [outcome for outcome in outcomes if isinstance(outcome, float)]
            if reasons:
                self._running.remove(running)
                is_due_to_settings = isinstance(reasons[0], Diverged) or bool(self.finished())
                self._fail(running.trial, running.chosen, reasons[0], is_due_to_settings=is_due_to_settings)
            elif len(accuracies) == len(outcomes):
                self._running.remove(running)
                self._study.tell(running.trial, fmean(accuracies))
                self._on_done(Trial(running.trial.number, running.chosen, fmean(accuracies)))

    def _fail(self, trial: Any, chosen: Mapping[str, Any], reason: str, *, is_due_to_settings: bool) -> None:
        """Settings that are invalid or cannot be trained; others may work, unless the settings are not the reason."""
        self._study.tell(trial, state=self._states.FAIL)
        self._num_failed += 1
        summary = reason.strip().splitlines()[-1]
        warnings.warn(f"trial {trial.number} with {chosen} failed: {summary}", stacklevel=2)
        if self._num_failed > MAX_FAILED or not is_due_to_settings:
            raise UserError(f"{self._num_failed} trials failed, the last one: {reason}. Make the space narrower")


def _suggest(trial: Any, name: str, values: Any) -> Any:
    if isinstance(values, list):
        return trial.suggest_categorical(name, values)
    whole = isinstance(values["low"], int) and isinstance(values["high"], int)
    suggest = trial.suggest_int if whole else trial.suggest_float
    return suggest(name, values["low"], values["high"], log=values.get("log", False), **_step(values))


def _step(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"step": values["step"]} if "step" in values else {}
