"""Backbones and the classifier with growing heads."""

from recollect.nets.backbone import Backbone, Recipe, as_backbone, backbones, is_pretrained
from recollect.nets.network import Network

__all__ = ["Backbone", "Network", "Recipe", "as_backbone", "backbones", "is_pretrained"]
