"""A method of your own in one file. Feature distillation: L = L_CE(D_t) + λ MSE(f_t(x), f_{t-1}(x))."""

import sys
from dataclasses import dataclass

from torch.nn.functional import mse_loss

import recollect
from recollect.core import Frozen
from recollect.methods import Learner, Method, Parameters


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

if (
    __name__ == "__main__"
):  # the same as `recollect run --stream split-digits --method examples/own_method.py --set strength=10 …`
    epochs = int(sys.argv[1]) if sys.argv[1:] else 5
    for strength in (0.0, 10.0):
        settings = {"strength": strength, "epochs": epochs, "learning_rate": 5e-3, "backbone.width": 8}
        config = recollect.resolve("split-digits", __file__, seed=0, settings=settings)
        result = recollect.run(config, f"runs/own-method-{strength:g}-{epochs}-epochs")
        print(f"strength {strength:g}: {result['til']['average_accuracy']:.1f} % correct with the task known")
