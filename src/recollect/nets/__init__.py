"""Backbones and the classifier with growing heads."""

from recollect.nets.backbone import Backbone, as_backbone, backbones
from recollect.nets.network import Network

__all__ = ["Backbone", "Network", "as_backbone", "backbones"]
