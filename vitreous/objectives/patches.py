"""Images as patches and back, for tasks that hide some of them.

Letters: B batch, N patches, D width, P patch, C channels.
"""

import torch
from torch import Tensor

from vitreous.errors import OptionError
from vitreous.models.architecture import Architecture, ViTConfig
from vitreous.models.placed import Geometry
from vitreous.models.vit import VisionTransformer
from vitreous.models.weights import Model


def plain(model: Model) -> VisionTransformer:
    """Return the model if patches can be hidden from it; else refuse it."""
    require_plain(model.config)
    assert isinstance(model, VisionTransformer)
    return model


def require_plain(config: Architecture) -> ViTConfig:
    """Return the configuration of a model from which patches can be hidden; refuse any other."""
    if not isinstance(config, ViTConfig) or config.stem is not None:
        raise OptionError(
            "patches can only be hidden from a plain ViT, which cuts them out of the image: "
            "choose another --model, or --objective dino"
        )
    if config.frames is not None:
        raise OptionError("videos can't be pre-trained on: choose a --model for images")
    if config.pooling == "map":
        raise OptionError(
            "a ViT that pools by attention would not learn to do so from its patches: "
            "choose a --model that pools by its class token or the mean, or --objective dino"
        )
    return config


def encode(model: VisionTransformer, tokens: Tensor, geometry: Geometry | None = None) -> Tensor:
    """Return the encoder's tokens, from z_0: normalised, even where the model's norm comes after pooling."""
    return model.fc_norm(model.run_blocks(tokens, geometry or model.geometry()))


def cut(images: Tensor, patch: tuple[int, int]) -> Tensor:  # (B, C, H, W) → (B, N, C, P, P)
    """Cut images into patches, row by row."""
    batch, channels, height, width = images.shape
    rows, columns = height // patch[0], width // patch[1]
    cells = images.reshape(batch, channels, rows, patch[0], columns, patch[1])
    return cells.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def joined(cells: Tensor, config: ViTConfig) -> Tensor:  # (B, N, C, P, P) → (B, C, H, W)
    """Put patches together again."""
    return cells.unflatten(1, config.grid).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def where(chosen: Tensor, cells: Tensor, others: Tensor) -> Tensor:  # (B, N), (B, N, C, P, P) twice
    """Return the chosen patches of `cells`, and the rest of `others`."""
    return torch.where(chosen[:, :, None, None, None], cells, others)


def taken(rows: Tensor, places: Tensor) -> Tensor:  # (B, N, …), (B, n) → (B, n, …)
    """Return the rows at these places of each image."""
    flat = rows.flatten(2)
    return flat.gather(1, places[..., None].expand(-1, -1, flat.shape[2])).unflatten(2, rows.shape[2:])
