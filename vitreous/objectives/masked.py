"""The paper's masked patch prediction (appendix B.1.2): half of the patches are hidden, and what they show is
predicted from the others. No labels take part.

Letters: B batch, N patches, D width, P patch, C channels, K colours of 3 bits for each channel.
"""

from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import Preprocessing
from vitreous.data import Batch, Dataset, draws
from vitreous.errors import OptionError
from vitreous.models.architecture import ViTConfig
from vitreous.models.vit import VisionTransformer
from vitreous.models.weights import Model
from vitreous.objectives import patches
from vitreous.objectives.unlabelled import Unlabelled

Target = Literal["color", "small", "pixels"]
CORRUPTED = 0.5
"""Share of the patches that are corrupted; they alone count towards the loss."""
HIDDEN, EXCHANGED = 0.8, 0.1
"""Shares of the corrupted patches that are hidden, and that show another patch; the rest stay as they are."""
LEVELS = 8
"""3 bits."""
SMALL = 4
"""Side of the downsized patch that `small` predicts."""
MOST_VALUES = 1 << 18
"""Numbers predicted for a patch, at most: 3 bits of many channels are more colours than fit into memory."""


class Settings(Protocol):
    """What this task needs of a plan."""

    @property
    def preprocessing(self) -> Preprocessing: ...
    @property
    def settings(self) -> dict[str, Any]: ...


def build(model: Model, plan: Settings, dataset: Dataset) -> "Masked":
    """Return the task of `vitreous pretrain --objective masked`."""
    return Masked(patches.plain(model), plan.preprocessing, target=plan.settings["target"], dataset=dataset)


def predicted_values(config: ViTConfig, target: Target) -> int:
    """Return how many numbers are predicted for each patch; refuse what can't be learned from."""
    if config.patches < 2:  # half of one is none
        raise OptionError("masked needs 2 patches or more: use smaller patches or larger images")
    if target == "pixels":
        return config.in_channels * config.patch_size[0] * config.patch_size[1]
    colors = LEVELS**config.in_channels
    values = colors if target == "color" else SMALL * SMALL * colors
    if values > MOST_VALUES:
        raise OptionError(
            f"--target {target} tells {colors:,} colours of {config.in_channels} channels apart, which are "
            "too many: add --target pixels"
        )
    return values


