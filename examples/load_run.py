"""Load a finished run and compare features of old tasks: as the backbone gives them now, and as RFE estimates them."""

import sys

import torch

import recollect

EPOCHS = int(sys.argv[1]) if sys.argv[1:] else 10

settings = {"epochs": EPOCHS, "retrospect_epochs": 2 * EPOCHS, "train_per_class": 80, "backbone.width": 8, "alpha": 0}
config = recollect.resolve("split-digits", "rfe", seed=0, settings=settings)
folder = f"runs/load-run-{EPOCHS}-epochs"
recollect.run(config, folder)  # returns at once if the run has finished

loaded = recollect.load_run(folder)  # config, stream, learner and result
network = loaded.learner.network
for index, task in enumerate(loaded.stream.tasks):
    images, labels = task.test.take(torch.arange(len(task.test)))
    with torch.no_grad():
        now, estimates = loaded.learner.features(loaded.stream.pixels.normalise(images))
        first = index * task.info.num_classes  # labels count the units of all heads
        logits = [network.heads[index](features) for features in (now, estimates[index])]
        moved = (now - estimates[index]).norm(dim=1) / estimates[index].norm(dim=1)
    drifted, rectified = (100 * (each.argmax(1) + first == labels).float().mean() for each in logits)
    print(
        f"task {index + 1}: the estimate differs from today's features by {100 * moved.mean():.0f} %; "
        f"{drifted:.1f} % correct without it, {rectified:.1f} % with it"
    )
