"""From (epoch, step) to one rank's batch of uint8 pixels: what a loader worker does. Picklable; keeps no
random state."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import get_worker_info

from vitreous.config import Augment, Preprocessing
from vitreous.data import jpeg, operations
from vitreous.data.augment import REPLACE, Draws
from vitreous.data.images import to_image, to_pixels
from vitreous.data.jpeg import Encoded
from vitreous.data.mix import partners
from vitreous.data.order import Order, share, words
from vitreous.data.pixels import Pixels, storage_size
from vitreous.data.resample import crop_resize
from vitreous.errors import DataError

CHUNK = 16
"""Images that are held decoded at the same time."""
ATTEMPTS = 50
SUBSTITUTE = 1 << 20
"""Added to a substitute's copy number, so that it is augmented differently than in its own turn."""


@dataclass(frozen=True)
class SmallViews:
    """More views of each training image: crops of a smaller part of it, shown in a smaller size."""

    count: int
    size: tuple[int, int]
    """Height and width."""
    scale: tuple[float, float]
    """Part of the image's area that is kept, from and to."""


class Raw(NamedTuple):
    """A batch before it reaches the device: R rows, which are the rank's images, then partners that other
    ranks own."""

    images: Tensor
    """uint8 (V·R, C, H, W): all rows in their first view, then in the second, …; none where all of them are
    encoded."""
    indices: np.ndarray
    """(R,): the images' numbers."""
    copies: np.ndarray
    """(R,): which copy of its image each row is."""
    partner: np.ndarray | None
    """Which row each of the rank's images is mixed with."""
    size: int
    """How many of the rows are the rank's own."""
    mask: Tensor | None
    bad: list[tuple[int, str]]
    """Files that could not be read, with the reason."""
    encoded: Encoded | None = None
    """Rows whose pixels are still to be decoded, on the device."""
    small: Tensor | None = None
    """uint8 (S·R, C, h, w): the small views, where there are any."""