class Masked(Unlabelled):
    """Predict the colours of patches that the model does not see.

    `color`: a patch's mean colour, of 3 bits for each channel (512 classes); `small`: the same for each pixel
    of the patch downsized to 4 × 4; `pixels`: all of its pixels, by squared error.
    """

    def __init__(
        self,
        model: VisionTransformer,
        preprocessing: Preprocessing,
        *,
        target: Target = "color",
        dataset: Dataset | None = None,
    ) -> None:
        super().__init__(model, preprocessing, dataset)
        self.target: Target = target
        config = model.config
        self.colors = LEVELS**config.in_channels
        self.mask_token = nn.Parameter(torch.empty(1, 1, config.width))
        self.to_target = nn.Linear(config.width, predicted_values(config, target))
        nn.init.trunc_normal_(self.mask_token, std=0.02)
        nn.init.trunc_normal_(self.to_target.weight, std=0.02)
        nn.init.zeros_(self.to_target.bias)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        order, tokens = self.see(batch)
        # (B, n): all others have no loss
        corrupted = order.argsort(1)[:, : round(CORRUPTED * order.shape[1])]
        cells = patches.taken(patches.cut(batch.images, self.vit.config.patch_size), corrupted)
        predicted = self.to_target(patches.taken(tokens, corrupted)).float()
        losses, right = self.losses(predicted, cells)  # (B, n) each
        images = max(1, len(losses))
        metrics = {} if right is None else {"color_accuracy": right.mean(1).sum() / images}
        return losses.mean(1).sum() / images, metrics

    def see(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the random order of the patches (B, N), corrupted ones first, and their tokens (B, N, D)."""
        model = self.vit
        embedded = model.patch_embed(batch.images)  # (B, N, D)
        order, other = drawn(batch, embedded.shape[1])
        _, hidden, exchanged = corruption(order)
        seen = torch.where(hidden[..., None], self.mask_token.to(embedded.dtype), embedded)
        seen = torch.where(exchanged[..., None], patches.taken(embedded, other), seen)
        return order, patches.encode(model, model.place(seen))[:, model.config.prefix :]

    def losses(self, predicted: Tensor, cells: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the loss of each patch, given its normalised pixels (B, n, C, P, P), and the share of its
        colours that are right, if colours are the target; (B, n) each."""
        if self.target == "pixels":
            return (predicted - cells.flatten(2)).square().mean(-1), None
        side = 1 if self.target == "color" else SMALL
        wanted = colors(self.visible(cells), side)  # (B, n, side²)
        logits = predicted.unflatten(-1, (side * side, self.colors))
        losses = F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none")
        right = (logits.detach().argmax(-1) == wanted).float().mean(-1)
        return losses.view_as(wanted).mean(-1), right

    @torch.no_grad()
    def preview(self, batch: Batch) -> list[tuple[str, Tensor]]:
        """Return images as they are, with what is hidden in gray, and with what is predicted in its place."""
        config = self.vit.config
        order, tokens = self.see(batch)
        corrupted, hidden, _ = corruption(order)
        cells = patches.cut(batch.images, config.patch_size)  # (B, N, C, P, P)
        gray = ((0.5 - self.mean) / self.std).expand_as(cells)
        guessed = self.painted(self.to_target(tokens).float())
        pictures = (
            ("image", cells),
            ("what is seen", patches.where(hidden, gray, cells)),
            ("prediction", patches.where(corrupted, guessed, cells)),
        )
        return [(title, self.visible(patches.joined(each, config))) for title, each in pictures]

    def painted(self, predicted: Tensor) -> Tensor:  # (B, N, values) → (B, N, C, P, P)
        """Return predictions as normalised pixels; a colour as the middle of what it stands for."""
        config = self.vit.config
        if self.target == "pixels":
            return predicted.unflatten(-1, (config.in_channels, *config.patch_size))
        side = 1 if self.target == "color" else SMALL
        best = predicted.unflatten(-1, (side * side, self.colors)).argmax(-1)  # (B, N, side²)
        small = middle_of(best, config.in_channels).unflatten(2, (side, side)).movedim(-1, 2)
        large = F.interpolate(small.flatten(0, 1), size=config.patch_size, mode="nearest")
        return (large.unflatten(0, small.shape[:2]) - self.mean) / self.std


def drawn(batch: Batch, count: int) -> tuple[Tensor, Tensor]:
    """Return a random order of each image's patches, and for each patch another one; both (B, N)."""
    assert batch.words is not None
    order = draws.shuffled(count, draws.MASK, batch.words)
    shift = (draws.uniforms32(count, draws.EXCHANGE, after=batch.words) * (count - 1)).long() + 1
    return order, (torch.arange(count, device=shift.device) + shift) % count


def corruption(order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return which patches are corrupted, which of these are hidden, and which show another one; (B, N)."""
    count = order.shape[1]
    corrupted = round(CORRUPTED * count)
    hidden = round(HIDDEN * corrupted)
    exchanged = round((HIDDEN + EXCHANGED) * corrupted)
    return order < corrupted, order < hidden, (hidden <= order) & (order < exchanged)


def colors(pixels: Tensor, side: int) -> Tensor:  # (B, N, C, P, P) → int64 (B, N, side²)
    """Return the colour, of 3 bits for each channel, of a patch that is downsized to side × side."""
    small = F.adaptive_avg_pool2d(pixels.flatten(0, 1), side).unflatten(0, pixels.shape[:2])
    levels = (small * LEVELS).floor().clamp(0, LEVELS - 1).long()  # (B, N, C, side, side)
    number = levels[:, :, 0]
    for channel in range(1, levels.shape[2]):
        number = number * LEVELS + levels[:, :, channel]
    return number.flatten(2)


def middle_of(numbers: Tensor, channels: int) -> Tensor:
    """Return the colours (…, C) in 0 to 1 that numbers of `colors` stand for: the middle of their range."""
    powers = LEVELS ** torch.arange(channels - 1, -1, -1, device=numbers.device)
    return (numbers[..., None] // powers % LEVELS + 0.5) / LEVELS
