"""Search of larger spaces with Optuna: trials are ordinary run folders, judged by validation accuracy alone.

    stream = "split-cifar100"
    method = "rfe"
    seeds = [0]
    set = { epochs = 8, "backbone.width" = 16 }

    [space]
    alpha = { low = 0.1, high = 10.0, log = true }
    projection_dim = { low = 32, high = 128, step = 32 }
    skip = [1, 2]

The study lies in `optuna.log` in the search's folder and goes on with the same command: what was cut is taken up at its
last checkpoint, because a trial's folder is named by its configuration.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from recollect.errors import UserError
from recollect.runs import RunConfig, command_of, resolve, run, settled

KEYS = {"stream", "method", "seeds", "set", "space"}
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
    """One that is done."""

    number: int
    chosen: dict[str, Any]
    validation: float


def load_space(path: Path) -> Space:
    """From a TOML file, checked."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"the space {path} cannot be read ({error})") from error
    unknown = sorted(data.keys() - KEYS)
    if unknown or not {"stream", "method", "space"} <= data.keys():
        what = f"has {unknown[0]!r}" if unknown else "lacks stream, method or space"
        raise UserError(f"the space {path} {what}; it may have {', '.join(sorted(KEYS))}")
    for name, values in data["space"].items():
        is_range = isinstance(values, dict) and {"low", "high"} <= values.keys() <= RANGE
        if not is_range and not (isinstance(values, list) and values):
            raise UserError(f"the space {path}: {name} is a list of values or has low and high; got {values!r}")
    return Space(data["stream"], data["method"], tuple(data.get("seeds", [0])), data.get("set", {}), data["space"])


def tune(
    space: Space,
    out: Path,
    num_trials: int,
    *,
    precision: str = "auto",
    told: Callable[[Trial], None] = lambda trial: None,
    **words: Any,
) -> list[Trial]:
    """Search until so many trials are done in all; returns them, best first. `words` go to every run."""
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError as error:
        raise UserError("recollect tune needs Optuna: pip install 'recollect[optuna]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    out.mkdir(parents=True, exist_ok=True)
    device = str(words.get("device", "auto"))

    def validation(chosen: Mapping[str, Any]) -> float:
        found = []
        for seed in space.seeds:
            config = space.config(chosen, seed, precision)
            folder = out / f"{config.hash}-{seed}"
            config = settled(config, folder, device, force=False)
            result = run(config, folder, command=command_of(config, folder), heed_signals=True, **words)
            accuracy = result["validation"]["til"]
            if accuracy is None:
                raise UserError("there are no validation images to choose by; set stream.validation above 0")
            found.append(accuracy)
        return fmean(found)

    storage = JournalStorage(JournalFileBackend(str(out / "optuna.log")))
    study = optuna.create_study(study_name="recollect", storage=storage, direction="maximize", load_if_exists=True)
    done = optuna.trial.TrialState.COMPLETE
    for cut in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(cut.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(cut.params)
    while len(study.get_trials(states=(done,))) < num_trials:
        study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
        trial = study.ask()
        chosen = {name: _suggest(trial, name, values) for name, values in space.dimensions.items()}
        study.tell(trial, validation(chosen))
        told(Trial(trial.number, chosen, study.trials[trial.number].values[0]))
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
