"""From (epoch, step) to one rank's batch of uint8 pixels: what a loader worker does. Picklable; keeps no
random state."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import get_worker_info

from vitreous.config import Augment, Preprocessing
from vitreous.data import operations
from vitreous.data.augment import REPLACE, RESAMPLING, Draws, EvaluationTransform
from vitreous.data.cache import ImageCache
from vitreous.data.images import ArrayImages, to_image, to_pixels
from vitreous.data.mix import partners
from vitreous.data.order import Order, share, words
from vitreous.data.resample import crop_resize
from vitreous.data.split import Split
from vitreous.errors import DataError

CHUNK = 16
"""Images that are held decoded at the same time."""
ATTEMPTS = 50
SUBSTITUTE = 1 << 20
"""Added to a substitute's copy number, so that it is not augmented like its own turn in the epoch."""


class Raw(NamedTuple):
    """A batch before it reaches the device."""

    images: Tensor
    """uint8 (R, C, H, W): the rank's images, then partners that other ranks own."""
    indices: np.ndarray
    copies: np.ndarray
    partner: np.ndarray | None
    """Which row each of the rank's images is mixed with."""
    size: int
    """How many of the rows are the rank's own."""
    mask: Tensor | None
    bad: list[tuple[int, str]]
    """Files that could not be read, with the reason."""


def storage_size(image_size: tuple[int, int]) -> int:
    """Return the shorter side that pre-scaled images keep at least: a mean Inception crop then still fills
    the model's size."""
    return math.ceil(max(image_size) * 10 / 7)


def shrink(image: Image.Image, shortest: int) -> Image.Image:
    """Scale an image down to `shortest` on its shorter side, if it is over half as large again."""
    scale = min(image.size) / shortest
    if scale <= 1.5:
        return image
    size = (max(1, round(image.width / scale)), max(1, round(image.height / scale)))
    return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)


