"""Painting the patches that the encoder did not look at, from those that it did: the task of masked
autoencoders (arXiv 2111.06377), alone or beside labels.

Letters: B batch, N patches, V visible ones, D width, P patch, C channels.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from vitreous.data import Batch, draws
from vitreous.errors import OptionError
from vitreous.models import positions
from vitreous.models.architecture import ViTConfig
from vitreous.models.placed import Geometry
from vitreous.models.vit import Block, VisionTransformer
from vitreous.objectives import patches

EPSILON = 1e-6
"""Added to the variance of a patch's pixels: a patch of one colour has none."""
FLAT = 1e-2
"""The same beside labels, where mixing and erasing make many patches that are next to flat: their noise is
not worth painting."""


def look(model: VisionTransformer, batch: Batch, seen: int) -> tuple[Tensor, Tensor]:
    """Return the encoder's tokens (B, prefix + V, D) of some patches of each image, chosen at random, and the
    place of every patch in the random order, (B, N): the first V are looked at."""
    assert batch.words is not None
    places = draws.shuffled(model.config.patches, draws.MASK, batch.words)  # (B, N)
    kept = places.argsort(1)[:, :seen]  # (B, V)
    visible = model.select_patches(model.embed(batch.images), kept)
    return model.run_blocks(visible, model.geometry(kept=kept)), places


def wanted(images: Tensor, config: ViTConfig, epsilon: float = EPSILON) -> tuple[Tensor, Tensor, Tensor]:
    """Return each patch's normalised pixels (B, N, C·P·P), with their mean and deviation (B, N, 1)."""
    pixels = patches.cut(images, config.patch_size).flatten(2).float()
    mean, deviation = pixels.mean(-1, keepdim=True), (pixels.var(-1, keepdim=True) + epsilon).sqrt()
    return (pixels - mean) / deviation, mean, deviation


def error(
    painted: Tensor, images: Tensor, places: Tensor, seen: int, config: ViTConfig, epsilon: float = EPSILON
) -> Tensor:
    """Return how far off the patches that were not looked at are painted: an image's mean square, (B,)."""
    hidden = (places >= seen).float()  # (B, N)
    squares = (painted - wanted(images, config, epsilon)[0]).square().mean(-1)  # (B, N)
    return (squares * hidden).sum(1) / hidden.sum(1)


class Decoder(nn.Module):
    """A few narrow blocks that paint all patches from those that are seen; thrown away at the end."""

    grid_embed: Tensor  # (N, width)

    def __init__(self, encoder: ViTConfig, width: int, depth: int) -> None:
        super().__init__()
        if width % 4:
            raise OptionError(f"--decoder-width {width} is not a multiple of 4: give one, as 128")
        heads = next(heads for heads in (max(1, width // 32), 4, 2, 1) if width % heads == 0)
        shape = replace(
            encoder, width=width, depth=depth, heads=heads, mlp_width=4 * width, activation="gelu",
            positions="none", drop_path=0.0, layer_scale=None, dropout=0.0, attention_dropout=0.0,
        )  # fmt: skip
        self.embed = nn.Linear(encoder.width, width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        self.register_buffer("grid_embed", positions.sincos2d(encoder.grid, width), persistent=False)
        self.blocks = nn.ModuleList(Block(shape, 0.0) for _ in range(depth))
        self.norm = nn.LayerNorm(width, encoder.norm_eps)
        self.to_pixels = nn.Linear(width, encoder.in_channels * encoder.patch_size[0] * encoder.patch_size[1])
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, tokens: Tensor, places: Tensor, prefix: int) -> Tensor:
        """Return the pixels of all patches (B, N, C·P·P), from the encoder's tokens (B, prefix + V, D).

        `places` (B, N) says where each patch stands among the visible ones, followed by the hidden ones.
        """
        x = self.embed(tokens)
        hidden = self.mask_token.to(x.dtype).expand(len(x), places.shape[1] + prefix - x.shape[1], -1)
        x = patches.taken(torch.cat([x[:, prefix:], hidden], dim=1), places) + self.grid_embed
        x = torch.cat([self.embed(tokens[:, :prefix]), x], dim=1) if prefix else x
        for block in self.blocks:
            x = block(x, Geometry())
        return self.to_pixels(self.norm(x)[:, prefix:])


class Painter(nn.Module):
    """What a ViT that learns labels paints beside them: the patches that `patch_drop` leaves out.

    Its features then say what was there, and not only which class it was (after arXiv 2310.20704).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.decoder = Decoder(config, max(4, config.width // 8 * 4), depth=1)

    def forward(self, model: VisionTransformer, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits (B, K) from the patches that are looked at, and the error on the others, (B,)."""
        config, seen = model.config, model.config.trained_patches
        tokens, places = look(model, batch, seen)
        painted = self.decoder(model.fc_norm(tokens), places, config.prefix).float()
        return model.forward_head(tokens), error(painted, batch.images, places, seen, config, FLAT)
