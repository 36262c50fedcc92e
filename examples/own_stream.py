"""A stream of your own: uint8 images [n, channels, height, width] with integer labels, in tasks that you name."""

import sys

import torch
from sklearn.datasets import load_digits

import recollect

EPOCHS = int(sys.argv[1]) if sys.argv[1:] else 5

pixels, labels = map(torch.as_tensor, load_digits(return_X_y=True))  # 8 × 8 pixels, from 0 to 16
images = (pixels * 255 / 16).to(torch.uint8).reshape(-1, 1, 8, 8)
images = images.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
is_test = torch.arange(len(images)) % 5 == 0
stream = recollect.stream_from_tensors(
    images[~is_test],
    labels[~is_test],
    images[is_test],
    labels[is_test],
    class_names=["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
    tasks=[["two", "three", "five", "seven"], ["four", "six", "eight", "nine"], ["zero", "one"]],
    crop_padding=1,
)

settings = {"backbone": "convnet", "epochs": EPOCHS, "learning_rate": 5e-3, "memory": 50}
config = recollect.resolve("tensors", "er", seed=0, settings=settings)
result = recollect.run(config, f"runs/own-stream-{EPOCHS}-epochs", stream=stream)

for index, row in enumerate(result["til"]["matrix"]):  # row: after a task; column: on the test images of a task
    learned = ", ".join(f"{accuracy:.1f} %" for accuracy in row[: index + 1])
    print(f"after task {index + 1} ({', '.join(stream.tasks[index].info.class_names)}): {learned}")
print(f"forgetting, task known: {result['til']['forgetting']:.1f} points")
