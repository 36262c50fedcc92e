"""A method of your own in one file. Feature distillation: L = L_CE(D_t) + λ MSE(f_t(x), f_{t-1}(x))."""

import sys
from dataclasses import dataclass

from torch.nn.functional import mse_loss

from recollect import open_stream
from recollect.core import Frozen
from recollect.engine import Engine, Runtime, Training
from recollect.methods import Learner, Method, Parameters, Schedule, build_backbone, build_learner
from recollect.rng import Key


@dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    strength: float = 1.0
    """Weight of the distance to the previous features, λ."""


class FeatureDistillation(Learner[DistillationConfig]):
    def begin_task(self, task):
        self.teacher = Frozen(self.network.backbone) if task.index else None
        super().begin_task(task)

    def phases(self, task):
        yield self.classifier_phase(task, self.step, "task")

    def step(self, batch, update):
        f = self.network.backbone(batch.x)
        drift = mse_loss(f, self.teacher(batch.x)) if self.teacher else 0
        update(self.network.cross_entropy(self.network.logits(f), batch.y, "task") + self.config.strength * drift)

    def parameter_counts(self):
        return Parameters(*(sum(p.numel() for p in held.parameters()) for held in (self, self.network)))


METHODS = {"distillation": Method(FeatureDistillation, DistillationConfig(), "keeps the features near the previous")}

# CONTRIBUTING.md says how to register METHODS, for `recollect run --method distillation`. To try a class as it is:
epochs, stream, key = int(sys.argv[1]) if sys.argv[1:] else 5, open_stream("split-digits"), Key(0)
for strength in (0.0, 10.0):
    backbone = build_backbone("convnet", {"width": 8}, stream.image_shape, key)
    config, schedule = DistillationConfig(strength=strength), Schedule(epochs, 5e-3)
    learner = build_learner(FeatureDistillation, config, backbone, stream.image_shape, schedule, key)
    training = Training(epochs=epochs, learning_rate=5e-3)
    record = Engine(learner, stream, training, Runtime.choose(precision="fp32"), seed=0).run()
    print(f"strength {strength:g}: {sum(record.matrices['til'][-1]) / 5:.1f} % correct with the task known")
