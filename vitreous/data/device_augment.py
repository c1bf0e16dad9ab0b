"""All of a training batch's augmentation as one function of device tensors, for `torch.compile` or a CUDA
graph.

Its shapes are known beforehand and nothing in it waits for the device. Images and targets are those that
`pipeline` and `loader` make on the host, up to the rounding of resampled pixels.

B batch, C channels, H and W the model's size. R rows: the rank's own B images, then partners that other ranks
own and that some of them are mixed with.
"""

import torch
from torch import Tensor, nn

from vitreous.config import Augment, Preprocessing
from vitreous.data import device_boxes
from vitreous.data.augment import ATTEMPTS, CROP, ERASE, FLIP, MIX, OPERATE
from vitreous.data.device_operations import operate, strengths
from vitreous.data.device_store import Store
from vitreous.data.draws import noise, uniforms
from vitreous.data.mix import ERASE_DRAWS, MIX_DRAWS
from vitreous.data.operations import draws_needed
from vitreous.data.resample import weights
from vitreous.data.variation import vary

WORKSPACE = 1 << 28
"""Bytes of float32 pixels that a crop works on at a time."""


class BatchAugment(nn.Module):
    """Turns stored pixels into an augmented batch; holds settings and constants, never a random state."""

    scale: Tensor
    shift: Tensor
    strengths: Tensor
    mixup: Tensor
    cutmix: Tensor

    def __init__(self, augment: Augment, preprocessing: Preprocessing, classes: int, seed: int = 0) -> None:
        """`classes` is the length of a mixed target."""
        super().__init__()
        self.augment, self.preprocessing, self.classes, self.seed = augment, preprocessing, classes, seed
        mean, std = (torch.tensor(x, dtype=torch.float64) for x in (preprocessing.mean, preprocessing.std))
        self.register_buffer("scale", (1 / (255 * std)).float()[:, None, None])
        self.register_buffer("shift", (mean / std).float()[:, None, None])
        self.register_buffer("strengths", strengths(augment.randaugment[1]))
        self.register_buffer("mixup", device_boxes.beta_table(augment.mixup))
        self.register_buffer("cutmix", device_boxes.beta_table(augment.cutmix))

    def forward(
        self,
        store: Store,
        labels: Tensor,
        indices: Tensor,
        copies: Tensor,
        epoch: Tensor,
        partner: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return images float32 (B, C, H, W) and targets, int64 (B,) or float32 (B, K).

        `labels` are the split's, (N,) or (N, K). `indices` and `copies` are (R,), `epoch` is 0-dimensional,
        `partner` (B,) says with which row each image is mixed; None: with none.
        """
        keys = (self.seed, epoch, indices, copies)
        images = self._pixels(store, indices, keys)
        if draws_needed(self.augment):
            draws = uniforms(draws_needed(self.augment), *keys, OPERATE)
            images = operate(images, self.augment, draws, self.strengths)
        images = vary(images, self.augment, self.seed, epoch, indices, copies)
        pixels = images * self.scale - self.shift
        if self.augment.erase > 0:
            pixels = self._erased(pixels, keys)
        targets = labels[indices]
        return (pixels, targets) if partner is None else self._mixed(pixels, targets, partner, keys)

    def _pixels(self, store: Store, indices: Tensor, keys: tuple[int | Tensor, ...]) -> Tensor:
        """Return uint8 (R, C, H, W): the stored pixels, cropped where that is set, and mirrored."""
        flip = uniforms(1, *keys, FLIP)[:, 0] < self.augment.flip
        if self.augment.crop_scale is None:
            images = store.pixels[indices]
            return torch.where(flip[:, None, None, None], images.flip(3), images)
        heights, widths = store.sizes[indices].unbind(1)
        draws = uniforms(ATTEMPTS * 4, *keys, CROP).unflatten(1, (ATTEMPTS, 4))
        boxes = store.placed(device_boxes.crop_boxes(heights, widths, self.augment, draws), indices)
        each = self.preprocessing.channels * store.canvas[0] * store.canvas[1] * 4
        parts = zip(*(x.split(max(1, WORKSPACE // each)) for x in (indices, boxes, flip)), strict=True)
        size, interpolation = self.preprocessing.image_size, self.preprocessing.interpolation
        return torch.cat([crop_resize(store.gather(i), b, f, size, interpolation) for i, b, f in parts])

    def _erased(self, pixels: Tensor, keys: tuple[int | Tensor, ...]) -> Tensor:
        boxes = device_boxes.erase_boxes(
            uniforms(ERASE_DRAWS, *keys, ERASE), self.augment.erase, *pixels.shape[2:]
        )
        return torch.where(
            device_boxes.inside(boxes, *pixels.shape[2:]), noise(pixels.shape[1:], *keys), pixels
        )

    def _mixed(
        self, pixels: Tensor, targets: Tensor, partner: Tensor, keys: tuple[int | Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """Mix the rank's own images with their partners: a share of both, or a rectangle of the other."""
        count, (height, width) = len(partner), pixels.shape[2:]
        draws = uniforms(MIX_DRAWS, *keys, MIX)[:count]
        own, boxes = device_boxes.mix_shares(self.augment, draws, height, width, self.mixup, self.cutmix)
        blend = torch.where(boxes[:, 2] * boxes[:, 3] > 0, 1.0, own).float()[:, None, None, None]
        ours, theirs = pixels[:count], pixels[partner]
        cut = device_boxes.inside(boxes, height, width)
        mixed = torch.where(cut, theirs, theirs + blend * (ours - theirs))
        soft = self._soft(targets)
        return mixed, soft[partner] + own.float()[:, None] * (soft[:count] - soft[partner])

    def _soft(self, targets: Tensor) -> Tensor:
        """Return targets as float32 (R, K). torch's `one_hot` would look at the values, and so wait."""
        if targets.ndim == 2:
            return targets
        return (targets[:, None] == torch.arange(self.classes, device=targets.device)).float()


def crop_resize(
    images: Tensor, boxes: Tensor, flip: Tensor, size: tuple[int, int], interpolation: str
) -> Tensor:
    """Do as `resample.crop_resize`, with boxes and mirroring that are on the device."""
    across = weights(boxes[:, 1], boxes[:, 3], images.shape[3], size[1], interpolation)  # (B, w, W)
    down = weights(boxes[:, 0], boxes[:, 2], images.shape[2], size[0], interpolation)  # (B, h, H)
    across = torch.where(flip[:, None, None], across.flip(1), across)
    lines = images.float().flatten(1, 2)  # (B, C·H, W)
    rows = torch.bmm(lines, across.transpose(1, 2)).view(*images.shape[:3], size[1])  # (B, C, H, w)
    return _rounded(torch.matmul(down[:, None], _rounded(rows))).to(torch.uint8)


def _rounded(values: Tensor) -> Tensor:
    return (values + 0.5).floor().clamp(0, 255)
