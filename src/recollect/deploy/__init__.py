"""Models for people with folders of images: they learn month after month, and predict."""

from recollect.deploy.checks import Gate
from recollect.deploy.classifier import ContinualClassifier
from recollect.deploy.model import Model, Settings
from recollect.deploy.store import ModelStore

__all__ = ["ContinualClassifier", "Gate", "Model", "ModelStore", "Settings"]
