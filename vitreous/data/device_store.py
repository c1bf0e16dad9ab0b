"""A split's pixels in the device's memory: whether they fit, how they get there, how a batch takes them out.

What is stored is what `Pixels.load` returns, an image up to where randomness begins, so the device starts
from the pixels that a loader worker starts from. N images, C channels.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.config import Augment, Preprocessing
from vitreous.data.decode import open_header
from vitreous.data.images import ArrayImages
from vitreous.data.pixels import Pixels, storage_size
from vitreous.data.split import Split
from vitreous.errors import DataError

SAMPLE = 256
"""Headers that are read to estimate how large a split's images are."""
CHUNK = 512
"""Images that go to the device at a time."""
LONGEST = 2
"""Sides are stored up to this many times the usual shorter side; a panorama is squeezed along its length."""

Progress = Callable[[int, int], None]
"""Called with how many images are stored, and how many there are."""


@dataclass(frozen=True)
class Store:
    """Pixels on a device: one tensor where all images have one size, else one image after the other."""

    pixels: Tensor
    """uint8 (N, C, H, W), or (bytes,) of images (C, h, w) one after the other."""
    sizes: Tensor
    """int64 (N, 2): each image's height and width on the host, from which crops are drawn."""
    channels: int
    canvas: tuple[int, int]
    """The largest stored height and width."""
    offsets: Tensor | None = None
    """int64 (N,): where an image begins, where sizes differ."""
    stored: Tensor | None = None
    """int64 (N, 2): height and width as stored, where sizes differ."""
    masks: Tensor | None = None
    """bool (N, patches): which are not padding, where images keep their aspect."""

    def gather(self, indices: Tensor) -> Tensor:
        """Return images uint8 (B, C, *canvas), each in the top left corner; what lies beside it has no
        meaning."""
        if self.offsets is None or self.stored is None:
            return self.pixels[indices]
        height, width = (side[:, None, None, None] for side in self.stored[indices].unbind(1))
        y, x = (torch.arange(side, device=indices.device) for side in self.canvas)
        c = torch.arange(self.channels, device=indices.device)[:, None, None]
        inside = (y[:, None] < height) & (x < width)
        place = torch.where(inside, (c * height + y[:, None]) * width + x, 0)  # (B, C, *canvas)
        return self.pixels[self.offsets[indices][:, None, None, None] + place]

    def placed(self, boxes: Tensor, indices: Tensor) -> Tensor:
        """Return where boxes that were drawn from the host's sizes lie in the stored pixels, float64
        (B, 4)."""
        if self.stored is None:
            return boxes.double()
        squeeze = self.stored[indices].double() / self.sizes[indices].double()
        return boxes * torch.cat([squeeze, squeeze], dim=1)


def fits(
    split: Split,
    preprocessing: Preprocessing,
    free_bytes: int,
    share: float = 0.4,
    *,
    augment: Augment | None = None,
) -> tuple[bool, str]:
    """Tell whether a split's pixels take at most a share of the device's free memory, and why, in one line.

    `augment` is what the loader will be given; None: evaluation. Sizes of files are estimated from a sample.
    """
    crops = augment is not None and augment.crop_scale is not None and preprocessing.resize != "pad"
    try:
        each = _bytes_each(split, preprocessing, crops)
    except DataError as error:
        return False, f"pixels stay on the host: {error}"
    needed, allowed = len(split) * each, int(free_bytes * share)
    figures = f"{len(split):,} images take about {_size(needed)}"
    if needed <= allowed:
        return True, f"pixels on the device: {figures} of its free {_size(free_bytes)}"
    return (
        False,
        f"pixels stay on the host: {figures}, more than {share:.0%} of the device's {_size(free_bytes)}",
    )


def _bytes_each(split: Split, preprocessing: Preprocessing, crops: bool) -> float:
    """Return the mean number of bytes that an image takes once stored."""
    if not crops:
        return preprocessing.channels * preprocessing.image_size[0] * preprocessing.image_size[1]
    images = split.images
    if isinstance(images, ArrayImages):
        return preprocessing.channels * images.pixels.shape[1] * images.pixels.shape[2]
    shortest, areas = storage_size(preprocessing.image_size), []
    for index in split.sample(SAMPLE).tolist():
        try:
            width, height = open_header(images.data(index), name=split.name(index)).size
        except DataError:
            continue  # a bad file takes no room
        scale = max(1.0, min(width, height) / shortest)
        scale = scale if scale > 1.5 else 1.0  # as `pixels.shrink`
        areas.append(width * height / scale**2)
    if not areas:
        raise DataError(f"none of {SAMPLE} sampled images can be read: run `vitreous check` on the data")
    return preprocessing.channels * float(np.mean(areas))


