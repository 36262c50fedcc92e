"""A backbone of your own: any module that maps images [batch, channels, height, width] to features [batch, dim]."""

import sys

from torch import nn

import recollect

EPOCHS = int(sys.argv[1]) if sys.argv[1:] else 5


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, x):
        return x + self.layers(x)


backbone = nn.Sequential(
    nn.Conv2d(1, 16, 4, stride=4), Residual(16), Residual(16), nn.AdaptiveAvgPool2d(2), nn.Flatten()
)
settings = {"backbone": "own", "epochs": EPOCHS, "retrospect_epochs": EPOCHS, "train_per_class": 30}
config = recollect.resolve("split-digits", "rfe", seed=0, settings=settings)
# The config does not identify the module: with `force`, the run starts again if the folder has a result already.
result = recollect.run(config, "runs/own-backbone", backbone=backbone, force=True)

print(f"{result['parameters']['inference']} parameters at inference")
for name, title in (("til", "task known"), ("cil", "task unknown")):
    print(f"{title}: average accuracy {result[name]['average_accuracy']:.1f} %")
