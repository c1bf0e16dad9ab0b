"""How far attention reaches, in pixels, compared with what a CNN of the same depth can (figure 7, right).

Letters: B batch, N tokens, H heads, L layers.
"""

from math import ceil, log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.inspection.attention import iterate_attention, unwrap
from vitreous.models.architecture import ResNetConfig, ViTConfig

SAMPLES = 24
"""Points along each side of a receptive field at which its mean distance is computed."""


class ReceptiveField(NamedTuple):
    """What one cell after a block of a CNN can see."""

    block: str
    side: int
    """Pixels along one side of the square."""
    stride: int
    """Pixels between two neighbouring cells."""


@torch.no_grad()
def attention_distance(model: nn.Module, images: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return each head's mean attention distance in pixels, (L, H), averaged over the images."""
    config = unwrap(model).config
    distances = pixel_distances(config).to(images.device)
    layers = [
        mean_distance(each, distances, config.prefix, mask) for each in iterate_attention(model, images, mask)
    ]
    return torch.stack(layers).mean(dim=1)


@torch.no_grad()
def attention_entropy(model: nn.Module, images: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return how spread out each head's attention is, (L, H): 0 for one token, 1 for all tokens equally."""
    prefix = unwrap(model).config.prefix
    layers = [mean_entropy(each, prefix, mask) for each in iterate_attention(model, images, mask)]
    return torch.stack(layers).mean(dim=1)


def mean_distance(attention: Tensor, distances: Tensor, prefix: int, mask: Tensor | None = None) -> Tensor:
    """Return each image's and head's mean distance (B, H), patches to patches, weights renormalised to 1.

    Prefix tokens have no place: they are left out as queries and as keys.
    """
    between = attention[..., prefix:, prefix:]
    far = (between * distances).sum(-1) / between.sum(-1).clamp(min=1e-12)  # (B, H, queries)
    return _over_queries(far, mask)


def mean_entropy(attention: Tensor, prefix: int, mask: Tensor | None = None) -> Tensor:
    """Return each image's and head's mean entropy of a patch's attention, as share of the largest (B, H)."""
    rows = attention[..., prefix:, :]
    spread = -torch.special.xlogy(rows, rows).sum(-1) / log(max(2, rows.shape[-1]))
    return _over_queries(spread, mask)


def _over_queries(values: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return values.mean(-1)
    weight = mask[:, None].to(values.dtype)
    return (values * weight).sum(-1) / weight.sum(-1).clamp(min=1.0)


def pixel_distances(config: ViTConfig) -> Tensor:
    """Return the distance in pixels between any two patches' centres (N, N); frames of a clip add none."""
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in config.grid), indexing="ij")
    places = torch.stack([rows.flatten() * config.step[0], columns.flatten() * config.step[1]], dim=1)
    places = places.float().repeat(config.time_steps, 1)
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")


def uniform_distance(config: ViTConfig) -> float:
    """Return the mean distance of uniform attention."""
    return float(pixel_distances(config).mean())


def receptive_fields(config: ResNetConfig) -> list[ReceptiveField]:
    """Return what a cell can see after the root and after each block of a BiT, by its kernels and strides."""
    side, stride = 1 + (7 - 1), 2  # 7x7 convolution of stride 2
    side, stride = side + (3 - 1) * stride, 4  # 3x3 max pool of stride 2
    fields = [ReceptiveField("root", side, stride)]
    for stage, count in enumerate(config.layers):
        for block in range(count):
            step = 2 if stage > 0 and block == 0 else 1
            side, stride = side + (3 - 1) * stride, stride * step  # 1x1 convolutions widen nothing
            fields.append(ReceptiveField(f"stage {stage + 1}, block {block + 1}", side, stride))
    return fields


def field_distance(image_size: tuple[int, int], side: int) -> float:
    """Return the mean distance from a pixel to those in its receptive field, within the image.

    Every pixel of the field counts equally: an upper bound, since real fields weigh the centre more.
    """
    points = (np.arange(SAMPLES) + 0.5) / SAMPLES
    offsets = []
    for length in image_size:
        centres = points * length
        low, high = np.maximum(centres - side / 2, 0), np.minimum(centres + side / 2, length)
        offsets.append(low[:, None] + (high - low)[:, None] * points - centres[:, None])
    down, right = offsets  # (centres, points)
    return float(np.hypot(down[:, None, :, None], right[None, :, None, :]).mean())


def cnn_line(image_size: tuple[int, int], config: ResNetConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return relative depth (0 to 1) and mean distance in pixels after each block of a CNN."""
    sides = [field.side for field in receptive_fields(config)]
    largest = 2 * ceil(max(image_size))
    depth = np.linspace(0.0, 1.0, len(sides))
    return depth, np.array([field_distance(image_size, min(side, largest)) for side in sides])
