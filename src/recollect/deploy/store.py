"""A model folder: the one place that locks it, cleans up after crashes, writes versions and tests them.

Learning is a transaction: until it ends the model is the old one. `unfinished/` holds checkpoints, to resume from.
"""

from __future__ import annotations

import errno
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from recollect.deploy.checks import CheckReport, Gate, check_tasks
from recollect.deploy.data import Labelled, Progress, no_progress, read_labelled
from recollect.deploy.editing import Edited, Forgotten, forget_classes, merge_classes, rename_class
from recollect.deploy.folder import lock_model
from recollect.deploy.history import (
    find_version,
    find_version_before,
    find_version_of_learn,
    intact_versions,
    make_current,
    refuse_forgotten,
    remove_versions,
    succeeds,
    version_path,
    versions_with,
)
from recollect.deploy.learning import already_learned, identify_learn
from recollect.deploy.model import Model, Settings, lineage_of
from recollect.deploy.names import check_task_name, normalise
from recollect.deploy.stages import LearnPlan, LearnResult, choose_stages, complete_settings, learn_in_stages
from recollect.deploy.versions import (
    FormatError,
    list_versions,
    load_version,
    read_pointer,
    write_checks,
    write_pointer,
)
from recollect.engine import Observer, Runtime
from recollect.errors import UserError
from recollect.storage import UNFINISHED, LinkError, lock_folder


class FixedSettingsError(UserError):
    """Settings were given for a model that already exists."""


