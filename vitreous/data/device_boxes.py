"""Crops, erased rectangles and mixing shares of a batch as device tensors: the boxes that `augment` and `mix`
draw with numpy, in a fixed number of operations whose shapes depend on no value.

B batch. A box is (top, left, height, width), int64, one row per image.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from vitreous.config import Augment

CELLS = 1 << 14
"""Cells of the table that stands for a Beta distribution's quantiles."""


def _first_fitting(fits: Tensor, *columns: Tensor) -> Tensor:
    """Return (B, len(columns)): each column's value at the first attempt of (B, attempts) that fits."""
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    return torch.cat([column.gather(1, first) for column in columns], dim=1)


def crop_boxes(heights: Tensor, widths: Tensor, augment: Augment, draws: Tensor) -> Tensor:
    """Return each image's Inception crop, as `augment.crop_boxes` does; `draws` is (B, attempts, 4)."""
    assert augment.crop_scale is not None
    low, high = augment.crop_scale
    narrow, wide = (float(np.log(ratio)) for ratio in augment.crop_ratio)
    H, W = heights.double()[:, None], widths.double()[:, None]
    area = H * W * (low + (high - low) * draws[..., 0])
    aspect = (narrow + (wide - narrow) * draws[..., 1]).exp()
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()  # (B, attempts)
    fits = (w > 0) & (w <= W) & (h > 0) & (h <= H)
    top, left = (draws[..., 2] * (H - h + 1)).floor(), (draws[..., 3] * (W - w + 1)).floor()
    boxes = _first_fitting(fits, top, left, h, w).long()
    return torch.where(fits.any(1, keepdim=True), boxes, _centred_boxes(H, W, augment.crop_ratio))


def _centred_boxes(H: Tensor, W: Tensor, ratio: tuple[float, float]) -> Tensor:
    """Return the largest centred part with an allowed aspect, for images that no attempt fitted."""
    h = torch.where(W / H < ratio[0], (W / ratio[0]).round().clamp(min=1), H)
    w = torch.where(W / H > ratio[1], (H * ratio[1]).round().clamp(min=1), W)
    return torch.cat([((H - h) / 2).floor(), ((W - w) / 2).floor(), h, w], dim=1).long()


def erase_boxes(draws: Tensor, probability: float, height: int, width: int) -> Tensor:
    """Return each image's erased rectangle, all zeros where nothing is erased, as `mix.erase_boxes` does."""
    tries = draws[:, 1:].unflatten(1, (-1, 4))
    area = height * width * (0.02 + (1 / 3 - 0.02) * tries[..., 0])
    low, high = float(np.log(0.3)), float(np.log(3.3))
    aspect = (low + (high - low) * tries[..., 1]).exp()
    h, w = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (h < height) & (w < width) & (h > 0) & (w > 0)
    top, left = (tries[..., 2] * (height - h + 1)).floor(), (tries[..., 3] * (width - w + 1)).floor()
    boxes = _first_fitting(fits, top, left, h, w).long()
    return torch.where((draws[:, :1] < probability) & fits.any(1, keepdim=True), boxes, 0)


def mix_shares(
    augment: Augment,
    draws: Tensor,
    height: int,
    width: int,
    mixup: Tensor,
    cutmix: Tensor,
    allowed: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return each image's own share of itself, (B,), and its CutMix box, as `mix.mix_shares` does.

    `mixup` and `cutmix` are the tables of `beta_table`; where `allowed` is 0, no image is mixed.
    """
    both = augment.mixup > 0 and augment.cutmix > 0
    cut = draws[:, 0] < 0.5 if both else torch.full_like(draws[:, 0], augment.cutmix > 0, dtype=torch.bool)
    mixed = draws[:, 1] < augment.mix_probability * allowed
    own = torch.where(cut, beta_quantile(cutmix, draws[:, 2]), beta_quantile(mixup, draws[:, 2]))
    side = (1 - own).sqrt()
    h, w = (height * side).long(), (width * side).long()
    y, x = (draws[:, 3] * height).long(), (draws[:, 4] * width).long()
    top, left = (y - h // 2).clamp(0, height), (x - w // 2).clamp(0, width)
    bottom, right = (y + h // 2).clamp(0, height), (x + w // 2).clamp(0, width)
    boxes = torch.stack([top, left, bottom - top, right - left], dim=1)
    boxes = torch.where((cut & mixed)[:, None], boxes, 0)
    own = torch.where(cut, 1 - boxes[:, 2] * boxes[:, 3] / (height * width), own)
    return torch.where(mixed, own, 1.0), boxes


@lru_cache(maxsize=8)
def _quantiles(alpha: float) -> np.ndarray:
    from scipy.special import betaincinv  # a quarter of a second, which a prediction need not wait for

    return betaincinv(alpha, alpha, np.linspace(0.0, 1.0, CELLS + 1))


def beta_table(alpha: float) -> Tensor:
    """Return Beta(alpha, alpha)'s quantiles at CELLS + 1 even steps; alpha 0 (never drawn): those of 1."""
    return torch.from_numpy(_quantiles(alpha or 1.0).copy())


def beta_quantile(table: Tensor, draws: Tensor) -> Tensor:
    """Return the quantiles at float64 draws in [0, 1), on the line between two entries of the table.

    No device computes the inverse itself. The error is below 1e-5 for alphas up to 1, and none at 1.
    """
    place = draws * CELLS
    cell = place.long().clamp(max=CELLS - 1)
    low, high = table[cell], table[cell + 1]
    return low + (high - low) * (place - cell)


def inside(boxes: Tensor, height: int, width: int) -> Tensor:
    """Return bool (B, 1, height, width): which pixels lie in each image's box."""
    top, left, h, w = (column[:, None] for column in boxes.unbind(1))
    y, x = torch.arange(height, device=boxes.device), torch.arange(width, device=boxes.device)
    rows, columns = (y >= top) & (y < top + h), (x >= left) & (x < left + w)
    return (rows[:, :, None] & columns[:, None, :])[:, None]
