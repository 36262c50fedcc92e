"""A model folder: the one place that locks it, cleans up after crashes, writes versions and tests them.

Learning is a transaction: until it ends the model is the old one. `unfinished/` holds checkpoints, to resume from.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from recollect.deploy.checks import CheckReport, Gate, check_tasks
from recollect.deploy.data import read_labelled
from recollect.deploy.editing import Edited, Forgotten, forget_classes, merge_classes, rename_class
from recollect.deploy.folder import lock_model
from recollect.deploy.history import (
    find_holders,
    find_version,
    find_version_before,
    find_version_of_learn,
    intact_versions,
    make_current,
    newest_intact,
    refuse_forgotten,
    remove_versions,
    succeeds,
    version_path,
)
from recollect.deploy.image_files import Progress, no_progress
from recollect.deploy.learning import already_learned, identify_learn
from recollect.deploy.model import FixedSettingsError, Model, Settings, lineage_of
from recollect.deploy.recording import record_checks
from recollect.deploy.stages import LearnPlan, LearnResult, choose_stages, complete_settings, learn_in_stages
from recollect.deploy.versions import RESTORE, FormatError, list_versions, load_version, read_pointer, write_pointer
from recollect.engine import Observer, Runtime
from recollect.errors import UserError
from recollect.names import check_task_name, normalise
from recollect.storage import UNFINISHED, lock_folder


class ModelStore:
    """The versions of a model in a folder, one of which is current.

    Whoever writes holds the folder's lock; reading needs none: a version's weights never change, and the pointer to the
    current one changes at once. With `wait`, a method that writes waits for another process that holds the lock.

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
        if version is None:
            return self.load_current()[1]
        try:
            return load_version(self.path(version))
        except FormatError:
            raise
        except (ValueError, OSError) as error:
            other = newest_intact(self.folder, but=version)
            remedy = f"recollect rollback {self.folder} --to {other}" if other else RESTORE
            raise UserError(f"the model in {self.path(version)} cannot be used ({error}); {remedy}") from error

    def load_current(self) -> tuple[str, Model]:
        """The name and the model of the current version; the next one if another process removed it meanwhile."""
        while True:
            version = self.current()
            try:
                return version, self.load(version)
            except UserError:
                if self.current() == version:
                    raise

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
        minutes: float | None = None,
        force: bool = False,
        strict: bool = False,
        backbone: nn.Module | None = None,
        device: str = "auto",
        observer: Observer | None = None,
        progress: Progress = no_progress,
        before_training: Callable[[LearnPlan], None] = lambda plan: None,
        heed_signals: bool = False,
        checkpoint_seconds: float = 300.0,
        wait: bool = False,
    ) -> LearnResult:
        """Teach the model one more task, from data as for `ContinualClassifier.learn`, and save it.

        The first learn creates the model, with `settings` if they are given. An interrupted learn resumes from its last
        checkpoint; one that had finished only makes its version the current one, so a command may be repeated.
        A pretrained backbone is read as it is, so the first version of a task is there within seconds. With `adapt` or
        `minutes`, which limits the time, the backbone is then trained on the task too. This makes a second version; it
        is kept if it is not worse on validation images, or with `force`. The newest task can be adapted afterwards.
        """
        task = check_task_name(task)
        with lock_model(self.folder, wait=wait):
            model, is_saved = self._open(task, settings, adapts=bool(adapt) or minutes is not None)
            new = settings or Settings(precision=Runtime.choose(device, "auto").precision)
            settings = model.settings if model else complete_settings(new, images, backbone)
            before = self._model_before(model) if model and is_saved else model
            stages = choose_stages(settings, adapt, minutes, backbone, is_first=before is None, force=force)
            data = read_labelled(images, settings.image_size, progress, strict=strict)
            frozen, adapted = (identify_learn(settings, before, data, task, backbone, adapt=on) for on in (False, True))
            saved = model.tasks[-1].learn if model is not None and is_saved else None
            if saved is not None and saved in (adapted, *[frozen] * (not stages.adapted)):
                self._discard_checkpoints(saved)
                return LearnResult(self.load(), was_learned=True)
            if saved not in (None, frozen):
                self._refuse(task)
            if self._finish(adapted) or (not stages.adapted and self._finish(frozen)):
                return LearnResult(self.load(), was_learned=True)
            if model is None and self.versions():
                self._refuse(task)
            before_training(LearnPlan(settings, data.count(), len(before.tasks) if before else 0, stages))
            learned = learn_in_stages(
                before, settings, data, task, Runtime.choose(device, settings.precision), self._unfinished, backbone,
                stages, frozen=model if is_saved else None, after_frozen=self._save, force=force,
                checkpoint_seconds=checkpoint_seconds, observer=observer, heed_signals=heed_signals,
            )  # fmt: skip
            self._save(learned.model)
            shutil.rmtree(self._unfinished, ignore_errors=True)
            return LearnResult(learned.model, was_learned=False, rejected=learned.rejected)

    def check(
        self,
        images: str | Path,
        gate: Gate | None = None,
        *,
        device: str = "auto",
        backbone: nn.Module | None = None,
        wait: bool = False,
    ) -> CheckReport:
        """Test the current version on images in folders task/class/, and judge it by the gate.

        The first check of the newest task's test images is recorded, for later checks to compare with. If a learn is
        running it is not, with a warning, unless that is waited for; nor in a folder that cannot be written.
        """
        model = self.load()
        report, new = check_tasks(model, Path(images), gate or Gate(), device, backbone)
        if new:
            record_checks(self.folder, model, new, wait=wait)
        return report

    def rollback(self, to: str, *, wait: bool = False) -> str:
        """Make the version that ends with a task, or has that name, the current one; returns its name.

        If several end with the task, the one that the current version continues is meant.
        """
        if not self.versions():
            self.current()  # explains what is missing
        with lock_folder(self.folder, wait=wait):
            try:
                current = self.current()
            except UserError:  # the pointer, which is written again, is missing or corrupt
                current = None
            name = find_version(self.folder, normalise(to), current)
            self.load(name)
            write_pointer(self.folder, name)
            return name

    def rename(self, old: str, new: str, *, wait: bool = False) -> Edited:
        """Give a class another name, in all tasks that contain it."""
        with self._editing(wait=wait) as (before, model):
            return Edited(make_current(self.folder, rename_class(model, old, new)), before)

    def merge(self, into: str, classes: Iterable[str], *, wait: bool = False) -> Edited:
        """Predict several classes as one (see `merge_classes`); `into` is a new name or a class."""
        with self._editing(wait=wait) as (before, model):
            return Edited(make_current(self.folder, merge_classes(model, into, classes)), before)

    def forget(
        self,
        classes: Iterable[str] = (),
        *,
        purge: bool = False,
        device: str = "auto",
        backbone: nn.Module | None = None,
        wait: bool = False,
    ) -> Forgotten:
        """Remove classes and what is stored of each. Earlier versions still hold it unless they are deleted (`purge`).

        With `purge` and no classes, the other versions are deleted and nothing else changes.
        """
        names = [normalise(name) for name in classes]
        with self._editing(wait=wait) as (before, model):
            after, version = model, before
            if names or not purge:
                refuse_forgotten(self.folder, names, before)
                after = forget_classes(model, names, device, backbone)
                version = make_current(self.folder, after)
            purged = remove_versions(self.folder, but=version) if purge else []
            undo = None if purge or version == before else before
            return Forgotten(version, find_holders(self.folder, model, after, but=version), purged, undo)

    @contextmanager
    def _editing(self, *, wait: bool) -> Iterator[tuple[str, Model]]:
        """Hold the lock, with the name and the model of the current version, which is to be edited."""
        self.current()  # before a lock file is put into a folder without a model
        with lock_folder(self.folder, wait=wait):
            if self.has_unfinished_learn():
                raise UserError(
                    "a learn was interrupted, and its checkpoints fit the model as it is; run its command again first, "
                    f"or delete {self._unfinished} to discard them"
                )
            yield self.load_current()

    def _open(self, task: str, settings: Settings | None, *, adapts: bool) -> tuple[Model | None, bool]:
        """The model to be taught, and whether it has learned this task: then a learn is to be finished, or to adapt."""
        was_interrupted = self._unfinished.is_dir()
        if not (self.folder / "model.json").exists() and (was_interrupted or not self.versions()):
            return None, False
        model = self.load()
        newest = model.tasks[-1]
        unfinished = {path.name for path in self._unfinished.iterdir()} if was_interrupted else set()
        was_saved = was_interrupted and unfinished <= {newest.learn}
        is_newest = newest.name == task and not newest.edits
        if is_newest and (was_saved or settings is None or (adapts and not newest.adapted)):
            return model, True
        if task in [learned.name for learned in model.tasks] and not is_newest:
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
        self._discard_checkpoints(model.tasks[-1].learn)
        return name

    def _discard_checkpoints(self, learn: str) -> None:
        shutil.rmtree(self._unfinished / learn, ignore_errors=True)
        with suppress(OSError):  # unless the checkpoints of another learn are in it
            self._unfinished.rmdir()

    def _finish(self, learn: str) -> bool:
        """Make the version of a learn that had finished, or was rolled back, the current one; False if it has none."""
        name = find_version_of_learn(self.folder, learn)
        if name is not None:
            self.load(name)
            write_pointer(self.folder, name)
            shutil.rmtree(self._unfinished, ignore_errors=True)
        return name is not None

    def _model_before(self, model: Model) -> Model | None:
        """The version that the current one, `model`, continues; None before its first task."""
        name = find_version_before(self.folder, self.current())
        if name is None and len(model.tasks) > 1:
            raise already_learned(model.tasks[-1].name, has_before=False)
        return None if name is None else self.load(name)
