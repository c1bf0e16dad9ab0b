"""Whether a map is right: the model's answer as patches are removed in the map's order (arXiv 1806.07421).

A removed patch is not painted over: its token leaves the sequence.
Letters: B batch, N tokens, D width, K classes, (h, w) grid.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.inspection.attention import blocks_of, evaluating, unwrap
from vitreous.models.vit import VisionTransformer

STEPS = 6


class Curves(NamedTuple):
    """The model's answer as patches are removed; the mean of a curve is its area."""

    removed: Tensor  # (S,) share of the patches that is gone
    deletion: Tensor  # (B, S): the most relevant patches go first; a good map falls early
    insertion: Tensor  # (B, S): the least relevant go first, that is, the most relevant come first
    about: str


def softmax(logits: Tensor) -> Tensor:
    """Return class probabilities of plain logits: the default of `removal_curves`."""
    return logits.softmax(-1)


@torch.no_grad()
def deletion_insertion(
    model: nn.Module, images: Tensor, relevance: Tensor, classes: Tensor | None = None, steps: int = STEPS
) -> Curves:
    """Return both curves for one map per image (B, h, w); at least one patch always stays.

    The value is the probability of the class; without classes, the cosine similarity of the pooled features
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
    model: nn.Module,
    images: Tensor,
    orders: list[Tensor],
    classes: Tensor | None,
    steps: int = STEPS,
    *,
    mask: Tensor | None = None,
    probabilities: Callable[[Tensor], Tensor] = softmax,
) -> list[Tensor]:
    """Return, for each order (B, places), the model's answer as patches are removed in it: (B, S).

    Patches that `mask` leaves out were never there. `probabilities` turns logits into what curves show.
    """
    vit = unwrap(model)
    with evaluating(vit):
        start = vit.embed(images)
        whole = _encode(vit, start, mask)
        curves = []
        for order in orders:
            order = order.to(images.device)
            if vit.config.time_steps > 1:  # a map is shared by the frames of a clip
                order = _through_time(order, vit.config.time_steps)
            answers = [whole, *(_answer(vit, start, order, mask, step, steps) for step in range(1, steps))]
            curves.append(
                torch.stack([_figure(each, whole, classes, probabilities) for each in answers], dim=1)
            )
    return curves


def removed_shares(model: nn.Module, steps: int = STEPS) -> Tensor:
    """Return the share of the patches that is gone at each step, (S,)."""
    patches = unwrap(model).config.patches
    return _gone(patches, steps) / patches


def meaning(classes: Tensor | None) -> str:
    """Return in words what the curves show."""
    return "probability of the class" if classes is not None else "similarity to the whole image's features"


def _gone(patches: int, steps: int) -> Tensor:
    return torch.linspace(0, patches - 1, steps).round().long()


def _through_time(order: Tensor, frames: int) -> Tensor:
    size = order.shape[1]
    return (order[:, :, None] + torch.arange(frames, device=order.device) * size).flatten(1)


def _figure(
    answer: Tensor, whole: Tensor, classes: Tensor | None, probabilities: Callable[[Tensor], Tensor]
) -> Tensor:
    if classes is None:
        return F.cosine_similarity(answer, whole, dim=1)
    return probabilities(answer).gather(1, classes.to(answer.device)[:, None])[:, 0]


def _answer(
    vit: VisionTransformer, start: Tensor, order: Tensor, mask: Tensor | None, step: int, steps: int
) -> Tensor:
    """Return the logits (or pooled features) of what is left at a step of an order (B, patches)."""
    config = vit.config
    if mask is not None:
        return _encode(vit, start, _left(order, mask, step / (steps - 1)))
    keep = order[:, int(_gone(config.patches, steps)[step]) :]
    if config.positions in ("relative", "rope"):
        # Their geometry refers to the whole grid: mask the removed patches rather than take them out.
        return _encode(vit, start, torch.zeros_like(order, dtype=torch.bool).scatter(1, keep, True))
    rows = torch.cat([_prefix_rows(config.prefix, keep), keep + config.prefix], dim=1)
    return _encode(vit, start.gather(1, rows[..., None].expand(-1, -1, start.shape[-1])), None)


def _left(order: Tensor, mask: Tensor, share: float) -> Tensor:
    """Return which patches (B, N) are left once this share of each image's own patches is removed."""
    own = mask.gather(1, order)
    number = own.cumsum(1) - 1  # of each patch of the order, among those that are not padding
    gone = ((own.sum(1, keepdim=True) - 1) * share).round()
    return torch.zeros_like(mask).scatter(1, order, own & (number >= gone))


def _prefix_rows(prefix: int, keep: Tensor) -> Tensor:
    return torch.arange(prefix, device=keep.device).expand(keep.shape[0], -1)


def _encode(vit: VisionTransformer, x: Tensor, mask: Tensor | None) -> Tensor:
    geometry = vit.geometry(mask)
    for block in blocks_of(vit):
        x = block(x, geometry)
    return vit.forward_head(vit.norm(x), mask)
