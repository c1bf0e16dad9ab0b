"""How tokens change from layer to layer: how long and how alike they are, and how alike two layers are.

Letters: B batch, N tokens, D width, L layers, S samples.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.inspection.attention import bare, evaluating, unwrap

FAR = 5.0
"""An outlier's norm is more than this many robust deviations above the median, and more than twice it."""


@torch.no_grad()
def token_norms(model: nn.Module, images: Tensor) -> Tensor:
    """Return the length of every token after every block, (B, L, N), prefix first."""
    vit = unwrap(model)
    with evaluating(vit):
        return torch.stack([tokens.norm(dim=-1) for tokens in vit.forward_intermediates(images)], dim=1)


@torch.no_grad()
def token_similarity(model: nn.Module, images: Tensor) -> Tensor:
    """Return the mean cosine similarity between an image's patches after every block, (B, L)."""
    vit = unwrap(model)
    with evaluating(vit):
        layers = vit.forward_intermediates(images)
    return torch.stack([mean_similarity(tokens[:, vit.config.prefix :]) for tokens in layers], dim=1)


def mean_similarity(patches: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean cosine between two different tokens (B,); `mask` (B, N): False is left out.

    Without the N x N matrix: the squared length of the sum of unit vectors is the sum of all cosines.
    """
    units = F.normalize(patches.double(), dim=-1)
    if mask is None:
        count = units.new_full((len(units),), units.shape[1])
    else:
        units, count = units * mask[..., None], mask.sum(1).double()
    whole = units.sum(dim=1).square().sum(-1)
    similarity = (whole - count) / (count * (count - 1)).clamp(min=1.0)
    return torch.where(count > 1, similarity, torch.ones_like(similarity)).float()


def outliers(norms: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return which patches of (…, N) are artefacts: far longer than the others (arXiv 2309.16588)."""
    if mask is not None:
        norms = norms.masked_fill(~mask, float("nan"))  # larger than nothing, and in no median
    median = norms.nanmedian(dim=-1, keepdim=True).values
    deviation = 1.4826 * (norms - median).abs().nanmedian(dim=-1, keepdim=True).values
    return (norms > median + FAR * deviation) & (norms > 2 * median)


@torch.no_grad()
def layer_features(
    model: nn.Module, images: Tensor, cells: tuple[int, int], mask: Tensor | None = None
) -> list[Tensor]:
    """Return each layer's features on a common grid of cells, (B, cells, D); of a CNN, each stage's.

    Layers and models with different grids and widths, or no class token, can thus be compared place by place.
    """
    inner = bare(model)
    with evaluating(inner):
        layers = inner.forward_intermediates(images, mask=mask)
    return [to_cells(inner.feature_maps(features), cells) for features in layers]


def to_cells(maps: Tensor, cells: tuple[int, int]) -> Tensor:
    """Return feature maps (B, D, h, w) averaged into a grid of cells, (B, cells, D)."""
    return F.adaptive_avg_pool2d(maps, cells).flatten(2).mT


@torch.no_grad()
def cka(first: Sequence[Tensor], second: Sequence[Tensor] | None = None) -> Tensor:
    """Return the linear CKA (arXiv 1905.00414) of every layer with every other, 1 where they agree.

    Each layer is (S, D); all describe the same S samples. The estimator of HSIC is the unbiased one (arXiv
    2010.15327): with few samples the usual one finds similarity in noise.
    """
    grams = [_gram(layer) for layer in first]
    others = grams if second is None else [_gram(layer) for layer in second]
    if grams[0].shape != others[0].shape:
        raise ModelError(
            f"{len(grams[0])} and {len(others[0])} samples can't be compared: give the same images"
        )
    lengths = [[_hsic(gram, gram).clamp(min=1e-30).sqrt() for gram in side] for side in (grams, others)]
    rows = [
        [_hsic(one, other) / (a * b) for other, b in zip(others, lengths[1], strict=True)]
        for one, a in zip(grams, lengths[0], strict=True)
    ]
    return torch.stack([torch.stack(row) for row in rows]).float()


def _gram(features: Tensor) -> Tensor:
    if features.shape[0] < 4:
        raise ModelError(f"CKA needs at least 4 samples, not {features.shape[0]}: give more images")
    centred = features.double() - features.double().mean(dim=0)
    gram = centred @ centred.mT
    gram.fill_diagonal_(0.0)
    return gram


def _hsic(first: Tensor, second: Tensor) -> Tensor:
    """Return the unbiased estimate, of matrices whose diagonals are zero (Song et al., 2012, equation 5)."""
    count = first.shape[0]
    trace = (first * second).sum()
    means = first.sum() * second.sum() / ((count - 1) * (count - 2))
    rows = 2.0 / (count - 2) * (first.sum(0) @ second.sum(0))
    return (trace + means - rows) / (count * (count - 3))