class Pipeline:
    """Makes a rank's part of any global batch."""

    def __init__(
        self,
        split: Split,
        preprocessing: Preprocessing,
        augment: Augment | None,
        order: Order,
        *,
        patch_size: tuple[int, int],
        rank: int,
        world_size: int,
        operate: bool,
        cache: ImageCache | None,
    ) -> None:
        """`augment=None`: evaluation. `operate`: whether colour operations are done here or later on the
        device."""
        self.split, self.preprocessing, self.augment, self.order = split, preprocessing, augment, order
        self.transform = EvaluationTransform(preprocessing, patch_size)
        self.rank, self.world_size, self.operate, self.cache = rank, world_size, operate, cache
        self.crops = augment is not None and augment.crop_scale is not None
        self.pads = preprocessing.resize == "pad"
        self.known_bad: dict[int, str] = {}
        self.array: Tensor | None = None
        if isinstance(split.images, ArrayImages):
            array = split.images.array(preprocessing.channels)
            self.array = torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))

    def __getitem__(self, item: tuple[int, int]) -> Raw:
        """Return the batch of (epoch, step)."""
        epoch, step = item
        indices, copies = self.order.batch(epoch, step)
        part = share(len(indices), self.rank, self.world_size)
        own = np.arange(part.start, part.stop)
        rows, partner = own, None
        if self.augment is not None and (self.augment.mixup > 0 or self.augment.cutmix > 0) and len(own):
            paired = partners(len(indices))[own]
            rows = np.concatenate([own, np.setdiff1d(paired, own)])
            place = {int(row): k for k, row in enumerate(rows)}
            partner = np.array([place[int(p)] for p in paired])
        chosen, copies = indices[rows].copy(), copies[rows].copy()
        bad: list[tuple[int, str]] = []
        if self.array is not None and (self.augment is not None or self._takes_as_is()):
            images, mask = self._from_arrays(epoch, chosen, copies), None
        elif self.augment is not None:
            images, mask = self._training(epoch, rows + step * self.order.batch_size, chosen, copies, bad)
        else:
            images, mask, good = self._evaluation(chosen, bad)
            chosen, copies, rows = chosen[good], copies[good], rows[good]
            own = rows
        if self.cache is not None:
            self.cache.release()
        return Raw(images, chosen, copies, partner, len(own), mask, bad)

    def _takes_as_is(self) -> bool:
        """Tell whether evaluation leaves the pixels of an array as they are."""
        assert self.array is not None
        size = (self.array.shape[2], self.array.shape[3])
        return size == self.preprocessing.image_size == self.transform.scaled_size(*size)

    def _from_arrays(self, epoch: int, indices: np.ndarray, copies: np.ndarray) -> Tensor:
        """Augment a batch of an in-memory array at once: no Python for single images."""
        assert self.array is not None
        images = self.array[torch.from_numpy(indices)]
        if self.augment is None:
            return images
        draws = Draws(self.augment, self.order.seed, epoch, indices, copies)
        size = (images.shape[2], images.shape[3])
        if self.crops:
            heights, widths = (np.full(len(indices), side) for side in size)
            boxes = draws.boxes(heights, widths)
            target = self.preprocessing.image_size
            return self._operated(
                crop_resize(images, boxes, target, self.preprocessing.interpolation, draws.flip), draws
            )
        if not self._takes_as_is():
            images = self._fit_arrays(images)
        if draws.flip.any():
            rows = torch.from_numpy(np.flatnonzero(draws.flip))
            images[rows] = images[rows].flip(3)
        return self._operated(images, draws)

    def _fit_arrays(self, images: Tensor) -> Tensor:
        """Fit arrays of one size to the model's size, as evaluation does, at once."""
        height, width = images.shape[2], images.shape[3]
        scaled = self.transform.scaled_size(height, width)
        boxes = np.tile([0, 0, height, width], (len(images), 1))
        fitted = crop_resize(images, boxes, scaled, self.preprocessing.interpolation)
        target = self.preprocessing.image_size
        if self.pads or scaled[0] < target[0] or scaled[1] < target[1]:
            whole = [self.transform.padded(image.permute(1, 2, 0).numpy()) for image in fitted]
            return torch.from_numpy(np.stack(whole)).permute(0, 3, 1, 2).contiguous()
        top, left = round((scaled[0] - target[0]) / 2.0), round((scaled[1] - target[1]) / 2.0)
        return fitted[:, :, top : top + target[0], left : left + target[1]].contiguous()

    def _operated(self, images: Tensor, draws: Draws) -> Tensor:
        if not self.operate or draws.operate.shape[1] == 0:
            return images
        return operations.apply_batch(images, operations.choose(draws.augment, draws.operate))

    def _training(
        self,
        epoch: int,
        positions: np.ndarray,
        indices: np.ndarray,
        copies: np.ndarray,
        bad: list[tuple[int, str]],
    ) -> tuple[Tensor, Tensor | None]:
        """Load, crop, flip and operate image by image; an unreadable file's place is taken by another
        image."""
        assert self.augment is not None
        batch = _empty((len(indices), self.preprocessing.channels, *self.preprocessing.image_size))
        images = batch.numpy()
        masks: list[np.ndarray] = []
        for start in range(0, len(indices), CHUNK):
            rows = range(start, min(start + CHUNK, len(indices)))
            loaded = [self._load_or_replace(epoch, int(positions[k]), k, indices, copies, bad) for k in rows]
            part = slice(start, start + len(loaded))
            draws = Draws(self.augment, self.order.seed, epoch, indices[part], copies[part])
            chosen = operations.choose(self.augment, draws.operate) if self.operate else [[]] * len(loaded)
            if self.crops:
                sizes = np.array([pixels.shape[:2] for pixels in loaded])
                boxes = draws.boxes(sizes[:, 0], sizes[:, 1]).tolist()
                loaded = [self._cropped(pixels, box) for pixels, box in zip(loaded, boxes, strict=True)]
            for k, pixels in enumerate(loaded):
                if self.pads:
                    masks.append(self.transform.mask(*pixels.shape[:2]))
                varied = _varied(pixels, bool(draws.flip[k]), chosen[k])
                images[start + k] = self.transform.padded(varied).transpose(2, 0, 1)
        return batch, torch.from_numpy(np.stack(masks)) if masks else None

    def _load_or_replace(
        self,
        epoch: int,
        position: int,
        k: int,
        indices: np.ndarray,
        copies: np.ndarray,
        bad: list[tuple[int, str]],
    ) -> np.ndarray:
        """Load the image of row k; the choice of a substitute depends on (seed, epoch, position) and bad
        files alone."""
        for attempt in range(ATTEMPTS):
            index = int(indices[k])
            if index not in self.known_bad:
                try:
                    return self._load(index)
                except DataError as error:
                    self.known_bad[index] = str(error)
            bad.append((index, self.known_bad[index]))
            drawn = words(self.order.seed, epoch, REPLACE, position, attempt)
            indices[k] = int(drawn % np.uint64(self.order.count))
            copies[k] += SUBSTITUTE
        raise DataError(
            f"{ATTEMPTS} unreadable files in a row, the last {bad[-1][1]}: run `vitreous check` on the data"
        )

    def _load(self, index: int) -> np.ndarray:
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

    def _cropped(self, pixels: np.ndarray, box: list[int]) -> np.ndarray:
        """Cut out a box and resize it: torch's uint8 kernels do as Pillow's, within one grey level, much
        faster."""
        top, left, height, width = box
        part = pixels[top : top + height, left : left + width]
        size, method = self.preprocessing.image_size, self.preprocessing.interpolation
        if method not in ("bilinear", "bicubic"):
            return to_pixels(to_image(part).resize((size[1], size[0]), RESAMPLING[method]))
        source = torch.from_numpy(part.copy()).permute(2, 0, 1)[None]
        return F.interpolate(source, size=size, mode=method, antialias=True)[0].permute(1, 2, 0).numpy()

    def _evaluation(
        self, indices: np.ndarray, bad: list[tuple[int, str]]
    ) -> tuple[Tensor, Tensor | None, np.ndarray]:
        """Load images as evaluation sees them; an unreadable file is left out."""
        loaded, good = [], []
        for k, index in enumerate(indices.tolist()):
            try:
                loaded.append(self._load(index))
                good.append(k)
            except DataError as error:
                bad.append((index, str(error)))
        masks = [self.transform.mask(*pixels.shape[:2]) for pixels in loaded] if self.pads else []
        height, width = self.preprocessing.image_size
        batch = _empty((len(loaded), self.preprocessing.channels, height, width))
        images = batch.numpy()
        for k, pixels in enumerate(loaded):
            images[k] = self.transform.padded(pixels).transpose(2, 0, 1)
        mask = torch.from_numpy(np.stack(masks)) if masks else None
        return batch, mask, np.array(good, np.int64)


def _empty(shape: tuple[int, ...]) -> Tensor:
    """Return room for a batch; in a worker in shared memory at once, as torch's own collation does."""
    if get_worker_info() is None or 0 in shape:
        return torch.empty(shape, dtype=torch.uint8)
    storage = torch.UntypedStorage._new_shared(math.prod(shape), device="cpu")
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, torch.Size(shape))  # pyright: ignore


def _varied(pixels: np.ndarray, flip: bool, chosen: Sequence[operations.Operation]) -> np.ndarray:
    """Flip an image (h, w, C) and apply its operations."""
    if not chosen:
        return pixels[:, ::-1] if flip else pixels
    image = to_image(pixels)
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return to_pixels(operations.apply_image(image, chosen))
