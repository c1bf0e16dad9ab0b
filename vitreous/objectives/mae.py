"""Masked autoencoders (arXiv 2111.06377): a quarter of the patches is seen, and the rest is painted.

The encoder computes nothing for what it does not see, which makes it fast. No labels take part.

Letters: B batch, N patches, V visible ones, D width, P patch, C channels.
"""

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vitreous.config import Preprocessing
from vitreous.data import Batch, Dataset, draws
from vitreous.errors import OptionError
from vitreous.models import positions
from vitreous.models.architecture import ViTConfig
from vitreous.models.placed import Geometry
from vitreous.models.vit import Block, VisionTransformer
from vitreous.models.weights import Model
from vitreous.objectives import patches
from vitreous.objectives.unlabelled import Unlabelled

EPSILON = 1e-6
"""Added to the variance of a patch's pixels: a patch of one colour has none."""


class Settings(Protocol):
    """What this task needs of a plan."""

    @property
    def preprocessing(self) -> Preprocessing: ...
    @property
    def settings(self) -> dict[str, Any]: ...


def build(model: Model, plan: Settings, dataset: Dataset) -> "MaskedAutoencoder":
    """Return the task of `vitreous pretrain --objective mae`."""
    given = plan.settings
    return MaskedAutoencoder(
        patches.plain(model),
        plan.preprocessing,
        hidden=given["mask_ratio"],
        width=given["decoder_width"],
        depth=given["decoder_depth"],
        dataset=dataset,
    )


def seen_patches(config: ViTConfig, hidden: float) -> int:
    """Return how many patches of an image the encoder sees; refuse what can't be learned from."""
    if config.positions == "relative":
        raise OptionError(
            "mae drops patches, and relative positions need all of them: choose a --model with others"
        )
    count, ratio = config.patches, f"--mask-ratio {hidden:g}"
    seen = round((1.0 - hidden) * count)
    if count < 2:
        raise OptionError("mae needs 2 patches or more: use smaller patches or larger images")
    if seen == count:
        raise OptionError(f"{ratio} hides none of the {count} patches: give a larger one")
    if seen == 0:
        raise OptionError(
            f"{ratio} leaves none of the {count} patches to see: give a smaller one, or use smaller patches"
        )
    if config.in_channels * config.patch_size[0] * config.patch_size[1] == 1:
        raise OptionError(
            "mae normalises each patch by the deviation of its pixels, and one gray pixel has none: "
            "use larger patches, or --objective masked"
        )
    return seen


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


class MaskedAutoencoder(Unlabelled):
    """Paint what is hidden; each patch's pixels are normalised by its own mean and deviation."""

    whole_passes = False

    def __init__(
        self,
        model: VisionTransformer,
        preprocessing: Preprocessing,
        *,
        hidden: float = 0.75,
        width: int = 96,
        depth: int = 2,
        dataset: Dataset | None = None,
    ) -> None:
        super().__init__(model, preprocessing, dataset)
        self.seen = seen_patches(model.config, hidden)
        """How many patches of an image the encoder sees."""
        self.decoder = Decoder(model.config, width, depth)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        painted, places = self.paint(batch)
        hidden = (places >= self.seen).float()  # (B, N)
        losses = (painted - self.wanted(batch.images)[0]).square().mean(-1)  # (B, N)
        return ((losses * hidden).sum(1) / hidden.sum(1)).sum() / max(1, len(losses)), {}

    def paint(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the painted patches (B, N, C·P·P), and the place of each in the random order, (B, N)."""
        model, prefix = self.vit, self.vit.config.prefix
        assert batch.words is not None
        places = draws.shuffled(model.config.patches, draws.MASK, batch.words)  # (B, N)
        kept = places.argsort(1)[:, : self.seen]  # (B, V)
        visible = model.select_patches(model.embed(batch.images), kept)
        x = patches.encode(model, visible, model.geometry(kept=kept))
        return self.decoder(x, places, prefix).float(), places

    def wanted(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each patch's normalised pixels (B, N, C·P·P), with their mean and deviation (B, N, 1)."""
        pixels = patches.cut(images, self.vit.config.patch_size).flatten(2).float()
        mean, deviation = pixels.mean(-1, keepdim=True), (pixels.var(-1, keepdim=True) + EPSILON).sqrt()
        return (pixels - mean) / deviation, mean, deviation

    @torch.no_grad()
    def preview(self, batch: Batch) -> list[tuple[str, Tensor]]:
        """Return images as they are, as the encoder sees them, and with what is painted.

        Mean and deviation of a painted patch are the image's own: they are not predicted."""
        config = self.vit.config
        painted, places = self.paint(batch)
        _, mean, deviation = self.wanted(batch.images)
        cells = patches.cut(batch.images, config.patch_size)  # (B, N, C, P, P)
        guessed = (painted * deviation + mean).unflatten(-1, cells.shape[2:])
        hidden, gray = places >= self.seen, ((0.5 - self.mean) / self.std).expand_as(cells)
        pictures = (
            ("image", cells),
            ("what is seen", patches.where(hidden, gray, cells)),
            ("painted", patches.where(hidden, guessed, cells)),
        )
        return [(title, self.visible(patches.joined(each, config))) for title, each in pictures]
