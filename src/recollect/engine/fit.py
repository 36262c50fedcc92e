"""Training of one phase: epochs over batches, a plateau on validation loss, and the state to resume mid-phase."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from recollect.device import to_device
from recollect.distributed.shard import UNSHARDED, Shard
from recollect.engine.evaluation import plain_batches
from recollect.engine.feature_cache import FeatureCache, SampleCache, num_views_that_fit
from recollect.engine.observer import Observer
from recollect.engine.runtime import Runtime
from recollect.engine.training import Training, cosine
from recollect.engine.update import NonFiniteLossError, Optimiser, Plateau
from recollect.methods import Learner, Phase
from recollect.rng import Key
from recollect.streams import Batch, Pixels, Split, augment

REPORT_EVERY_SECONDS = 1.0


class Fit:
    """Trains one phase; `epoch` and `step` say where it stands. Everything random hangs on the key, epoch and step."""

    def __init__(
        self,
        learner: Learner[Any],
        phase: Phase,
        train: Split,
        validation: Split,
        *,
        pixels: Pixels,
        training: Training,
        runtime: Runtime,
        key: Key,
        title: str,
    ) -> None:
        self.learner, self.phase, self.train, self.validation = learner, phase, train, validation
        self.pixels, self.training, self.runtime = pixels, training, runtime
        self.key, self.title = key, title
        sizes = [len(chunk) for chunk in torch.arange(len(train)).split(training.batch_size)]
        self.num_steps = len(sizes) - (len(sizes) > 1 and sizes[-1] == 1)  # BatchNorm cannot take a single image
        plateau = Plateau(patience=training.patience, factor=training.factor if training.schedule == "plateau" else 1.0)
        self.update = Optimiser(learner, phase, plateau, self.num_steps, runtime.device, runtime.world)
        self.epoch = 0
        self._best, self._since_best = math.inf, 0
        self._seconds, self._epoch_seconds = 0.0, 0.0
        self._best_weights: list[Tensor] = []
        self._train_cache: FeatureCache | None = None
        self._validation_cache: FeatureCache | None = None
        self._sample_cache: SampleCache | None = None

    @property
    def step(self) -> int:
        """Steps done in this epoch."""
        return self.update.step

    def run(self, observer: Observer, after_step: Callable[[int], None]) -> None:
        """Train from the current step to the end; `after_step` is called with the number of images of each step."""
        if not len(self.validation) and self.training.schedule == "plateau":
            warnings.warn("no validation images: the learning rate watches the training loss instead", stacklevel=2)
        started = perf_counter()
        self._prepare(observer)
        self._seconds += perf_counter() - started
        observer.phase(self.title, self.phase.schedule.epochs * len(self.train))
        observer.advance(self.epoch * len(self.train) + min(self.step * self.training.batch_size, len(self.train)))
        while self.epoch < self.phase.schedule.epochs and not self._has_stalled() and not self._is_out_of_time():
            started = perf_counter()
            try:
                loss = self._epoch(observer, after_step)
                losses, accuracy = self._validate(loss)
                self.update.check(losses)
            except NonFiniteLossError as error:
                raise NonFiniteLossError(f"{error} of {self.title}, epoch {self.epoch + 1}") from error
            total = sum(losses.values())
            self._watch(total)
            rates = self.update.end_epoch(losses)
            self.epoch += 1
            self._epoch_seconds = perf_counter() - started
            self._seconds += self._epoch_seconds
            observer.report(loss, accuracy)
            observer.event(
                "epoch",
                phase=self.title,
                epoch=self.epoch,
                epochs=self.phase.schedule.epochs,
                loss=loss,
                validation=losses,
                accuracy=accuracy,
                learning_rate=rates,
                seconds=self._epoch_seconds,
            )
        if self._best_weights:
            for weight, best in zip(self._weights(), self._best_weights, strict=True):
                weight.copy_(best)

    def _weights(self) -> list[Tensor]:
        """What this phase trains, and the buffers that may move meanwhile."""
        trained = [parameter.detach() for group in self.phase.groups.values() for parameter in group]
        return [*trained, *(buffer for module in self.phase.training for buffer in module.buffers())]

    def _watch(self, loss: float) -> None:
        """A phase that may end early keeps the weights of its best validation loss, and ends with them."""
        self._since_best += 1
        if loss < self._best:
            self._best, self._since_best = loss, 0
            if self.phase.schedule.patience:
                self._best_weights = [tensor.clone() for tensor in self._weights()]

    def _has_stalled(self) -> bool:
        """Whether the validation loss has not improved for `patience` epochs."""
        return 0 < self.phase.schedule.patience <= self._since_best

    def _is_out_of_time(self) -> bool:
        """Whether another epoch like the last one would exceed the phase's time."""
        limit = self.phase.schedule.seconds
        is_late = 0 < limit < self._seconds + self._epoch_seconds and self.epoch > 0
        return bool(limit) and bool(self.runtime.world.all_reduce_max(int(is_late)))  # the same on all ranks

    @torch.no_grad()
    def _prepare(self, observer: Observer) -> None:
        """Fill the feature caches with the views that this phase will show, as far as its budget goes."""
        cached, device, pixels = self.phase.cached, self.runtime.device, self.pixels
        if cached is None:
            return
        self.learner.eval()
        if cached.memory is not None:
            with self.runtime.autocast():
                self._sample_cache = SampleCache(cached, pixels, device)
        if not cached.views:
            return
        cached = replace(cached, views=min(cached.views, self.phase.schedule.epochs))  # more would never be shown
        key = self.key / "views"
        with self.runtime.autocast():
            num = num_views_that_fit(cached, self.train, pixels, device, num_other_images=len(self.validation))
            if num:
                self._train_cache = FeatureCache(self.train, pixels, cached, key, num, device, plain=False)
                self._validation_cache = FeatureCache(self.validation, pixels, cached, key, 0, device, plain=True)
        observer.event("views", phase=self.title, asked=cached.views, kept=num)
        if num < cached.views:
            instead = f"{num} are cached" if num else "fresh views are computed every epoch, which is slower"
            what = f"{cached.views} views of {len(self.train)} images"
            warnings.warn(f"{what} do not fit into {cached.max_bytes >> 20} MB: {instead}", stacklevel=3)

    def _epoch(self, observer: Observer, after_step: Callable[[int], None]) -> float:
        self.learner.eval()
        for module in self.phase.training:
            module.train()
            _keep_frozen_layers_still(module)
        key = self.key / self.epoch
        order = torch.randperm(len(self.train), generator=(key / "order").generator())
        chunks = order.split(self.training.batch_size)[: self.num_steps]
        reported = perf_counter()
        for positions in chunks[self.step :]:
            shard = self.runtime.world.shard(len(positions))
            batch = self._batch(shard.split(positions)[0], key / self.step, shard)
            (batch.key / "share" / shard.start if shard.start else batch.key).seed_layers()
            if self.training.schedule == "cosine":
                done = self.epoch * self.num_steps + self.step + 1
                self.update.set_rate(cosine(done / (self.phase.schedule.epochs * self.num_steps + 1)))
            with self._use_shard(shard), self.runtime.autocast():
                self.phase.step(batch, self.update)
            observer.advance(len(positions))
            after_step(len(positions))
            if perf_counter() - reported > REPORT_EVERY_SECONDS and self.runtime.world.is_main:
                observer.report(self.update.mean_loss())
                reported = perf_counter()
        return self.update.mean_loss()

    @contextmanager
    def _use_shard(self, shard: Shard) -> Iterator[None]:
        """For one step, tell the memories and the update which rows of the global batch this rank has."""
        memories = self.learner.memories() if self.runtime.world.size > 1 else ()
        self.update.weight = shard.weight
        for memory in memories:
            memory.shard = shard
        yield
        for memory in memories:
            memory.shard = UNSHARDED

    def _batch(self, positions: Tensor, key: Key, shard: Shard) -> Batch:
        images, labels = self.train.take(positions)
        images = to_device(images, self.runtime.device)
        labels = to_device(labels, self.runtime.device)
        cache, samples = self._train_cache, self._sample_cache
        if cache is not None:
            view = self.epoch % len(cache)
            x, cached = cache.show(view, positions, images), cache.outputs(view, positions)
        else:
            x = augment(images, self.pixels, (key / "view").generator(), shard)
            cached = self._compute_cached(x)
        recall = partial(samples.recall, key) if samples is not None else None
        progress = self.step / (self.num_steps - 1) if self.num_steps > 1 else 1.0
        return Batch(images, x, labels, self.pixels, key, cached, shard, recall, progress)

    def _compute_cached(self, x: Tensor) -> dict[str, Tensor]:
        """The phase's cached functions of a view that is not in the cache."""
        if self.phase.cached is None:
            return {}
        with self.runtime.autocast():
            return self.phase.cached(x)

    @torch.no_grad()
    def _validate(self, training_loss: float) -> tuple[dict[str, float], float | None]:
        """Mean validation loss of each group and accuracy; without validation images the training loss is watched."""
        names = self.update.names
        if not len(self.validation):
            return dict.fromkeys(names, training_loss), None
        self.learner.eval()
        totals = torch.zeros(len(names) + 1, device=self.runtime.device)
        has_accuracy = False
        start = 0
        for batch in plain_batches(self.validation, self.pixels, self.runtime):
            size = len(batch.y)
            if self._validation_cache is None:
                cached = self._compute_cached(batch.x)
            else:
                cached = self._validation_cache.outputs(0, torch.arange(start, start + size))
            start += size
            with self.runtime.autocast():
                validation = self.phase.validate(replace(batch, key=self.key, cached=cached))
            for index, name in enumerate(names):
                totals[index] += validation.losses[name] * size
            if validation.num_correct is not None:
                has_accuracy = True
                totals[-1] += validation.num_correct
        self.runtime.world.broadcast_([totals])
        *losses, correct = (totals / len(self.validation)).tolist()
        return dict(zip(names, losses, strict=True)), 100 * correct if has_accuracy else None

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Where it stands: tensors and plain values."""
        tensors, values = self.update.state()
        tensors |= {f"best.{index}": tensor for index, tensor in enumerate(self._best_weights)}
        best = None if math.isinf(self._best) else self._best
        watch = {"best": best, "since_best": self._since_best, "seconds": [self._seconds, self._epoch_seconds]}
        return tensors, {"epoch": self.epoch, "update": values, **watch}

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Stand where `state` was taken."""
        self.epoch = int(values["epoch"])
        if not 0 <= self.epoch <= self.phase.schedule.epochs:
            raise ValueError(f"epoch {self.epoch} of {self.phase.schedule.epochs}")
        self._best = math.inf if values["best"] is None else float(values["best"])
        self._since_best = int(values["since_best"])
        self._seconds, self._epoch_seconds = map(float, values.get("seconds", (0.0, 0.0)))
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith("best.")}
        weights = self._weights() if len(own) < len(tensors) else []
        self._best_weights = [tensors[f"best.{index}"].to(tensor.device) for index, tensor in enumerate(weights)]
        if any(best.shape != tensor.shape for best, tensor in zip(self._best_weights, weights, strict=True)):
            raise ValueError("the best weights have other shapes than the phase's")
        self.update.load(own, values["update"])


def _keep_frozen_layers_still(module: nn.Module) -> None:
    """A norm whose weights are frozen does not update its statistics either."""
    for part in module.modules():
        own = list(part.parameters(recurse=False))
        if own and not any(parameter.requires_grad for parameter in own):
            part.eval()
