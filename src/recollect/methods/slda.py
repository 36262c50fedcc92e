"""Linear discriminants of frozen features, learned exactly in a stream, whatever the order and the number of tasks.

log p(c | x) = μ_cᵀ Σ⁻¹ f(x) - ½ μ_cᵀ Σ⁻¹ μ_c + constant

slda   the backbone's first weights (streaming LDA, Hayes and Kanan 2020)
fsa    the backbone trained on the first task (first-session adaptation, Panos et al. 2023)
"""

from __future__ import annotations

from recollect.methods._discriminant import SharedGaussians, ShrinkageConfig
from recollect.methods.learner import Method

METHODS = {
    "slda": Method(SharedGaussians, ShrinkageConfig(), "linear discriminant on frozen features"),
    "fsa": Method(SharedGaussians, ShrinkageConfig(adapt=True), "trained on the first task, then as slda"),
}
