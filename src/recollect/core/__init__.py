"""The paper's idea on torch alone, usable in anybody's training loop."""

from recollect.core.affine import AffineMap, fit_affine
from recollect.core.auxiliary import AuxiliaryExtractor
from recollect.core.chain import RetrospectorChain
from recollect.core.compact import compact
from recollect.core.discriminant import Discriminant, held_out
from recollect.core.folding import folded
from recollect.core.frozen import Averaged, Frozen, average_weights
from recollect.core.fused import fused, fused_heads
from recollect.core.gaussian_rules import make_rule
from recollect.core.identity import Lesson, Reading, Rule, average
from recollect.core.objectives import feature_estimation
from recollect.core.retrospector import AffineRetrospector, GatedRetrospector, MLPRetrospector
from recollect.core.rfe import RFE
from recollect.core.statistics import ClassStatistics

__all__ = [
    "RFE",
    "AffineMap",
    "AffineRetrospector",
    "AuxiliaryExtractor",
    "Averaged",
    "ClassStatistics",
    "Discriminant",
    "Frozen",
    "GatedRetrospector",
    "Lesson",
    "MLPRetrospector",
    "Reading",
    "RetrospectorChain",
    "Rule",
    "average",
    "average_weights",
    "compact",
    "feature_estimation",
    "fit_affine",
    "folded",
    "fused",
    "fused_heads",
    "held_out",
    "make_rule",
]
