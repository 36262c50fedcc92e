"""ViT-S/16 (Dosovitskiy et al. 2021) under timm's parameter names, followed by linear 384→512 and ReLU.

z_0 = [cls; E x_patch] + pos;  z' = z + MSA(LN(z));  z = z' + MLP(LN(z'));  feature = ReLU(W LN(z_L)[cls])
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.errors import UserError
from recollect.nets.backbone import Normalisation, Recipe
from recollect.nets.weights import load_pretrained

NORM_EPSILON = 1e-6

MAX_DIM, MAX_DEPTH = 4096, 128


class Attention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, z: Tensor) -> Tensor:
        b, n, dim = z.shape
        q, k, v = self.qkv(z).reshape(b, n, 3, self.num_heads, dim // self.num_heads).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(q, k, v)  # [b, heads, n, dim / heads]
        return self.proj(z.transpose(1, 2).reshape(b, n, dim))  # type: ignore[no-any-return]


class MLP(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, z: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(z)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, NORM_EPSILON)
        self.attn = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, NORM_EPSILON)
        self.mlp = MLP(dim)

    def forward(self, z: Tensor) -> Tensor:
        z = z + self.attn(self.norm1(z))
        return z + self.mlp(self.norm2(z))  # type: ignore[no-any-return]


class PatchEmbed(nn.Module):
    def __init__(self, in_channels: int, dim: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, patch_size, patch_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]  # [b, patches, dim]


class Trunk(nn.Module):
    """The transformer itself: images of exactly `image_size` to the class token [b, dim]."""

    def __init__(
        self, image_size: int, patch_size: int, in_channels: int, dim: int, depth: int, num_heads: int
    ) -> None:
        super().__init__()
        if min(patch_size, dim, depth, num_heads) < 1 or dim % num_heads:
            raise UserError(
                f"a ViT needs positive sizes and dim divisible by num_heads; got patch_size {patch_size}, dim {dim}, "
                f"depth {depth}, num_heads {num_heads}"
            )
        if image_size % patch_size:
            raise UserError(f"an image of {image_size} pixels does not divide into patches of {patch_size}")
        self.patch_embed = PatchEmbed(in_channels, dim, patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + (image_size // patch_size) ** 2, dim) * 0.02)
        self.blocks = nn.Sequential(*(Block(dim, num_heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, NORM_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x)
        z = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), patches], dim=1) + self.pos_embed
        return self.norm(self.blocks(z))[:, 0]  # type: ignore[no-any-return]


class ViT(nn.Module):
    """A trunk, then linear to `feature_dim` and ReLU; other image sizes are resized to the trunk's."""

    nonnegative = True
    normalisation: Normalisation | None = None

    def __init__(
        self,
        *,
        image_size: int = 224,
        patch_size: int = 16,
        in_channels: int = 3,
        dim: int = 384,
        depth: int = 12,
        num_heads: int = 6,
        feature_dim: int = 512,
    ) -> None:
        super().__init__()
        for name, value, most in (
            ("dim", dim, MAX_DIM),
            ("depth", depth, MAX_DEPTH),
            ("feature_dim", feature_dim, MAX_DIM),
        ):
            if not 1 <= value <= most:
                raise UserError(f"{name} of a ViT lies between 1 and {most}, got {value}")
        self.feature_dim = feature_dim
        self.image_size = image_size
        self.trunk = Trunk(image_size, patch_size, in_channels, dim, depth, num_heads)
        self.neck = nn.Linear(dim, feature_dim)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (self.image_size, self.image_size):
            x = F.interpolate(x, (self.image_size, self.image_size), mode="bilinear", antialias=True)
        return F.relu(self.neck(self.trunk(x)))


def vit_s16(
    image_shape: tuple[int, int, int], *, weights: Literal["imagenet", "none"] = "imagenet", feature_dim: int = 512
) -> ViT:
    """ViT-S/16 at 224 pixels, then linear 384→512 and ReLU, as in the paper.

    weights: 'imagenet' (ImageNet-21k, fine-tuned on 1k, from the hub) or 'none' for random initial weights.
    feature_dim: output dimension of the linear layer after the transformer.
    """
    if weights not in ("imagenet", "none"):
        raise UserError(f"weights of vit-s16 are 'imagenet' or 'none', got {weights!r}")
    if weights == "imagenet" and image_shape[0] != 3:
        raise UserError(f"the ImageNet weights take 3 channels, the images have {image_shape[0]}; set weights=none")
    network = ViT(in_channels=image_shape[0], feature_dim=feature_dim)
    if weights == "imagenet":
        load_pretrained(network.trunk, "timm/vit_small_patch16_224.augreg_in21k_ft_in1k", drop=("head.",))
        network.normalisation = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    return network


def vit_small_images(
    image_shape: tuple[int, int, int],
    *,
    patch_size: int = 4,
    dim: int = 128,
    depth: int = 6,
    num_heads: int = 4,
    feature_dim: int = 128,
) -> ViT:
    """A small ViT for small images, trained from scratch.

    patch_size: side length of a patch in pixels.
    dim: width of the transformer.
    depth: number of layers.
    num_heads: attention heads per layer.
    feature_dim: output dimension of the linear layer after the transformer.
    """
    return ViT(
        image_size=image_shape[1],
        patch_size=patch_size,
        in_channels=image_shape[0],
        dim=dim,
        depth=depth,
        num_heads=num_heads,
        feature_dim=feature_dim,
    )


BACKBONES = {
    "vit-s16": Recipe(vit_s16, training={"epochs": 30, "learning_rate": 1e-5}),
    "vit-small": Recipe(vit_small_images),
}
