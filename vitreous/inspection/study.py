"""What one forward pass over some images shows, small enough to keep: layers are streamed, never held.

Letters: B batch, N tokens, D width, H heads, L layers, (h, w) grid.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.inspection.attention import bare, iterate_layers, sharing, unwrap
from vitreous.inspection.distance import mean_distance, mean_entropy, pixel_distances
from vitreous.inspection.relevance import (
    Fusion,
    Patch,
    fuse,
    head_rows,
    query_weights,
    starting_point,
    to_grid,
    with_prefix,
)
from vitreous.inspection.tokens import layer_features, mean_similarity, outliers, to_cells
from vitreous.models.architecture import Architecture
from vitreous.models.weights import Model


@dataclass
class Observation:
    """What the model does with one image, as numpy arrays."""

    output: np.ndarray
    """Logits (K,), or the pooled features of a model without classes."""
    features: list[np.ndarray]
    """Each layer's (cells, D), for CKA."""
    rollout: np.ndarray | None = None
    """(h, w), sums to 1; None for a CNN, like all that follows."""
    heads: np.ndarray | None = None
    """(L, H, h, w)"""
    distance: np.ndarray | None = None
    """(L, H) pixels"""
    entropy: np.ndarray | None = None
    """(L, H) as a share of the largest possible"""
    norms: np.ndarray | None = None
    """(L, N), prefix first; without the patches that are padding"""
    similarity: np.ndarray | None = None
    """(L,)"""
    artefacts: np.ndarray | None = None
    """(h, w) patches of the last layer that are far longer than the others"""


@torch.no_grad()
def observe(
    model: nn.Module,
    images: Tensor,
    mask: Tensor | None = None,
    *,
    cells: tuple[int, int] = (7, 7),
    fusion: Fusion = "mean",
    discard: float = 0.0,
    patch: Patch | None = None,
) -> list[Observation]:
    """Run images (B, C, H, W) through the model once and return what each shows."""
    inner = bare(model)
    if not inner.config.has_attention:
        return _of_cnn(inner, images, mask, cells)
    vit = unwrap(inner)
    config, prefix = vit.config, vit.config.prefix
    distances = pixel_distances(config).to(images.device)
    query = query_weights(vit, patch, mask).to(images.device)
    parts: dict[str, list[Tensor]] = {
        name: [] for name in ("heads", "distance", "entropy", "norms", "similarity", "features")
    }
    reached, tokens = None, images
    for attention, tokens in iterate_layers(vit, images, mask):
        link = fuse(attention, fusion, discard)
        reached = link if reached is None else link @ reached
        parts["heads"].append(head_rows(vit, attention, query))
        parts["distance"].append(mean_distance(attention, distances, prefix, mask))
        parts["entropy"].append(mean_entropy(attention, prefix, mask))
        parts["norms"].append(tokens.norm(dim=-1))
        parts["similarity"].append(mean_similarity(tokens[:, prefix:], mask))
        parts["features"].append(to_cells(vit.feature_maps(tokens), cells))
    assert reached is not None
    start = starting_point(vit, tokens, mask, patch)
    rollouts = to_grid(vit, (start[:, None] @ reached)[:, 0])
    outputs = vit.forward_head(vit.norm(tokens), mask)
    stacked = {name: torch.stack(layers, dim=1) for name, layers in parts.items()}  # (B, L, …)
    features, norms = stacked.pop("features"), stacked.pop("norms")
    long = outliers(norms[:, -1, prefix:], mask).unflatten(1, (config.time_steps, *config.grid)).any(1)
    counted = torch.ones(norms.shape[::2], dtype=torch.bool) if mask is None else with_prefix(vit, mask).cpu()
    return [
        Observation(
            output=_array(outputs[i]),
            features=[_array(layer) for layer in features[i]],
            rollout=_array(rollouts[i]),
            artefacts=long[i].cpu().numpy(),
            norms=_array(norms[i])[:, counted[i].numpy()],
            **{name: _array(values[i]) for name, values in stacked.items()},
        )
        for i in range(len(images))
    ]


def _of_cnn(model: Model, images: Tensor, mask: Tensor | None, cells: tuple[int, int]) -> list[Observation]:
    outputs, layers = model(images, mask), layer_features(model, images, cells, mask)
    return [
        Observation(output=_array(outputs[i]), features=[_array(layer[i]) for layer in layers])
        for i in range(len(images))
    ]


def at_size(model: nn.Module, image_size: tuple[int, int]) -> Model:
    """Return the same model for another image size: all weights shared, positions resampled in 2D."""
    shared = sharing(model)
    shared.set_image_size(image_size)
    return shared


def own_aspect(config: Architecture, width: int, height: int) -> tuple[int, int]:
    """Return the image size nearest to a picture's aspect that has no more patches than the model's own."""
    area = config.grid[0] * config.grid[1]
    tall, wide = height / config.step[0], width / config.step[1]
    scale = sqrt(area / (tall * wide))
    rows = min(max(1, round(tall * scale)), area)
    columns = min(max(1, round(wide * scale)), area // rows)
    return rows * config.step[0], columns * config.step[1]


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
