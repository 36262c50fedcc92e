"""Retrospectors r_t: from today's feature f and the auxiliary feature h to an estimate of yesterday's feature.

gated:           q = A_f f ⊙ A_h h,   r = σ(G_f q) ⊙ f + σ(G_h q) ⊙ (B h)
mlp-projection:  r = MLP([f, h])
mlp-residual:    r = MLP([f, h]) + f
no-aux:          r = MLP(f)
affine:          r = f + U V f + b, a ridge regression that is computed and not trained

All but the last end in ReLU where the backbone's features are non-negative (`final_relu`); the paper's equations have
none.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recollect.core.affine import fit_affine
from recollect.device import on_host_in_double

Form = Literal["gated", "mlp-projection", "mlp-residual", "no-aux", "affine"]
FULL = 200.0  # whose sigmoid is 1, and that of its negative 0, in single precision
FORMS: tuple[Form, ...] = ("gated", "mlp-projection", "mlp-residual", "no-aux", "affine")


class GatedRetrospector(nn.Module):
    """The paper's r_t: two soft gates mix today's feature with a projection of h; 280,320 parameters at 512/128/128."""

    uses_auxiliary = True

    def __init__(
        self,
        feature_dim: int,
        auxiliary_dim: int = 128,
        projection_dim: int = 128,
        *,
        bias: bool = True,
        final_relu: bool = False,
    ) -> None:
        super().__init__()
        self.project_f = nn.Linear(feature_dim, projection_dim, bias)  # A_f
        self.project_h = nn.Linear(auxiliary_dim, projection_dim, bias)  # A_h
        self.gate_f = nn.Linear(projection_dim, feature_dim, bias)  # G_f
        self.gate_h = nn.Linear(projection_dim, feature_dim, bias)  # G_h
        self.expand_h = nn.Linear(auxiliary_dim, feature_dim, bias)  # B
        self.final = nn.ReLU() if final_relu else nn.Identity()

    def forward(self, f: Float[Tensor, "b d"], h: Float[Tensor, "b m"]) -> Float[Tensor, "b d"]:
        q = self.project_f(f) * self.project_h(h)
        r = self.gate_f(q).sigmoid() * f + self.gate_h(q).sigmoid() * self.expand_h(h)
        return self.final(r)  # type: ignore[no-any-return]

    @torch.no_grad()
    def pass_through(self) -> None:
        """Become r(f, h) = f: gates that let all of f through and nothing of h."""
        for gate, bias in ((self.gate_f, FULL), (self.gate_h, -FULL)):
            gate.weight.zero_()
            gate.bias.fill_(bias)


class MLPRetrospector(nn.Module):
    """Two linear layers on [f, h], on f alone (`auxiliary_dim=0`), or as a residual on f."""

    def __init__(
        self,
        feature_dim: int,
        auxiliary_dim: int = 128,
        *,
        residual: bool = False,
        bias: bool = True,
        final_relu: bool = False,
    ) -> None:
        super().__init__()
        self.uses_auxiliary = auxiliary_dim > 0
        self.residual = residual
        self.layers = nn.Sequential(
            nn.Linear(feature_dim + auxiliary_dim, feature_dim, bias),
            nn.ReLU(),
            nn.Linear(feature_dim, feature_dim, bias),
        )
        self.final = nn.ReLU() if final_relu else nn.Identity()

    def forward(self, f: Float[Tensor, "b d"], h: Float[Tensor, "b m"] | None) -> Float[Tensor, "b d"]:
        r = self.layers(f if h is None else torch.cat([f, h], dim=1))
        return self.final(r + f if self.residual else r)  # type: ignore[no-any-return]


class AffineRetrospector(nn.Module):
    """An affine map of rank p beside the identity. A chain of such maps is one such map, so it costs nothing to read.

    >>> f = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> r = AffineRetrospector(3, rank=3)
    >>> r.fit(f, 2 * f + 1)
    >>> torch.allclose(r(f), 2 * f + 1, atol=1e-3)
    True
    """

    uses_auxiliary = False
    down: Tensor
    up: Tensor
    bias: Tensor

    def __init__(self, feature_dim: int, rank: int = 128) -> None:
        super().__init__()
        rank = min(rank, feature_dim)
        self.register_buffer("down", torch.zeros(feature_dim, rank))  # V, transposed
        self.register_buffer("up", torch.zeros(rank, feature_dim))  # U, transposed
        self.register_buffer("bias", torch.zeros(feature_dim))

    def forward(self, f: Float[Tensor, "b d"], h: Tensor | None = None) -> Float[Tensor, "b d"]:
        return f + f @ self.down @ self.up + self.bias

    @torch.no_grad()
    def fit(self, f: Float[Tensor, "n d"], target: Float[Tensor, "n d"]) -> None:
        """Become the map from features to targets of the same images, cut to the rank that changes f the most."""
        weight, bias, _ = fit_affine(f, target)
        z, change = on_host_in_double(f), weight.T - torch.eye(len(weight), dtype=weight.dtype)
        mean = z.mean(0)
        changes = (z - mean) @ change
        directions = torch.linalg.eigh(changes.T @ changes)[1][:, -len(self.up) :]
        self.down.copy_(change @ directions)
        self.up.copy_(directions.T)
        self.bias.copy_(bias + mean @ change - mean @ change @ directions @ directions.T)  # the mean is not cut

    @torch.no_grad()
    def pass_through(self) -> None:
        """Become r(f) = f."""
        self.up.zero_()
        self.bias.zero_()


Retrospector = GatedRetrospector | MLPRetrospector | AffineRetrospector


def make_retrospector(
    form: Form, feature_dim: int, auxiliary_dim: int, projection_dim: int, *, bias: bool, final_relu: bool
) -> Retrospector:
    """One retrospector of the named form."""
    if form == "gated":
        return GatedRetrospector(feature_dim, auxiliary_dim, projection_dim, bias=bias, final_relu=final_relu)
    if form == "affine":
        return AffineRetrospector(feature_dim, projection_dim)
    if form not in FORMS:
        raise ValueError(f"unknown retrospector form {form!r}; choose from {', '.join(FORMS)}")
    return MLPRetrospector(
        feature_dim,
        0 if form == "no-aux" else auxiliary_dim,
        residual=form == "mlp-residual",
        bias=bias,
        final_relu=final_relu,
    )
