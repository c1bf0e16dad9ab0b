"""All of a training batch's augmentation as one function of device tensors, for `torch.compile` or a CUDA
graph; the words that it draws from are made beforehand.

Its shapes are known in advance and nothing in it waits for the device. Images and targets are those that
`pipeline` and `host` make on the host, up to the rounding of resampled pixels.

B batch, C channels, H and W the model's size. R rows: the rank's own B images, then other ranks' images that
some of them are mixed with.
"""

import torch
from torch import Tensor, nn

from vitreous.config import Augment, Preprocessing
from vitreous.data import device_boxes, variation
from vitreous.data.augment import ATTEMPTS, CROP, ERASE, FLIP, MIX, OPERATE
from vitreous.data.device_operations import operate, strengths
from vitreous.data.device_store import Store
from vitreous.data.draws import COLOR, GEOMETRY, NOISE, as_uniforms, as_uniforms32, noise, words
from vitreous.data.mix import ERASE_DRAWS, MIX_DRAWS
from vitreous.data.operations import draws_needed
from vitreous.data.resample import weights

WORKSPACE = 1 << 28
"""Bytes of float32 pixels that a crop works on at a time."""


class BatchAugment(nn.Module):
    """Turns stored pixels into an augmented batch; holds settings and constants, never a random state."""

    purposes: Tensor
    numbers: Tensor
    scale: Tensor
    shift: Tensor
    strengths: Tensor
    mixup: Tensor
    cutmix: Tensor
    mixed: Tensor
    """Whether images are mixed: a number on the device, so that a change recompiles or records nothing."""

    def __init__(self, augment: Augment, preprocessing: Preprocessing, classes: int, seed: int = 0) -> None:
        """`classes` is the length of a mixed target."""
        super().__init__()
        self.augment, self.preprocessing, self.classes, self.seed = augment, preprocessing, classes, seed
        mean, std = (torch.tensor(x, dtype=torch.float64) for x in (preprocessing.mean, preprocessing.std))
        self.counts = draw_counts(augment)
        pairs = [(purpose, number) for purpose, count in self.counts.items() for number in range(count)]
        self.register_buffer("purposes", torch.tensor([purpose for purpose, _ in pairs]))
        self.register_buffer("numbers", torch.tensor([number for _, number in pairs]))
        self.register_buffer("scale", (1 / (255 * std)).float()[:, None, None])
        self.register_buffer("shift", (mean / std).float()[:, None, None])
        self.register_buffer("strengths", strengths(augment.randaugment[1]))
        self.register_buffer("mixup", device_boxes.beta_table(augment.mixup))
        self.register_buffer("cutmix", device_boxes.beta_table(augment.cutmix))
        self.register_buffer("mixed", torch.ones((), dtype=torch.float64))

    def draw(self, epoch: int, indices: Tensor, copies: Tensor) -> tuple[Tensor, Tensor]:
        """Return the words that all draws are made of, int64 (…, D), and those of the images' noise, (…).

        Not compiled: hashes of hashes that are inlined into every kernel take minutes to compile.
        """
        hashed = words(self.seed, epoch, indices, copies)
        return words(self.purposes, self.numbers, after=hashed[..., None]), words(NOISE, after=hashed)

    def forward(
        self,
        store: Store,
        labels: Tensor,
        indices: Tensor,
        drawn: tuple[Tensor, Tensor],
        partner: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return images float32 (B, C, H, W) and targets, int64 (B,) or float32 (B, K).

        `labels` are the split's, (N,) or (N, K). `indices` are (R,), `drawn` what `draw` returned for them,
        `partner` (B,) says with which row each image is mixed; None: with none.
        """
        draws = dict(zip(self.counts, drawn[0].split(list(self.counts.values()), dim=1), strict=True))
        images = self._pixels(store, indices, draws)
        if OPERATE in draws:
            images = operate(images, self.augment, as_uniforms(draws[OPERATE]), self.strengths)
        images = variation.vary(
            images,
            self.augment,
            {each: as_uniforms32(draws[each]) for each in (GEOMETRY, COLOR) if each in draws},
        )
        pixels = images * self.scale - self.shift
        if ERASE in draws:
            size = self.preprocessing.image_size
            boxes = device_boxes.erase_boxes(as_uniforms(draws[ERASE]), self.augment.erase, *size)
            hidden = noise((self.preprocessing.channels, *size), drawn[1])
            pixels = torch.where(device_boxes.inside(boxes, *size), hidden, pixels)
        targets = labels[indices]
        if partner is None:
            return pixels, targets
        return self._mixed(pixels, targets, partner, as_uniforms(draws[MIX][: len(partner)]))

    def _pixels(self, store: Store, indices: Tensor, draws: dict[int, Tensor]) -> Tensor:
        """Return uint8 (R, C, H, W): the stored pixels, cropped where that is set, and mirrored."""
        flip = as_uniforms(draws[FLIP])[:, 0] < self.augment.flip
        if CROP not in draws:
            images = store.pixels[indices]
            return mirrored(images, store.sizes[indices, 1], flip)
        heights, widths = store.sizes[indices].unbind(1)
        attempts = as_uniforms(draws[CROP]).unflatten(1, (ATTEMPTS, 4))
        boxes = device_boxes.crop_boxes(heights, widths, self.augment, attempts)
        boxes = store.placed(boxes, indices)
        each = self.preprocessing.channels * store.canvas[0] * store.canvas[1] * 4
        parts = zip(*(x.split(max(1, WORKSPACE // each)) for x in (indices, boxes, flip)), strict=True)
        size, interpolation = self.preprocessing.image_size, self.preprocessing.interpolation
        return torch.cat([crop_resize(store.gather(i), b, f, size, interpolation) for i, b, f in parts])

    def _mixed(
        self, pixels: Tensor, targets: Tensor, partner: Tensor, draws: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mix the rank's own images with their partners: a share of both, or a rectangle of the other."""
        count, (height, width) = len(partner), pixels.shape[2:]
        tables = self.mixup, self.cutmix
        own, boxes = device_boxes.mix_shares(self.augment, draws, height, width, *tables, self.mixed)
        blend = torch.where(boxes[:, 2] * boxes[:, 3] > 0, 1.0, own).float()[:, None, None, None]
        ours, theirs = pixels[:count], pixels[partner]
        cut = device_boxes.inside(boxes, height, width)
        mixed = torch.where(cut, theirs, theirs + blend * (ours - theirs))
        soft = self._soft(targets)
        return mixed, soft[partner] + own.float()[:, None] * (soft[:count] - soft[partner])

    def _soft(self, targets: Tensor) -> Tensor:
        """Return targets as float32 (R, K). torch's `one_hot` would read the values, and so wait."""
        if targets.ndim == 2:
            return targets
        return (targets[:, None] == torch.arange(self.classes, device=targets.device)).float()


def draw_counts(augment: Augment) -> dict[int, int]:
    """Return how many draws an image needs, by what they are for."""
    needed = {
        FLIP: 1,
        CROP: 0 if augment.crop_scale is None else ATTEMPTS * 4,
        OPERATE: draws_needed(augment),
        GEOMETRY: variation.GEOMETRY_DRAWS if augment.geometry > 0 else 0,
        COLOR: variation.COLOR_DRAWS if augment.color > 0 else 0,
        ERASE: ERASE_DRAWS if augment.erase > 0 else 0,
        MIX: MIX_DRAWS if augment.mixup > 0 or augment.cutmix > 0 else 0,
    }
    return {purpose: count for purpose, count in needed.items() if count}


def crop_resize(
    images: Tensor, boxes: Tensor, flip: Tensor, size: tuple[int, int], interpolation: str
) -> Tensor:
    """Crop and resize as `resample.crop_resize` does, with boxes and flips that are on the device."""
    across = weights(boxes[:, 1], boxes[:, 3], images.shape[3], size[1], interpolation)  # (B, w, W)
    down = weights(boxes[:, 0], boxes[:, 2], images.shape[2], size[0], interpolation)  # (B, h, H)
    across = torch.where(flip[:, None, None], across.flip(1), across)
    lines = images.float().flatten(1, 2)  # (B, C·H, W)
    rows = torch.bmm(lines, across.transpose(1, 2)).view(*images.shape[:3], size[1])  # (B, C, H, w)
    return _rounded(torch.matmul(down[:, None], _rounded(rows))).to(torch.uint8)


def _rounded(values: Tensor) -> Tensor:
    return (values + 0.5).floor().clamp(0, 255)


def mirrored(images: Tensor, widths: Tensor, flip: Tensor) -> Tensor:
    """Mirror images where `flip` says so, each within its width: padding stays where masks have it."""
    places = torch.arange(images.shape[3], device=images.device)
    turn = flip[:, None] & (places < widths[:, None])
    return images.take_along_dim(torch.where(turn, widths[:, None] - 1 - places, places)[:, None, None], 3)
