"""How each class varies, beside the covariance Σ that all classes share: its largest principal components.

    Σ_c = Σ + γ U_cᵀ U_c       a row of U_c is a component of class c, as long as its standard deviation

With M_c = U_c Σ⁻¹ U_cᵀ, by Woodbury's identity and the matrix determinant lemma,

    Σ_c⁻¹ = Σ⁻¹ - P_cᵀ P_c     P_cᵀ P_c = Σ⁻¹ U_cᵀ (I / γ + M_c)⁻¹ U_c Σ⁻¹
    log |Σ_c| = log |Σ| + log |I + γ M_c|

so a class has few numbers more than its mean, and its score ½ |P_c (z - μ_c)|² - ½ log |I + γ M_c| more.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

IMAGES_PER_COMPONENT = 10
"""A component of fewer images would tell much of each of them, and little of the class."""
MAX_COMPONENTS = 1024
ROWS = 1024
"""Deviations whose components are computed at a time."""


def principal(deviations: Float[Tensor, "n d"], num: int) -> Float[Tensor, "num d"]:
    """`num` rows whose scatter comes nearest to that of the deviations, the longest first; zeros if there are fewer.

    >>> principal(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0]]), 1).abs()
    tensor([[4.2426, 0.0000]])
    """
    found = deviations[:0]
    for part in deviations.split(ROWS) if num else ():
        rows = torch.cat([found, part])
        if len(rows) > rows.shape[1]:
            values, vectors = torch.linalg.eigh(rows.T @ rows)
            found = (vectors * values.clamp(min=0).sqrt())[:, -num:].flip(1).T
        else:
            found = torch.linalg.eigh(rows @ rows.T).eigenvectors[:, -num:].flip(1).T @ rows
    return torch.cat([found, found.new_zeros(num - len(found), deviations.shape[1])])


class Whitened:
    """Components of all classes under a shared covariance, given as its Cholesky factor; for any γ."""

    def __init__(self, components: Float[Tensor, "c r d"], factor: Float[Tensor, "d d"]) -> None:
        num_classes, rank, dim = components.shape
        solved = torch.cholesky_solve(components.reshape(-1, dim).T, factor)
        self.rows = solved.T.reshape(num_classes, rank, dim)  # U Σ⁻¹
        self.gram = components @ self.rows.mT  # M
        self._identity = torch.eye(rank, dtype=self.gram.dtype)

    def root(self, spread: float) -> Float[Tensor, "c r r"]:
        """R with R Rᵀ = (I / γ + M)⁻¹, so that P = Rᵀ U Σ⁻¹."""
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(self._identity / spread + self.gram))
        root: Tensor = torch.linalg.cholesky(inverse)
        return root

    def log_volume(self, spread: float) -> Float[Tensor, " c"]:
        """log |I + γ M|."""
        return torch.logdet(self._identity + spread * self.gram)

    def along(self, z: Float[Tensor, "n d"], means: Float[Tensor, "c d"]) -> Float[Tensor, "n c r"]:
        """U Σ⁻¹ (z - μ)."""
        return torch.einsum("nd,crd->ncr", z, self.rows) - torch.einsum("cd,crd->cr", means, self.rows)

    def gains(self, along: Float[Tensor, "n c r"], spread: float) -> Float[Tensor, "n c"]:
        """What each class scores more for its components."""
        lengths = torch.einsum("ncr,crs->ncs", along, self.root(spread)).square().sum(2)
        return (lengths - self.log_volume(spread)) / 2
