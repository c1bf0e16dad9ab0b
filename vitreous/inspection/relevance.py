"""From the answer back to the image through every layer: attention rollout (arXiv 2005.00928; figure 6).

Letters: B batch, N tokens, H heads, L layers, (h, w) grid.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.inspection.attention import iterate_attention, iterate_layers, unwrap
from vitreous.models.vit import AttentionPool, VisionTransformer

Fusion = Literal["mean", "max", "min"]
Patch = tuple[int, int]


@torch.no_grad()
def rollout(
    model: nn.Module,
    images: Tensor,
    mask: Tensor | None = None,
    *,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    patch: Patch | None = None,
) -> Tensor:
    """Return how much of each patch reaches the answer, (B, h, w), each map summing to 1.

    Args:
        model: A Vision Transformer or a hybrid.
        images: Preprocessed images (B, C, H, W).
        mask: False for patches that the model ignores, (B, patches).
        fusion: How the heads of a layer become one map: their mean (the paper's), maximum or minimum.
        discard: The share of each token's weakest links that is cut, 0 to less than 1.
        patch: Start from this patch (row, column), not from what the model pools.
    """
    vit = unwrap(model)
    reached, last = None, None
    for layer in iterate_layers(vit, images, mask):
        link = fuse(layer.attention, fusion, discard)
        reached = link if reached is None else link @ reached  # A_l … A_2 A_1
        last = layer.tokens
    assert reached is not None and last is not None
    start = starting_point(vit, last, mask, patch)
    return to_grid(vit, (start[:, None] @ reached)[:, 0])


@torch.no_grad()
def head_maps(
    model: nn.Module, images: Tensor, mask: Tensor | None = None, *, patch: Patch | None = None
) -> Tensor:
    """Return what the class token attends to in each head of each layer, (B, L, H, h, w).

    Without a class token: the mean over the patches; with `patch`: what that patch attends to.
    """
    vit = unwrap(model)
    rows = query_weights(vit, patch, mask).to(images.device)
    return torch.stack([head_rows(vit, each, rows) for each in iterate_attention(vit, images, mask)], dim=1)


def head_rows(vit: VisionTransformer, attention: Tensor, query: Tensor) -> Tensor:
    """Return one layer's (B, H, h, w): the rows of the query, prefix tokens left out, not scaled."""
    rows = torch.einsum("bn,bhnm->bhm", query, attention)[..., vit.config.prefix :]
    return rows.unflatten(-1, (vit.config.time_steps, *vit.config.grid)).mean(-3)


def fuse(attention: Tensor, fusion: Fusion = "mean", discard: float = 0.0) -> Tensor:
    """Return one layer's links between tokens (B, N, N): heads fused, half residual, rows summing to 1."""
    if fusion not in get_args(Fusion):
        raise ModelError(f"unknown head fusion {fusion!r}: expected one of {', '.join(get_args(Fusion))}")
    if not 0.0 <= discard < 1.0:
        raise ModelError(f"discard ratio {discard} is out of range: use 0.0 up to, not including, 1.0")
    fused = attention.mean(1) if fusion == "mean" else getattr(attention, f"a{fusion}")(dim=1)
    weakest = int(discard * fused.shape[-1])
    if weakest:
        cut = fused.topk(weakest, dim=-1, largest=False).indices
        fused = fused.scatter(-1, cut, 0.0)
    fused = fused / fused.sum(-1, keepdim=True).clamp(min=1e-12)
    return (fused + torch.eye(fused.shape[-1], dtype=fused.dtype, device=fused.device)) / 2


def starting_point(
    vit: VisionTransformer, tokens: Tensor, mask: Tensor | None = None, patch: Patch | None = None
) -> Tensor:
    """Return the weight of each token in what the model pools at the end (B, N), rows summing to 1.

    That is the class token; in a distilled model, both tokens; otherwise what pools the patches.
    """
    if patch is None and vit.attn_pool is not None:
        return _pool_weights(vit, vit.attn_pool, tokens, mask)
    return query_weights(vit, patch, mask).to(tokens).expand(tokens.shape[0], -1)


def query_weights(vit: VisionTransformer, patch: Patch | None = None, mask: Tensor | None = None) -> Tensor:
    """Return the tokens that a map starts from, as weights that sum to 1: (1, N), with a mask (B, N)."""
    config = vit.config
    weights = torch.zeros(config.tokens)
    if patch is not None:
        (row, column), (height, width) = patch, config.grid
        if not (0 <= row < height and 0 <= column < width):
            raise ModelError(
                f"patch {row},{column} is outside the grid: rows 0 to {height - 1}, columns 0 to {width - 1}"
            )
        weights[config.prefix + row * width + column] = 1.0
    elif config.distilled:
        weights[:2] = 0.5
    elif config.pooling == "cls":
        weights[0] = 1.0
    elif config.pooling == "cls_gap":
        weights[0], weights[config.prefix :] = 0.5, 0.5 / config.patches
    else:
        weights[config.prefix :] = 1.0 / config.patches
    if mask is None or patch is not None:
        return weights[None]
    seen = weights * with_prefix(vit, mask.cpu())
    return seen / seen.sum(-1, keepdim=True).clamp(min=1e-12)


def with_prefix(vit: VisionTransformer, mask: Tensor) -> Tensor:
    """Return a mask of patches (B, patches) as one of tokens (B, N): the prefix always counts."""
    return torch.nn.functional.pad(mask, (vit.config.prefix, 0), value=True)


def describe_start(vit: VisionTransformer, patch: Patch | None = None) -> str:
    """Return in words what a map starts from."""
    if patch is not None:
        return f"patch at row {patch[0]}, column {patch[1]}"
    if vit.config.distilled:
        return "class and distillation tokens"
    names = {"cls": "class token", "gap": "mean of the patches", "map": "attention pool's query"}
    return names.get(vit.config.pooling, "class token and mean of the patches")


def to_grid(vit: VisionTransformer, relevance: Tensor) -> Tensor:
    """Return the patches' part of (B, N) as maps (B, h, w) that sum to 1: prefix tokens are left out."""
    patches = relevance[:, vit.config.prefix :]
    maps = patches.unflatten(1, (vit.config.time_steps, *vit.config.grid)).sum(1)
    return maps / maps.sum(dim=(1, 2), keepdim=True).clamp(min=1e-12)


def _pool_weights(vit: VisionTransformer, pool: AttentionPool, tokens: Tensor, mask: Tensor | None) -> Tensor:
    patches = vit.norm(tokens)[:, vit.config.prefix :]
    query = pool.q(pool.latent).unflatten(-1, (pool.heads, -1)).transpose(1, 2)
    key = pool.kv(patches).unflatten(-1, (2, pool.heads, -1)).permute(2, 0, 3, 1, 4)[0]
    logits = query @ key.mT * key.shape[-1] ** -0.5  # (B, H, 1, patches)
    if mask is not None:
        logits = logits.masked_fill(~mask[:, None, None], float("-inf"))
    return torch.nn.functional.pad(logits.softmax(-1).mean(1)[:, 0], (vit.config.prefix, 0))