@dataclass(frozen=True)
class Shown:
    """Views of one kind: which of an image's views they are, and how they are varied."""

    views: range
    """Their numbers among all views of an image."""
    all: int
    """How many views an image has, of any kind."""
    augment: Augment
    size: tuple[int, int]

    def rows(self, indices: np.ndarray, copies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each view's images and copy numbers, one view after the other; no two views of an image
        share a copy number, whatever their kind."""
        numbers = copies * self.all + np.array(self.views)[:, None]  # (V, R)
        return np.tile(indices, len(self.views)), numbers.reshape(-1)

    def preprocessing(self, settings: Preprocessing) -> Preprocessing:
        """Return the settings for images of this size."""
        return replace(settings, image_size=self.size)


def shown_as(augment: Augment, size: tuple[int, int], views: int, small: SmallViews | None) -> list[Shown]:
    """Return the kinds of views that a training image has: of the model's size, then the small ones."""
    if small is None:
        return [Shown(range(views), views, augment, size)]
    both = views + small.count
    fewer = replace(augment, crop_scale=small.scale)
    return [Shown(range(views), both, augment, size), Shown(range(views, both), both, fewer, small.size)]


class Pipeline:
    """Makes a rank's part of any global batch."""

    def __init__(
        self,
        pixels: Pixels,
        augment: Augment | None,
        order: Order,
        *,
        rank: int,
        world_size: int,
        operate: bool,
        views: int = 1,
        small: SmallViews | None = None,
        decode: bool = True,
    ) -> None:
        """`augment=None`: evaluation. `operate`: whether colour operations are done here or later on the
        device. `decode`: whether crops of JPEGs are cut here or later on the device."""
        self.pixels, self.augment, self.order, self.views = pixels, augment, order, views
        size = pixels.preprocessing.image_size
        self.shown = [] if augment is None else shown_as(augment, size, views, small)
        self.rank, self.world_size, self.operate = rank, world_size, operate
        self.decode = decode
        self.known_bad: dict[int, str] = {}

    def __getitem__(self, item: tuple[int, int]) -> Raw:
        """Return the batch of (epoch, step)."""
        epoch, step = item
        indices, copies = self.order.batch(epoch, step)
        rows, partner, size = self._rows(len(indices))
        chosen, copies = indices[rows].copy(), copies[rows].copy()
        bad: list[tuple[int, str]] = []
        encoded = small = None
        if self.pixels.array is not None and (self.augment is not None or self.pixels.takes_as_is()):
            images, mask = self._from_arrays(epoch, chosen, copies)
            if len(self.shown) > 1:
                small = self._cropped_arrays(epoch, chosen, copies, self.shown[1])
        elif self.augment is not None:
            positions = rows + step * self.order.batch_size
            images, mask, encoded, small = self._training(epoch, positions, chosen, copies, bad)
        else:
            images, mask, good = self._evaluation(chosen, bad)
            chosen, copies, size = chosen[good], copies[good], len(good)
        if self.pixels.cache is not None:
            self.pixels.cache.release()
        return Raw(images, chosen, copies, partner, size, mask, bad, encoded, small)

    def _rows(self, count: int) -> tuple[np.ndarray, np.ndarray | None, int]:
        """Return the rows of a global batch that this rank needs, its own first; which of them each of its
        own is mixed with; and how many are its own."""
        part = share(count, self.rank, self.world_size)
        own = np.arange(part.start, part.stop)
        if self.augment is None or not (self.augment.mixup > 0 or self.augment.cutmix > 0) or not len(own):
            return own, None, len(own)
        paired = partners(count)[own]
        rows = np.concatenate([own, np.setdiff1d(paired, own)])
        place = {int(row): k for k, row in enumerate(rows)}
        return rows, np.array([place[int(row)] for row in paired]), len(own)

    def _from_arrays(
        self, epoch: int, indices: np.ndarray, copies: np.ndarray
    ) -> tuple[Tensor, Tensor | None]:
        """Augment a batch of an in-memory array at once, without Python code for each image."""
        assert self.pixels.array is not None
        if self.augment is not None and self.pixels.crops:
            return self._cropped_arrays(epoch, indices, copies, self.shown[0]), None
        if self.augment is not None:
            indices, copies = self.shown[0].rows(indices, copies)
        images = self.pixels.array[torch.from_numpy(indices)]
        size, mask = self.pixels.array_size(), None
        if self.pixels.pads:
            shown = self.pixels.transform.mask(*self.pixels.transform.scaled_size(*size))
            mask = torch.from_numpy(np.tile(shown, (len(indices), 1)))
        if self.augment is None:
            return images, mask
        draws = Draws(self.augment, self.order.seed, epoch, indices, copies)
        if not self.pixels.takes_as_is():
            images = self.pixels.fit_arrays(images)
        if draws.flip.any():
            rows = torch.from_numpy(np.flatnonzero(draws.flip))
            images[rows] = images[rows].flip(3)
        images = self._operated(images, draws)
        return (self.pixels.pad_arrays(images) if self.pixels.pads else images), mask

    def _cropped_arrays(self, epoch: int, indices: np.ndarray, copies: np.ndarray, shown: Shown) -> Tensor:
        """Crop, mirror and vary a batch of an in-memory array as these views of it."""
        assert self.pixels.array is not None
        indices, copies = shown.rows(indices, copies)
        draws = Draws(shown.augment, self.order.seed, epoch, indices, copies)
        boxes = draws.boxes(*(np.full(len(indices), side) for side in self.pixels.array_size()))
        images, method = self.pixels.array[torch.from_numpy(indices)], self.pixels.preprocessing.interpolation
        return self._operated(crop_resize(images, boxes, shown.size, method, draws.flip), draws)

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
    ) -> tuple[Tensor, Tensor | None, Encoded | None, Tensor | None]:
        """Make the batch's images, or those that the device is not to decode, and their small views."""
        encoded = None if self.decode else self._encoded(epoch, positions, indices, copies)
        rows = np.arange(len(indices))
        if encoded is not None:
            rows = np.setdiff1d(rows, encoded.rows)
        batches = [_empty(self.shape(len(indices) if len(rows) else 0, shown)) for shown in self.shown]
        mask = self._fill(batches, rows, epoch, positions[rows], indices, copies, bad)
        return batches[0], mask, encoded, batches[1] if len(batches) > 1 else None

    def shape(self, rows: int, shown: Shown | None = None) -> tuple[int, int, int, int]:
        """Return the shape of the pixels of so many rows as one kind of views, by default the model-sized."""
        shown = shown or self.shown[0]
        return len(shown.views) * rows, self.pixels.preprocessing.channels, *shown.size

    def _encoded(
        self, epoch: int, positions: np.ndarray, indices: np.ndarray, copies: np.ndarray
    ) -> Encoded | None:
        """Read the batch's JPEGs; None where there is none. What can't be read is left to `_fill`."""
        assert self.augment is not None
        rows, files, sizes, loaded = [], [], [], []
        for k, index in enumerate(indices.tolist()):
            with contextlib.suppress(DataError):
                data = b"" if index in self.known_bad else self.pixels.split.images.data(index)
                if found := jpeg.find_sizes(data, storage_size(self.pixels.preprocessing.image_size)):
                    rows.append(k)
                    files.append(data)
                    sizes.append(found[0])
                    loaded.append(found[1])
        if not rows:
            return None
        draws = Draws(self.augment, self.order.seed, epoch, *self.shown[0].rows(indices[rows], copies[rows]))
        height, width = np.tile(loaded, (self.views, 1)).T  # boxes are of the pixels the host would load
        boxes = draws.boxes(height, width) * np.tile(np.divide(sizes, loaded), (self.views, 2))
        shape = self.views, len(rows)
        joined = b"".join(files)
        room = _empty((len(joined),))
        room.numpy()[:] = np.frombuffer(joined, np.uint8)
        return Encoded(
            np.array(rows),
            positions[rows],
            room,
            [len(data) for data in files],
            np.array(sizes),
            boxes.reshape(*shape, 4),
            draws.flip.reshape(shape),
        )

    def redo(self, raw: Raw, epoch: int) -> Raw:
        """Decode here what the device could not: one of the files is broken after its header."""
        assert raw.encoded is not None
        images = raw.images.clone() if len(raw.images) else _empty(self.shape(len(raw.indices)))
        bad = list(raw.bad)
        indices, copies = raw.indices.copy(), raw.copies.copy()
        self._fill([images], raw.encoded.rows, epoch, raw.encoded.positions, indices, copies, bad)
        return raw._replace(images=images, indices=indices, copies=copies, bad=bad, encoded=None)

    def _fill(
        self,
        batches: list[Tensor],
        rows: np.ndarray,
        epoch: int,
        positions: np.ndarray,
        indices: np.ndarray,
        copies: np.ndarray,
        bad: list[tuple[int, str]],
    ) -> Tensor | None:
        """Load, crop, flip and vary image by image, into these rows of each kind's batch; another image takes
        the place of an unreadable file. Returns the mask of padded images."""
        masks: list[np.ndarray] = []
        for start in range(0, len(rows), CHUNK):
            part, places = rows[start : start + CHUNK], positions[start : start + CHUNK]
            loaded = [
                self._load_or_replace(epoch, int(position), int(k), indices, copies, bad)
                for k, position in zip(part, places, strict=True)
            ]
            if self.pixels.pads:
                masks += [self.pixels.transform.mask(*pixels.shape[:2]) for pixels in loaded]
            for shown, batch in zip(self.shown, batches, strict=False):
                for place, view in enumerate(shown.views):
                    numbers = copies[part] * shown.all + view
                    into = place * len(indices) + part
                    self._vary(epoch, loaded, indices[part], numbers, shown, batch.numpy(), into)
        return torch.from_numpy(np.stack(masks)).repeat(self.views, 1) if masks else None

    def _vary(
        self,
        epoch: int,
        loaded: list[np.ndarray],
        indices: np.ndarray,
        copies: np.ndarray,
        shown: Shown,
        images: np.ndarray,
        into: np.ndarray,
    ) -> None:
        """Crop, flip and vary loaded images with the draws of these copies, into rows of `images`."""
        draws = Draws(shown.augment, self.order.seed, epoch, indices, copies)
        chosen = operations.choose(shown.augment, draws.operate) if self.operate else [[]] * len(loaded)
        if self.pixels.crops:
            sizes = np.array([pixels.shape[:2] for pixels in loaded])
            boxes = draws.boxes(sizes[:, 0], sizes[:, 1]).tolist()
            loaded = [
                self.pixels.cropped(pixels, box, shown.size)
                for pixels, box in zip(loaded, boxes, strict=True)
            ]
        for k, pixels in enumerate(loaded):
            varied = _varied(pixels, bool(draws.flip[k]), chosen[k])
            whole = varied if self.pixels.crops else self.pixels.transform.padded(varied)
            images[into[k]] = whole.transpose(2, 0, 1)

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
                    return self.pixels.load(index)
                except DataError as error:
                    self.known_bad[index] = str(error)
            bad.append((index, self.known_bad[index]))
            drawn = words(self.order.seed, epoch, REPLACE, position, attempt)
            indices[k] = int(drawn % np.uint64(self.order.count))
            copies[k] += SUBSTITUTE
        raise DataError(
            f"{ATTEMPTS} unreadable files in a row, the last {bad[-1][1]}: run `vitreous check` on the data"
        )

    def _evaluation(
        self, indices: np.ndarray, bad: list[tuple[int, str]]
    ) -> tuple[Tensor, Tensor | None, np.ndarray]:
        """Load images as evaluation sees them; an unreadable file is left out."""
        loaded, good = [], []
        for k, index in enumerate(indices.tolist()):
            try:
                loaded.append(self.pixels.load(index))
                good.append(k)
            except DataError as error:
                bad.append((index, str(error)))
        settings, transform = self.pixels.preprocessing, self.pixels.transform
        masks = [transform.mask(*pixels.shape[:2]) for pixels in loaded] if self.pixels.pads else []
        batch = _empty((len(loaded), settings.channels, *settings.image_size))
        images = batch.numpy()
        for k, pixels in enumerate(loaded):
            images[k] = transform.padded(pixels).transpose(2, 0, 1)
        mask = torch.from_numpy(np.stack(masks)) if masks else None
        return batch, mask, np.array(good, np.int64)


def _empty(shape: tuple[int, ...]) -> Tensor:
    """Allocate a batch; in a worker, directly in shared memory, as torch's own collation does."""
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
