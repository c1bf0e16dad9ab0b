"""Whether a map is right: what the model says as patches are removed in the map's order (arXiv 1806.07421).

A removed patch is not painted over: its token leaves the sequence.
Letters: B batch, N tokens, D width, K classes, (h, w) grid.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.inspection.attention import blocks_of, evaluating, unwrap
from vitreous.models.vit import VisionTransformer

STEPS = 6


class Curves(NamedTuple):
    """What the model still says with a part of the patches; the mean of a curve is its area."""

    removed: Tensor  # (S,) share of the patches that is gone
    deletion: Tensor  # (B, S): the most relevant patches go first; a good map falls early
    insertion: Tensor  # (B, S): the least relevant go first, that is, the most relevant come first
    about: str


@torch.no_grad()
def deletion_insertion(
    model: nn.Module, images: Tensor, relevance: Tensor, classes: Tensor | None = None, steps: int = STEPS
) -> Curves:
    """Return both curves for one map an image (B, h, w), at least one patch always staying.

    The figure is the probability of the class; without classes, the cosine similarity of the pooled features
    with those of the whole image.
    """
    order = order_of(relevance)
    deletion, insertion = removal_curves(model, images, [order, order.flip(1)], classes, steps)
    return Curves(removed_shares(model, steps), deletion, insertion, meaning(classes))


def order_of(relevance: Tensor) -> Tensor:
    """Return the places of maps (B, h, w) by falling relevance, (B, h·w)."""
    return relevance.flatten(1).argsort(dim=1, descending=True, stable=True)


def random_order(model: nn.Module, count: int, seed: int = 0) -> Tensor:
    """Return the places of `count` images in random order, (B, h·w): what any map has to beat."""
    height, width = unwrap(model).config.grid
    return torch.rand(count, height * width, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)


@torch.no_grad()
def removal_curves(
    model: nn.Module, images: Tensor, orders: list[Tensor], classes: Tensor | None, steps: int = STEPS
) -> list[Tensor]:
    """Return, for each order (B, places), what the model says as the patches leave: (B, S)."""
    vit = unwrap(model)
    with evaluating(vit):
        start = vit.embed(images)
        whole = _answer(vit, start, None)
        curves = []
        for order in orders:
            order = order.to(images.device)
            if vit.config.time_steps > 1:  # a map is shared by the frames of a clip
                order = _through_time(order, vit.config.time_steps)
            answers = [whole]
            for count in _gone(vit.config.patches, steps)[1:].tolist():
                answers.append(_answer(vit, start, order[:, count:]))
            curves.append(torch.stack([_figure(each, whole, classes) for each in answers], dim=1))
    return curves


def removed_shares(model: nn.Module, steps: int = STEPS) -> Tensor:
    """Return the share of the patches that is gone at each step, (S,)."""
    patches = unwrap(model).config.patches
    return _gone(patches, steps) / patches


def meaning(classes: Tensor | None) -> str:
    """Say what the curves show."""
    return "probability of the class" if classes is not None else "similarity to the whole image's features"


def _gone(patches: int, steps: int) -> Tensor:
    return torch.linspace(0, patches - 1, steps).round().long()


def _through_time(order: Tensor, frames: int) -> Tensor:
    size = order.shape[1]
    return (order[:, :, None] + torch.arange(frames, device=order.device) * size).flatten(1)


def _figure(answer: Tensor, whole: Tensor, classes: Tensor | None) -> Tensor:
    if classes is None:
        return F.cosine_similarity(answer, whole, dim=1)
    return answer.softmax(-1).gather(1, classes.to(answer.device)[:, None])[:, 0]


def _answer(vit: VisionTransformer, start: Tensor, keep: Tensor | None) -> Tensor:
    """Return the logits (or pooled features) of the patches in `keep` (B, k) alone."""
    config = vit.config
    if keep is not None and config.positions in ("relative", "rope"):
        # Their geometry is by place in the whole grid: hide the others rather than take them out.
        mask = torch.zeros(start.shape[0], config.patches, dtype=torch.bool, device=start.device)
        mask.scatter_(1, keep, True)
        return _encode(vit, start, mask)
    if keep is not None:
        rows = torch.cat([_prefix_rows(config.prefix, keep), keep + config.prefix], dim=1)
        start = start.gather(1, rows[..., None].expand(-1, -1, start.shape[-1]))
    return _encode(vit, start, None)


def _prefix_rows(prefix: int, keep: Tensor) -> Tensor:
    return torch.arange(prefix, device=keep.device).expand(keep.shape[0], -1)


def _encode(vit: VisionTransformer, x: Tensor, mask: Tensor | None) -> Tensor:
    geometry = vit.geometry(mask)
    for block in blocks_of(vit):
        x = block(x, geometry)
    return vit.forward_head(vit.norm(x), mask)
