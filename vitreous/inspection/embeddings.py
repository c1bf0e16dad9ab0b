"""What the weights show by themselves: the filters of the patch embedding, and where positions are alike.

Figure 7 of the paper, left and centre. Letters: D width, P patch, C channels, (h, w) grid.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.inspection.attention import bare, blocks_of, unwrap
from vitreous.models.resnet import StdConv2d
from vitreous.models.vit import VisionTransformer
from vitreous.models.weights import Model

COMPONENTS = 28


class Filters(NamedTuple):
    """The principal components of the first filters."""

    tiles: np.ndarray  # (n, P, P, 3) or (n, P, P, 1), each scaled to [0, 1] with 0 at 0.5
    variance: np.ndarray  # (n,) share of the filters' variance that each explains
    about: str


class Similarity(NamedTuple):
    """How alike any two places are to the model."""

    values: np.ndarray  # (h, w, h, w), cosines
    about: str


@torch.no_grad()
def filters(model: nn.Module, count: int = COMPONENTS) -> Filters:
    """Return the first principal components of the embedding filters (figure 7, left), or of a hybrid's root.

    The filters are the rows of a matrix (D, C·P·P); its columns are centred, and the right singular vectors
    are the components. A component's sign is free: its largest entry is made positive.
    """
    weight, about = _first_filters(bare(model))
    if weight.ndim == 5:  # (D, C, T, P, P): a tubelet
        weight, about = weight.mean(dim=2), f"{about}, mean over the tubelet's frames"
    channels = weight.shape[1]
    matrix = weight.double().flatten(1)
    centred = matrix - matrix.mean(dim=0)
    _, values, components = torch.linalg.svd(centred, full_matrices=False)
    share = values.square() / values.square().sum().clamp(min=1e-30)
    components = components[:count]
    largest = components.abs().argmax(dim=1, keepdim=True)
    components = components * components.gather(1, largest).sign()
    tiles = components.unflatten(1, weight.shape[1:])
    if channels not in (1, 3):
        tiles, about = tiles.mean(dim=1, keepdim=True), f"{about}, mean of {channels} channels"
    scale = tiles.abs().amax(dim=(1, 2, 3), keepdim=True).clamp(min=1e-30)
    pictures = (tiles / scale / 2 + 0.5).permute(0, 2, 3, 1)
    return Filters(_array(pictures), _array(share[:count]), about)


def _first_filters(model: Model) -> tuple[Tensor, str]:
    """Return the filters that see pixels, as they are used."""
    first = model.get_submodule(model.config.first_convolution)
    if isinstance(first, StdConv2d):
        return first.standardized(), "standardised filters of the root convolution"
    assert isinstance(first.weight, Tensor)
    return first.weight, "patch embedding"


@torch.no_grad()
def position_similarity(model: nn.Module) -> Similarity | None:
    """Return the cosine similarity of each position with all (figure 7, centre); None without positions.

    Learned, factorised and sinusoidal positions are vectors added to the patches: these are compared.
    Relative ones have a vector per offset: each is compared with that of no offset, mean over layers. Rotary
    ones turn queries and keys: the mean cosine of the angles between two places.
    """
    if not bare(model).config.has_attention:
        return None
    vit = unwrap(model)
    config = vit.config
    if config.positions == "none":
        return None
    kind, grid = config.positions, config.grid
    if kind == "relative":
        return Similarity(_relative(vit), "offset embedding against that of no offset, mean over layers")
    if kind == "rope":
        codes = torch.cat([vit.cosine, vit.sine], dim=1)[config.prefix :]
        about = "mean cosine of the rotation between two places"
    elif kind == "sincos2d":
        codes, about = vit.grid_embed, "fixed sinusoidal positions"
    elif kind == "learned2d":
        rows = vit.pos_embed_y[0, :, None].expand(-1, grid[1], -1)
        columns = vit.pos_embed_x[0, None].expand(grid[0], -1, -1)
        codes, about = torch.cat([rows, columns], dim=-1).flatten(0, 1), "learned rows and columns, together"
    else:
        codes, about = vit.pos_embed[0, config.placed_prefix :], "learned positions"
        if config.time_steps > 1:
            codes, about = codes[: grid[0] * grid[1]], "learned positions, first frame"
    units = torch.nn.functional.normalize(codes.double(), dim=1)
    return Similarity(_array(units @ units.mT).reshape(*grid, *grid), about)


def _relative(vit: VisionTransformer) -> np.ndarray:
    config = vit.config
    patches = vit.offsets[config.prefix :, config.prefix :]  # (N, N) rows of the table
    nothing = patches[0, 0]
    total = torch.zeros(patches.shape, dtype=torch.float64, device=patches.device)
    for block in blocks_of(vit):
        units = torch.nn.functional.normalize(block.attn.offset_embed.double(), dim=1)
        total += (units @ units[nothing])[patches]
    return _array(total / config.depth).reshape(*config.grid, *config.grid)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
