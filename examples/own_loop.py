"""RFE in a training loop of your own: your model, your data, your optimiser."""

import sys

import torch
from torch import nn

from recollect import RFE, open_stream

NUM_TASKS, STEP = map(int, sys.argv[1:]) if sys.argv[1:] else (5, 4)  # train on every fourth image, to be quick


def fit(parameters, loss, learning_rate):
    optimiser = torch.optim.Adam(parameters, learning_rate)
    for _ in range(100):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()


def load(split, step=1):
    images, labels = split.take(torch.arange(0, len(split), step))
    return stream.pixels.normalise(images).expand(-1, 3, -1, -1), labels % 2  # two classes per task


torch.manual_seed(0)
stream = open_stream("split-digits")
tasks = [load(task.train, STEP) for task in stream.tasks[:NUM_TASKS]]
backbone = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
rfe, heads = RFE(feature_dim=64), []
for x, y in tasks:  # images and labels of one task
    rfe.begin_task()
    heads.append(nn.Linear(64, 2))
    fit(
        [*backbone.parameters(), *heads[-1].parameters()],
        lambda: nn.functional.cross_entropy(heads[-1](f := backbone(x)), y) + rfe.drift_loss(x, f),
        learning_rate=2e-3,
    )
    f = backbone(x).detach()  # stage 2: at least as many steps, with a larger learning rate
    fit(rfe.new_parameters(), lambda: rfe.distill_loss(x, f) + rfe.retrospect_loss(x, f), learning_rate=1e-2)
    rfe.end_task(backbone)

for index, head in enumerate(heads):
    x, y = load(stream.tasks[index].test)
    features = backbone(x), rfe.rewind(x, backbone(x), to=index)
    drifted, rectified = (100 * (head(f).argmax(1) == y).float().mean() for f in features)
    print(f"task {index + 1}: {drifted:.1f} % correct on drifted features, {rectified:.1f} % on rectified features")
