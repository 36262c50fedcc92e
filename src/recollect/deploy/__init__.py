"""For people with a folder of images: models that learn month after month, and predict."""

from recollect.deploy.classifier import ContinualClassifier
from recollect.deploy.folder import load_model, save_version, versions_of
from recollect.deploy.model import Model

__all__ = ["ContinualClassifier", "Model", "load_model", "save_version", "versions_of"]