def _size(number: float) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e8 else f"{number / 1e6:,.1f} MB"


def fill(
    pixels: Pixels, device: torch.device, *, threads: int | None = None, progress: Progress | None = None
) -> tuple[Store, dict[int, str]]:
    """Load every image of a split once and move it to the device; return the bad ones too.

    A bad file keeps its place, with meaningless pixels: whoever takes batches leaves it out.
    """
    array = pixels.array
    if array is not None and (pixels.crops or pixels.takes_as_is()):
        sizes = torch.tensor(array.shape[2:], device=device).expand(len(array), 2)
        canvas = (array.shape[2], array.shape[3])
        return Store(array.to(device), sizes, array.shape[1], canvas), {}
    bad: dict[int, str] = {}
    chunks = _chunks(pixels, bad, threads or os.cpu_count() or 1, progress)
    return (_ragged if pixels.crops else _fitted)(pixels, device, chunks), bad


def _chunks(
    pixels: Pixels, bad: dict[int, str], threads: int, progress: Progress | None
) -> Iterator[list[np.ndarray | None]]:
    """Load the split's images in order, a chunk at a time; None stands for a bad file."""

    def load(index: int) -> np.ndarray | None:
        try:
            return pixels.load(index)
        except DataError as error:
            bad[index] = str(error)
            return None

    count = len(pixels.split)
    with ThreadPoolExecutor(threads) as pool:  # Pillow decodes outside of Python's lock
        for start in range(0, count, CHUNK):
            stop = min(start + CHUNK, count)
            yield list(pool.map(load, range(start, stop)))
            if progress is not None:
                progress(stop, count)


def _fitted(pixels: Pixels, device: torch.device, chunks: Iterator[list[np.ndarray | None]]) -> Store:
    """Store images as evaluation sees them, all of the model's size."""
    settings, count = pixels.preprocessing, len(pixels.split)
    shape = (count, settings.channels, *settings.image_size)
    stored = torch.zeros(shape, dtype=torch.uint8, device=device)
    sizes, masks, start = [], [], 0
    for chunk in chunks:
        loaded = [np.zeros((1, 1, settings.channels), np.uint8) if x is None else x for x in chunk]
        sizes += [x.shape[:2] for x in loaded]
        masks += [pixels.transform.mask(*x.shape[:2]) for x in loaded] if pixels.pads else []
        whole = np.stack([pixels.transform.padded(x) for x in loaded]).transpose(0, 3, 1, 2)
        stored[start : start + len(chunk)] = torch.from_numpy(np.ascontiguousarray(whole)).to(device)
        start += len(chunk)
    mask = torch.from_numpy(np.stack(masks)).to(device) if masks else None
    return Store(stored, _column(sizes, device), settings.channels, settings.image_size, masks=mask)


def _ragged(pixels: Pixels, device: torch.device, chunks: Iterator[list[np.ndarray | None]]) -> Store:
    """Store images as crops are cut from them, each in its own size, one after the other."""
    channels = pixels.preprocessing.channels
    longest = LONGEST * storage_size(pixels.preprocessing.image_size)
    sizes, stored, parts = [], [], []
    for chunk in chunks:
        loaded = [np.zeros((1, 1, channels), np.uint8) if x is None else x for x in chunk]
        sizes += [x.shape[:2] for x in loaded]
        squeezed = [_squeezed(x, longest) for x in loaded]
        stored += [x.shape[:2] for x in squeezed]
        flat = np.concatenate([x.transpose(2, 0, 1).ravel() for x in squeezed])
        parts.append(torch.from_numpy(flat).to(device))
    ends = np.cumsum([channels * height * width for height, width in stored])
    canvas = (max(height for height, _ in stored), max(width for _, width in stored))
    return Store(
        torch.cat(parts),  # for a moment everything is there twice: `fits` asks for less than half
        _column(sizes, device),
        channels,
        canvas,
        offsets=torch.from_numpy(np.concatenate([[0], ends[:-1]])).to(device),
        stored=_column(stored, device),
    )


def _squeezed(pixels: np.ndarray, longest: int) -> np.ndarray:
    """Scale down only the side that is too long: a few panoramas must not set every batch's canvas."""
    size = min(pixels.shape[0], longest), min(pixels.shape[1], longest)
    if size == pixels.shape[:2]:
        return pixels
    planes = [Image.fromarray(np.ascontiguousarray(pixels[..., c])) for c in range(pixels.shape[2])]
    resized = [np.asarray(plane.resize(size[::-1], Image.Resampling.BICUBIC)) for plane in planes]
    return np.stack(resized, axis=2)


def _column(sizes: list[tuple[int, ...]], device: torch.device) -> Tensor:
    return torch.tensor(sizes, dtype=torch.int64).to(device)
