"""Predicting images with a model that has been learned; nothing here imports torch.

`ContinualClassifier` (a model folder) and `ExportedClassifier` (a file that `recollect export` wrote) are used alike.
"""

from recollect.inference.exported import ExportedClassifier, is_exported
from recollect.inference.prediction import Prediction, Ranking, predict_chunks
from recollect.inference.stored import load_stored
from recollect.inference.tasks import Classifier, find_predictable_task, find_task

__all__ = [
    "Classifier",
    "ExportedClassifier",
    "Prediction",
    "Ranking",
    "find_predictable_task",
    "find_task",
    "is_exported",
    "load_stored",
    "predict_chunks",
]
