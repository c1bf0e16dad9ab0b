"""Masked autoencoders (arXiv 2111.06377): a quarter of the patches is seen, and the rest is painted.

The encoder computes nothing for what it does not see, which makes it fast. No labels take part.

Letters: B batch, N patches, V visible ones, D width, P patch, C channels.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from vitreous.config import Preprocessing
from vitreous.data import Batch, Dataset
from vitreous.errors import OptionError
from vitreous.models.architecture import ViTConfig
from vitreous.models.vit import VisionTransformer
from vitreous.models.weights import Model
from vitreous.objectives import painting, patches
from vitreous.objectives.painting import Decoder
from vitreous.objectives.unlabelled import Unlabelled


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
        losses = painting.error(painted, batch.images, places, self.seen, self.vit.config)
        return losses.sum() / max(1, len(losses)), {}

    def paint(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the painted patches (B, N, C·P·P), and the place of each in the random order, (B, N)."""
        tokens, places = painting.look(self.vit, batch, self.seen)
        x = self.vit.fc_norm(tokens)  # normalised, even where the model's norm comes after pooling
        return self.decoder(x, places, self.vit.config.prefix).float(), places

    @torch.no_grad()
    def preview(self, batch: Batch) -> list[tuple[str, Tensor]]:
        """Return images as they are, as the encoder sees them, and with what is painted.

        Mean and deviation of a painted patch are the image's own: they are not predicted."""
        config = self.vit.config
        painted, places = self.paint(batch)
        _, mean, deviation = painting.wanted(batch.images, config)
        cells = patches.cut(batch.images, config.patch_size)  # (B, N, C, P, P)
        guessed = (painted * deviation + mean).unflatten(-1, cells.shape[2:])
        hidden, gray = places >= self.seen, ((0.5 - self.mean) / self.std).expand_as(cells)
        pictures = (
            ("image", cells),
            ("what is seen", patches.where(hidden, gray, cells)),
            ("painted", patches.where(hidden, guessed, cells)),
        )
        return [(title, self.visible(patches.joined(each, config))) for title, each in pictures]