class ModelStore:
    """The versions of a model in a folder, one of which is current. Whoever writes holds the folder's lock.

    >>> ModelStore("no-model-yet").versions()
    []
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._unfinished = self.folder / UNFINISHED

    def versions(self) -> list[str]:
        """The names of all versions, oldest first."""
        return list_versions(self.folder)

    def current(self) -> str:
        """The name of the current version."""
        return read_pointer(self.folder)

    def path(self, version: str) -> Path:
        """The folder of a version."""
        return version_path(self.folder, version)

    def has_unfinished_learn(self) -> bool:
        """Whether a learn was interrupted and can be resumed."""
        return self._unfinished.exists()

    def load(self, version: str | None = None) -> Model:
        """The current version or another, checked against its hashes."""
        name = version or self.current()
        try:
            return load_version(self.path(name))
        except FormatError:
            raise
        except (ValueError, OSError) as error:
            others = [other for other in intact_versions(self.folder) if other != name]
            remedy = f"recollect rollback {self.folder} --to {others[-1]}" if others else "restore it from a backup"
            raise UserError(f"the model in {self.path(name)} cannot be used ({error}); {remedy}") from error

    def save(self, model: Model) -> str:
        """Make a model the current version, written unless it is there already; returns its name.

        A folder takes only versions that continue its current one. A crash leaves the old version current.
        """
        with lock_model(self.folder):
            return self._save(model)

    def learn(
        self,
        images: Any,
        task: str,
        settings: Settings | None = None,
        *,
        adapt: bool | None = None,
        force: bool = False,
        strict: bool = False,
        backbone: nn.Module | None = None,
        device: str = "auto",
        observer: Observer | None = None,
        progress: Progress = no_progress,
        before_training: Callable[[LearnPlan], None] = lambda plan: None,
        heed_signals: bool = False,
        checkpoint_seconds: float = 300.0,
    ) -> LearnResult:
        """Teach the model one more task, from data as for `ContinualClassifier.learn`, and save it.

        The first learn creates the model, with `settings` if they are given. An interrupted learn resumes from its last
        checkpoint; one that had finished only makes its version the current one.

        A pretrained backbone is read as it is, so the first version of a task is there within seconds. With `adapt` the
        backbone is then trained on the task too, which makes a second version; it is kept if validation images say that
        it is not worse, or with `force`. `adapt=True` also adapts the newest task afterwards, given the same images.
        """
        task = check_task_name(task)
        with lock_model(self.folder):
            model, is_saved = self._open(task, settings, adapts=bool(adapt))
            if model is not None:
                settings = model.settings
            elif settings is None:
                settings = Settings(precision=Runtime.choose(device, "auto").precision)
            if model is None:
                settings = complete_settings(settings, images, backbone)
            data = images
            if not isinstance(data, Labelled):
                data = read_labelled(images, settings.image_size, progress, strict=strict)
            before = self._model_before() if is_saved else model
            stages = choose_stages(settings, adapt, backbone, is_first=before is None)
            frozen, adapted = (identify_learn(settings, before, data, task, backbone, adapt=on) for on in (False, True))
            if self._finish(adapted) or (not stages.adapted and self._finish(frozen)):
                return LearnResult(self.load(), was_learned=True)
            is_frozen = is_saved and model is not None and model.tasks[-1].learn == frozen
            if (is_saved and not is_frozen) or (model is None and self.versions()):
                self._refuse(task)
            before_training(LearnPlan(settings, data.count(), len(before.tasks) if before else 0, stages.adapted))
            learned = learn_in_stages(
                before, settings, data, task, Runtime.choose(device, settings.precision), self._unfinished, backbone,
                stages, frozen=model if is_frozen else None, after_frozen=self._save, force=force,
                checkpoint_seconds=checkpoint_seconds, observer=observer, heed_signals=heed_signals,
            )  # fmt: skip
            self._save(learned.model)
            shutil.rmtree(self._unfinished, ignore_errors=True)
            return LearnResult(learned.model, was_learned=False, rejected=learned.rejected)

    def check(
        self, images: str | Path, gate: Gate | None = None, *, device: str = "auto", backbone: nn.Module | None = None
    ) -> CheckReport:
        """Test the current version on images in folders task/class/, and judge it by the gate.

        The first check of the newest task's test images is recorded, for later checks to compare with; in a folder that
        cannot be written it is not, with a warning.
        """
        self.current()  # before a lock file is put into a folder without a model
        gate = gate or Gate()
        try:
            with lock_folder(self.folder):
                version = self.current()
                report, checks = check_tasks(self.load(version), Path(images), gate, device, backbone)
                write_checks(self.path(version), checks)
        except (OSError, LinkError) as error:  # read-only, or a mounted volume that consists of links
            if isinstance(error, OSError) and error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            report, _ = check_tasks(self.load(), Path(images), gate, device, backbone)
            warnings.warn(f"{self.folder} cannot be written: later checks cannot compare with this one", stacklevel=2)
        return report

    def rollback(self, to: str) -> str:
        """Make the version that ends with a task, or has that name, the current one; returns its name.

        If several end with the task, the one that the current version continues is meant.
        """
        if not self.versions():
            self.current()  # explains what is missing
        with lock_folder(self.folder):
            try:
                current = self.current()
            except UserError:  # the pointer, which is written again, is missing or corrupt
                current = None
            name = find_version(self.folder, normalise(to), current)
            self.load(name)
            write_pointer(self.folder, name)
            return name

    def rename(self, old: str, new: str) -> Edited:
        """Give a class another name, in all tasks that contain it."""
        with self._editing() as (before, model):
            return Edited(make_current(self.folder, rename_class(model, old, new)), before)

    def merge(self, into: str, classes: Iterable[str]) -> Edited:
        """Predict several classes as one, with the sum of their probabilities; `into` is a new name or a class."""
        with self._editing() as (before, model):
            return Edited(make_current(self.folder, merge_classes(model, into, classes)), before)

    def forget(
        self,
        classes: Iterable[str] = (),
        *,
        purge: bool = False,
        device: str = "auto",
        backbone: nn.Module | None = None,
    ) -> Forgotten:
        """Remove classes and what is stored of each. Earlier versions still hold it unless they are deleted (`purge`).

        With `purge` and no classes, the other versions are deleted and nothing else changes.
        """
        names = [normalise(name) for name in classes]
        with self._editing() as (version, model):
            holders: list[str] = []
            if names or not purge:
                refuse_forgotten(self.folder, names, version)
                after = forget_classes(model, names, device, backbone)
                version = make_current(self.folder, after)
                touched = {
                    old.name for old, new in zip(model.tasks, after.tasks, strict=True) if old.units != new.units
                }
                holders = [name for name in versions_with(self.folder, touched) if name != version]
            purged = remove_versions(self.folder, but=version) if purge else []
            return Forgotten(version, [] if purge else holders, purged)

    @contextmanager
    def _editing(self) -> Iterator[tuple[str, Model]]:
        """Hold the lock, with the name and the model of the current version, which is to be edited."""
        self.current()  # before a lock file is put into a folder without a model
        with lock_folder(self.folder):
            if self.has_unfinished_learn():
                raise UserError(
                    "a learn was interrupted, and its checkpoints fit the model as it is; run its command again first, "
                    f"or delete {self._unfinished} to discard them"
                )
            version = self.current()
            yield version, self.load(version)

    def _open(self, task: str, settings: Settings | None, *, adapts: bool) -> tuple[Model | None, bool]:
        """The model to be taught, and whether it has learned this task: then a learn is to be finished, or to adapt."""
        was_interrupted = self._unfinished.is_dir()
        if not (self.folder / "model.json").exists() and (was_interrupted or not self.versions()):
            return None, False
        model = self.load()
        newest = model.tasks[-1]
        unfinished = {path.name for path in self._unfinished.iterdir()} if was_interrupted else set()
        was_saved = was_interrupted and unfinished <= {newest.learn}
        if newest.name == task and not newest.edits and (was_saved or (adapts and not newest.adapted)):
            return model, True
        if task in [learned.name for learned in model.tasks]:
            self._refuse(task)
        if settings is not None:
            raise FixedSettingsError(f"{self.folder} already has a model, whose settings cannot be changed")
        return model, False

    def _refuse(self, task: str) -> NoReturn:
        self.current()  # explains what is missing, if that is so
        raise already_learned(task)

    def _save(self, model: Model) -> str:
        versions, checks = intact_versions(self.folder), model.checks
        if (self.folder / "model.json").exists():
            current = self.current()
            if current not in versions or not succeeds(model.tasks, versions[current]["tasks"]):
                raise UserError(f"{self.folder} has another model; save this one to an empty or new folder")
            checks = versions[current]["checks"] | checks  # a model in memory may not know them
        elif versions and model.lineage not in [lineage_of(about["tasks"]) for about in versions.values()]:
            self.current()  # explains what is missing
        name = make_current(self.folder, replace(model, checks=checks))
        shutil.rmtree(self._unfinished / model.tasks[-1].learn, ignore_errors=True)
        with suppress(OSError):  # unless the checkpoints of another learn are in it
            self._unfinished.rmdir()
        return name

    def _finish(self, learn: str) -> bool:
        """Make the version of a learn that had finished, or was rolled back, the current one; False if it has none."""
        name = find_version_of_learn(self.folder, learn)
        if name is not None:
            self.load(name)
            write_pointer(self.folder, name)
            shutil.rmtree(self._unfinished, ignore_errors=True)
        return name is not None

    def _model_before(self) -> Model | None:
        """The version that the current one continues, if it is kept."""
        name = find_version_before(self.folder, self.current())
        return None if name is None else self.load(name)
