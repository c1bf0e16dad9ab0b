"""Token merging (ToMe, arXiv 2210.09461): in each block, patches that are alike go on as one.

Between attention and MLP of a block, R patches join the ones that they are most like, by their keys. Fewer
tokens are left, so all that follows is cheaper. No weight changes, and nothing is learned.
Letters: B batch, N tokens, D width, H heads, R patches that are merged in each block.
"""

from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import ModelError
from vitreous.models.architecture import ViTConfig
from vitreous.models.placed import Geometry
from vitreous.models.vit import Block, VisionTransformer
from vitreous.models.weights import Model

PLACELESS = ("rope", "relative")
"""Positions that attention looks up by a token's place, which a merged token does not have."""


class Pairing(NamedTuple):
    """Which tokens of a sequence stay, which join another, and where each of them is afterwards."""

    stays: Tensor  # (B, N - R) indices, in order
    joins: Tensor  # (B, R) indices
    into: Tensor  # (B, R) what these join, counted among those that stay
    place: Tensor  # (B, N) where each token is afterwards, counted among those that stay


class MergingTransformer(VisionTransformer):
    """A Vision Transformer that merges patches in each block, and still returns a token for every patch."""

    def __init__(self, config: ViTConfig, merge: int) -> None:
        super().__init__(config)
        self.merge = merge

    def run_blocks(self, x: Tensor, geometry: Geometry) -> Tensor:  # (B, N, D)
        """Return z_L, normalised; each patch has the features of the token that it has become part of."""
        size = x.new_ones(x.shape[0], x.shape[1], 1)  # how many patches a token stands for
        place = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
        for block in cast(Iterable[Block], self.blocks):
            # A key that stands for s patches counts s times: softmax(QKᵀ/√d + log s), ToMe's equation 1.
            weighted = geometry._replace(weight=size.log().mT[:, None])  # (B, 1, 1, N)
            q, k, v = block.attn.project(block.norm1(x), weighted)
            x = x + block.drop_path(block.ls1(block.attn.attend(q, k, v, weighted)))
            pairing = pair_up(k.mean(dim=1), self.config.prefix, self.merge)
            x, size = join(x, size, pairing)
            place = pairing.place.gather(1, place)
            x = x + block.drop_path(block.ls2(block.mlp(block.norm2(x))))
        return self.norm(x.gather(1, place[..., None].expand(-1, -1, x.shape[-1])))

    def geometry(
        self, mask: Tensor | None = None, grid: tuple[int, int] | None = None, kept: Tensor | None = None
    ) -> Geometry:
        """Return what the attentions need to know; padding, which must be hidden, can't be merged."""
        if mask is not None:
            raise ModelError("patches of padded images can't be merged: leave merging out")
        return super().geometry(mask, grid, kept)


def merging(model: Model, merge: int) -> MergingTransformer:
    """Return the same model, with the same tensors, that merges `merge` patches in each block."""
    config = model.config
    if config.kind != "vit":
        raise ModelError("a ResNet has no tokens to merge: leave merging out")
    most = config.patches // 2
    if not 0 < merge <= most:
        raise ModelError(
            f"{merge} patches of {config.patches} can't be merged in a block: use 0 (none) to {most}"
        )
    if config.positions in PLACELESS:
        raise ModelError(
            f"a model with {config.positions} positions can't merge tokens: attention asks where each one is"
        )
    with torch.device("meta"):
        other = MergingTransformer(config, merge)
    other.load_state_dict(model.state_dict(), assign=True)
    other.build_codes()
    return other.train(model.training)


def pair_up(keys: Tensor, prefix: int, merge: int) -> Pairing:
    """Match every second patch with the one of the others that it is most like; merge the best pairs.

    `keys` (B, N, D/H) tell what a token is like. The prefix takes no part, and at least one patch of either
    half is left.
    """
    batch, tokens = keys.shape[:2]
    unit = F.normalize(keys[:, prefix:], dim=-1)
    likeness, nearest = (unit[:, ::2] @ unit[:, 1::2].mT).max(dim=-1)  # (B, N/2) each
    merge = min(merge, (tokens - prefix - 1) // 2)
    best = likeness.topk(merge, dim=1).indices
    joins, partner = prefix + 2 * best, prefix + 2 * nearest.gather(1, best) + 1
    staying = torch.ones(batch, tokens, dtype=torch.bool, device=keys.device).scatter(1, joins, False)
    place = staying.cumsum(dim=1) - 1
    into = place.gather(1, partner)
    stays = staying.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : tokens - merge]
    return Pairing(stays, joins, into, place.scatter(1, joins, into))


def join(x: Tensor, size: Tensor, pairing: Pairing) -> tuple[Tensor, Tensor]:
    """Return the tokens that are left, each the mean of its patches, and how many patches each stands for."""
    total = torch.cat([x * size, size], dim=-1)  # (B, N, D + 1)
    stays, joins, into = (each[..., None].expand(-1, -1, total.shape[-1]) for each in pairing[:3])
    total = total.gather(1, stays).scatter_add(1, into, total.gather(1, joins))
    return total[..., :-1] / total[..., -1:], total[..., -1:]
