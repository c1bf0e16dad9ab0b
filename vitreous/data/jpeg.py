"""JPEGs that are sent to the device as they are and decoded there: by nvJPEG on CUDA, by libjpeg on a CPU.

Loader workers then only read files and their headers. They decode as usual what a device can't be trusted
with: other formats, rotated or CMYK photographs, files that end early.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.decode import draft_size, open_header, orientation
from vitreous.data.moving import to_device
from vitreous.data.pixels import shrunk_size
from vitreous.data.resample import crop_resize

DECODED = 1 << 28
"""Pixels that are held decoded on the device at the same time."""
CHUNK = 64
"""Images that are resized at a time."""
LARGEST = 3
"""Images of up to this many times the model's size are resized together; larger ones are reduced first."""


@dataclass(frozen=True)
class Encoded:
    """The n rows of a batch whose images are still encoded, and what each of their V views shows."""

    rows: np.ndarray
    """(n,): places in the batch."""
    positions: np.ndarray
    """(n,): places in the epoch, from which substitutes are drawn."""
    files: Tensor
    """uint8 (bytes,): one after the other, so that they leave a worker as one piece."""
    lengths: list[int]
    """(n,): bytes of each."""
    sizes: np.ndarray
    """(n, 2): height and width."""
    boxes: np.ndarray
    """float64 (V, n, 4): top, left, height and width of what is cropped."""
    flips: np.ndarray
    """bool (V, n)."""

    def decode(self, into: Tensor, interpolation: str) -> None:
        """Decode, crop, resize and mirror each row's views into a batch uint8 (V·R, 3, H, W), on its device.

        Raises RuntimeError for a file that is broken after its header.
        """
        count, files = len(into) // len(self.boxes), self.files.split(self.lengths)
        size = into.shape[2], into.shape[3]
        for part in self._parts():
            decoded = _decoded(list(files[part]), into.device)
            for view, (boxes, flips) in enumerate(zip(self.boxes, self.flips, strict=True)):
                shown = _cropped(decoded, boxes[part], flips[part], size, interpolation)
                places = torch.from_numpy(view * count + self.rows[part])
                into[to_device(places, into.device)] = shown

    def _parts(self) -> Iterator[slice]:
        """Return which images are decoded at a time: as many as there is room for."""
        start, pixels = 0, 0
        for k, more in enumerate(self.sizes.prod(1).tolist()):
            if k > start and pixels + more > DECODED:
                yield slice(start, k)
                start, pixels = k, 0
            pixels += more
        yield slice(start, len(self.sizes))


def _decoded(files: list[Tensor], device: torch.device) -> list[Tensor]:
    from torchvision.io import ImageReadMode, decode_jpeg

    with warnings.catch_warnings():  # torchvision plans to move this to torchcodec
        warnings.simplefilter("ignore", DeprecationWarning)
        return decode_jpeg(files, mode=ImageReadMode.RGB, device=str(device))  # pyright: ignore


def _cropped(
    images: list[Tensor], boxes: np.ndarray, flips: np.ndarray, size: tuple[int, int], interpolation: str
) -> Tensor:
    """Cut a box (in pixels) out of each image (3, h, w) and resize it: uint8 (n, 3, H, W).

    All are resized together, in a few launches; only what is much larger than the result is first reduced by
    itself."""
    edges = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1).round().astype(int)
    parts = [
        image[:, top : max(bottom, top + 1), left : max(right, left + 1)]
        for image, (top, left, bottom, right) in zip(images, edges.tolist(), strict=True)
    ]
    most = tuple(LARGEST * side for side in size)
    parts = [_shrunk(part, most) for part in parts]
    heights, widths = np.array([part.shape[1:] for part in parts]).T
    canvas = torch.zeros((CHUNK, 3, heights.max(), widths.max()), dtype=torch.uint8, device=images[0].device)
    shown = []
    for start in range(0, len(parts), CHUNK):
        chosen = slice(start, start + CHUNK)
        for place, part in zip(canvas, parts[chosen], strict=False):
            place[:, : part.shape[1], : part.shape[2]].copy_(part)
        h, w = heights[chosen], widths[chosen]
        whole = np.stack([np.zeros_like(h), np.zeros_like(h), h, w], axis=1)
        shown.append(crop_resize(canvas[: len(h)], whole, size, interpolation, flips[chosen]))
    return torch.cat(shown)


def _shrunk(part: Tensor, most: tuple[int, ...]) -> Tensor:
    """Return an image (3, h, w) with sides of at most `most` pixels."""
    size = min(part.shape[1], most[0]), min(part.shape[2], most[1])
    if size == part.shape[1:]:
        return part
    smaller = F.interpolate(part[None].float(), size=size, mode="bilinear", antialias=True)[0]
    return smaller.round().clamp(0, 255).to(torch.uint8)


def find_sizes(data: bytes, shortest: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return a JPEG's (height, width), and those that `Pixels.load` would crop from; None for a file that the
    host has to decode."""
    if not data.endswith(b"\xff\xd9"):  # a device may silently show gray for what is missing
        return None
    image = open_header(data)
    if image.format != "JPEG" or image.mode not in ("RGB", "L") or orientation(image) != 1:
        return None
    if image.info.get("adobe_transform") == 0:  # stored as RGB, not as luminance and colour
        return None
    size = image.height, image.width
    image.draft(None, draft_size(image.size, shortest))
    width, height = shrunk_size(image.size, shortest)
    return size, (height, width)
