"""An image's pixels up to where randomness begins: decoded, scaled, fitted, and kept in the cache."""

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitreous.config import Preprocessing
from vitreous.data.augment import RESAMPLING, EvaluationTransform
from vitreous.data.cache import ImageCache
from vitreous.data.images import ArrayImages, to_image, to_pixels
from vitreous.data.order import words
from vitreous.data.resample import crop_resize
from vitreous.data.split import Split
from vitreous.files import cache_root


def storage_size(image_size: tuple[int, int]) -> int:
    """Return the shorter side that pre-scaled images keep at least: an average Inception crop then still
    fills the model's size."""
    return math.ceil(max(image_size) * 10 / 7)


def shrink(image: Image.Image, shortest: int) -> Image.Image:
    """Scale an image down to `shortest` on its shorter side, if that is more than 1.5 times as long."""
    size = shrunk_size(image.size, shortest)
    if size == image.size:
        return image
    return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)


def shrunk_size(size: tuple[int, int], shortest: int) -> tuple[int, int]:
    """Return the size that `shrink` gives an image of this size."""
    scale = min(size) / shortest
    if scale <= 1.5:
        return size
    return max(1, round(size[0] / scale)), max(1, round(size[1] / scale))


def open_cache(
    split: Split, settings: Preprocessing, *, crops: bool, where: str | Path | None, limit: int | None
) -> ImageCache | None:
    """Return the cache of a split's images and make room in it; None if none is wanted or useful."""
    if where is None or where == "none" or isinstance(split.images, ArrayImages):
        return None
    if crops:
        shortest = storage_size(settings.image_size)
        transform = f"scaled{shortest}-{settings.channels}"
        bytes_each = shortest * shortest * 2 * settings.channels
    else:
        fit = (settings.image_size, settings.resize, settings.resize_size, settings.interpolation)
        transform = f"fitted-{settings.channels}-{words(*map(ord, repr(fit))).item():x}"
        bytes_each = settings.image_size[0] * settings.image_size[1] * settings.channels
    opened = ImageCache(cache_root() / "images" if where == "auto" else Path(where), transform, limit)
    opened.make_room((row.tobytes() for row in split.digests), bytes_each)
    return opened


class Pixels:
    """The pixels of a split's images, for Inception crops (`crops`) or fitted to the model's size.
    Picklable."""

    def __init__(
        self,
        split: Split,
        preprocessing: Preprocessing,
        *,
        crops: bool,
        mask_step: tuple[int, int] = (16, 16),
        cache: ImageCache | None = None,
    ) -> None:
        self.split, self.preprocessing, self.crops, self.cache = split, preprocessing, crops, cache
        self.transform = EvaluationTransform(preprocessing, mask_step)
        self.pads = preprocessing.resize == "pad"
        self.array: Tensor | None = None
        """All pixels, uint8 (N, C, H, W), where the split is in memory."""
        if isinstance(split.images, ArrayImages):
            array = split.images.array(preprocessing.channels)
            self.array = torch.from_numpy(np.require(array.transpose(0, 3, 1, 2), requirements=("C", "W")))

    def load(self, index: int) -> np.ndarray:
        """Return an image's pixels (h, w, C) up to where randomness begins: that much is cached."""
        key = self.split.digests[index].tobytes()
        if self.cache is not None and (pixels := self.cache.get(key)) is not None:
            return pixels
        channels = self.preprocessing.channels
        if self.crops:
            shortest = storage_size(self.preprocessing.image_size)
            image = shrink(self.split.images.read(index, channels, shortest=shortest), shortest)
            pixels = to_pixels(image)
        elif self.array is not None:
            pixels = self.transform.fitted(self.array[index].permute(1, 2, 0).numpy())
        else:
            pixels = self.transform.fitted(self.split.images.read(index, channels))
        if self.cache is not None:
            self.cache.put(key, pixels)
        return pixels

    def cropped(self, pixels: np.ndarray, box: list[int], size: tuple[int, int] | None = None) -> np.ndarray:
        """Cut out a box and resize it (default: to the model's size); torch's uint8 kernels match Pillow's
        within one grey level, and are much faster."""
        top, left, height, width = box
        part = pixels[top : top + height, left : left + width]
        size, method = size or self.preprocessing.image_size, self.preprocessing.interpolation
        if method not in ("bilinear", "bicubic"):
            return to_pixels(to_image(part).resize((size[1], size[0]), RESAMPLING[method]))
        source = torch.from_numpy(part.copy()).permute(2, 0, 1)[None]
        return F.interpolate(source, size=size, mode=method, antialias=True)[0].permute(1, 2, 0).numpy()

    def takes_as_is(self) -> bool:
        """Tell whether evaluation leaves the pixels of an array as they are."""
        return (
            self.array_size()
            == self.preprocessing.image_size
            == self.transform.scaled_size(*self.array_size())
        )

    def array_size(self) -> tuple[int, int]:
        """Return the height and width of the images of an array."""
        assert self.array is not None
        return self.array.shape[2], self.array.shape[3]

    def fit_arrays(self, images: Tensor) -> Tensor:
        """Fit arrays of one size to the model's size, as evaluation does, at once; but don't pad yet."""
        if not len(images):
            return self._none_of(images)
        height, width = images.shape[2], images.shape[3]
        scaled = self.transform.scaled_size(height, width)
        if self.transform.cuts_first(scaled):
            fitted = [self.transform.fitted(image.permute(1, 2, 0).numpy()) for image in images]
            return torch.from_numpy(np.stack(fitted)).permute(0, 3, 1, 2).contiguous()
        boxes = np.tile([0, 0, height, width], (len(images), 1))
        fitted = crop_resize(images, boxes, scaled, self.preprocessing.interpolation)
        target = self.preprocessing.image_size
        if self.pads:
            return fitted
        if scaled[0] < target[0] or scaled[1] < target[1]:
            return self.pad_arrays(fitted)
        top, left = round((scaled[0] - target[0]) / 2.0), round((scaled[1] - target[1]) / 2.0)
        return fitted[:, :, top : top + target[0], left : left + target[1]].contiguous()

    def pad_arrays(self, images: Tensor) -> Tensor:
        """Pad images that were fitted, and perhaps mirrored: masks expect the padding right and below."""
        if not len(images):
            return self._none_of(images)
        whole = [self.transform.padded(image.permute(1, 2, 0).numpy()) for image in images]
        return torch.from_numpy(np.stack(whole)).permute(0, 3, 1, 2).contiguous()

    def _none_of(self, images: Tensor) -> Tensor:
        """Return no image of the model's size: a rank may have none of a small batch."""
        return images.new_empty((0, images.shape[1], *self.preprocessing.image_size))
