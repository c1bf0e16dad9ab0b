"""Crop and resize whole batches at once, each image with its own box: Pillow's filters as matrix products.

B batch, C channels, H and W the source's size, h and w the result's. Never touches files or random numbers.
"""

import numpy as np
import torch
from torch import Tensor

from vitreous.data.moving import to_device

SUPPORT = {"nearest": 0.0, "bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}


def _kernel(x: Tensor, interpolation: str) -> Tensor:
    """Return the filter's value at distance |x|, as in Pillow's Resample.c (bicubic: a = -0.5)."""
    x = x.abs()
    if interpolation == "bilinear":
        return (1 - x).clamp(min=0)
    if interpolation == "bicubic":
        near = (1.5 * x - 2.5) * x * x + 1
        far = ((-0.5 * x + 2.5) * x - 4) * x + 2
        return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
    return torch.where(x < 3, torch.sinc(x) * torch.sinc(x / 3), 0.0)


def weights(start: Tensor, length: Tensor, source: int, size: int, interpolation: str) -> Tensor:
    """Return (B, size, source) rows that resample [start, start + length) of a line, and see nothing outside
    it."""
    exact = torch.float32 if source <= 512 else torch.float64  # enough for a thousandth of a grey level
    start, length = start.to(exact)[:, None, None], length.to(exact)[:, None, None]
    scale = length / size
    centres = start + (torch.arange(size, device=start.device)[None, :, None] + 0.5) * scale  # (B, size, 1)
    pixels = torch.arange(source, device=start.device)[None, None, :]  # (1, 1, source)
    if interpolation == "nearest":
        rows = (pixels == centres.floor()).to(exact)
    else:
        rows = _kernel((pixels + 0.5 - centres) / scale.clamp(min=1.0), interpolation)
    inside = (pixels >= start) & (pixels < start + length)
    rows = torch.where(inside, rows, 0.0)
    return (rows / rows.sum(-1, keepdim=True)).float()


def crop_resize(
    images: Tensor,
    boxes: np.ndarray,
    size: tuple[int, int],
    interpolation: str,
    flip: np.ndarray | None = None,
) -> Tensor:
    """Cut each image's box (top, left, height, width) out of uint8 (B, C, H, W) and resize it to `size`.

    Equals Pillow's crop and resize within one grey level, or two for one pixel in a thousand: as there, the
    result of the horizontal pass is rounded."""
    box = to_device(np.ascontiguousarray(boxes), images.device)
    across = weights(box[:, 1], box[:, 3], images.shape[3], size[1], interpolation)  # (B, w, W)
    down = weights(box[:, 0], box[:, 2], images.shape[2], size[0], interpolation)  # (B, h, H)
    if flip is not None and flip.any():
        mirrored = to_device(np.ascontiguousarray(flip), images.device)
        across = torch.where(mirrored[:, None, None], across.flip(1), across)
    lines = images.float().flatten(1, 2)  # (B, C·H, W)
    rows = torch.bmm(lines, across.transpose(1, 2)).view(*images.shape[:3], size[1])  # (B, C, H, w)
    result = torch.matmul(down[:, None], _rounded(rows))  # (B, C, h, w)
    return _rounded(result).to(torch.uint8)


def _rounded(values: Tensor) -> Tensor:
    return values.add_(0.5).floor_().clamp_(0, 255)
