"""Retrospectors r_t: from today's feature f and the auxiliary feature h to an estimate of yesterday's feature.

gated:           q = A_f f ⊙ A_h h,   r = σ(G_f q) ⊙ f + σ(G_h q) ⊙ (B h)
mlp-projection:  r = MLP([f, h])
mlp-residual:    r = MLP([f, h]) + f
no-aux:          r = MLP(f)

Each ends in ReLU where the backbone's features are non-negative (`final_relu`); the paper's equations have none.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

Form = Literal["gated", "mlp-projection", "mlp-residual", "no-aux"]
FULL = 200.0  # whose sigmoid is 1, and that of its negative 0, in single precision
FORMS: tuple[Form, ...] = ("gated", "mlp-projection", "mlp-residual", "no-aux")


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


Retrospector = GatedRetrospector | MLPRetrospector


def make_retrospector(
    form: Form, feature_dim: int, auxiliary_dim: int, projection_dim: int, *, bias: bool, final_relu: bool
) -> Retrospector:
    """One retrospector of the named form."""
    if form == "gated":
        return GatedRetrospector(feature_dim, auxiliary_dim, projection_dim, bias=bias, final_relu=final_relu)
    if form not in FORMS:
        raise ValueError(f"unknown retrospector form {form!r}; choose from {', '.join(FORMS)}")
    return MLPRetrospector(
        feature_dim,
        0 if form == "no-aux" else auxiliary_dim,
        residual=form == "mlp-residual",
        bias=bias,
        final_relu=final_relu,
    )
