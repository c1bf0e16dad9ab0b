"""Batches whose pixels never leave the device: a split is decoded once, kept in the device's memory, and
augmented there.

The order, the draws and the images are those of `HostLoader`. Producing a batch never waits for the device:
what the host has to know (which images, how many) it computes itself.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from vitreous.config import Augment, Preprocessing
from vitreous.data import draws as drawing
from vitreous.data.augment import REPLACE
from vitreous.data.bad import refusal
from vitreous.data.batch import Batch
from vitreous.data.device_augment import BatchAugment
from vitreous.data.device_store import Progress, fill
from vitreous.data.host import Sampling
from vitreous.data.mix import partners
from vitreous.data.moving import to_device
from vitreous.data.order import order_of, share, words
from vitreous.data.pipeline import ATTEMPTS, SUBSTITUTE, SmallViews, shown_as
from vitreous.data.pixels import Pixels
from vitreous.data.split import Split
from vitreous.errors import DataError

DRAWN = 1 << 22
"""About how many numbers are drawn at a time."""


class DeviceLoader:
    """Iterates batches of a split as `HostLoader` does, from pixels that it holds on the device."""

    def __init__(
        self,
        split: Split,
        *,
        preprocessing: Preprocessing,
        augment: Augment | None,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
        sampler: Sampling = "uniform",
        mask_step: tuple[int, int] = (16, 16),
        views: int = 1,
        small: SmallViews | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        compiled: bool | None = None,
    ) -> None:
        """Decode the split with `threads` (None: one per processor). `augment=None`: evaluation.

        `compiled`: fuse the augmentation with `torch.compile`; None: on CUDA. The rest as in `make_loader`.
        """
        self.split, self.augment, self.views = split, augment, views
        self.rank, self.world_size = rank, world_size
        self.device = torch.device(device)
        self.order = order_of(
            split.targets, split.classes, batch_size, seed, augment, balanced=sampler == "balanced"
        )
        crops = augment is not None and augment.crop_scale is not None
        pixels = Pixels(split, preprocessing, crops=crops, mask_step=mask_step)
        self.store, self.bad = fill(pixels, self.device, threads=threads, progress=progress)
        if augment is not None and (too_many := refusal(list(self.bad.values()), len(split), len(split))):
            raise DataError(too_many)
        labels = torch.from_numpy(split.targets)
        self.labels = (labels.float() if labels.ndim == 2 else labels).to(self.device)
        settings = augment or Augment(crop_scale=None, flip=0.0)
        self.shown = shown_as(settings, preprocessing.image_size, views, small)
        self.augments = [
            BatchAugment(each.augment, each.preprocessing(preprocessing), split.classes, seed).to(self.device)
            for each in self.shown
        ]
        self.batch_augment = self.augments[0]
        compiled = self.device.type == "cuda" if compiled is None else compiled
        if compiled:  # code compiled for one number of images serves any other: the next run finds it cached
            for tensor in (*vars(self.store).values(), self.labels):
                if isinstance(tensor, Tensor):
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
        self._augmented = [torch.compile(each, dynamic=False) if compiled else each for each in self.augments]

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch; the same on every rank."""
        return self.order.steps

    def files(self, indices: Tensor | np.ndarray | Sequence[int]) -> list[str]:
        """Return the names of images, for reports."""
        return [self.split.name(int(index)) for index in indices]

    def epoch(self, epoch: int = 0, start: int = 0, *, mixed: bool = True) -> Iterator[Batch]:
        """Iterate an epoch's batches from step `start` on; `mixed=False`: without Mixup and CutMix."""
        self.batch_augment.mixed.fill_(mixed)
        return self._evaluation(start) if self.augment is None else self._training(epoch, start)

    @torch.no_grad()
    def _training(self, epoch: int, start: int) -> Iterator[Batch]:
        if start >= self.steps_per_epoch:
            return
        indices, copies = self._plan(epoch, start)
        rows, partner = self._rows(indices.shape[1])
        own = share(indices.shape[1], self.rank, self.world_size)
        numbers = torch.from_numpy(indices[:, own])
        others = None if partner is None else to_device(partner, self.device)
        kinds = [
            self._views(epoch, kind, indices[:, rows], copies[:, rows]) for kind in range(len(self.shown))
        ]
        for step, views in enumerate(zip(*kinds, strict=True)):
            yield self._batch(views, others, numbers[step])

    def _views(
        self, epoch: int, kind: int, indices: np.ndarray, copies: np.ndarray
    ) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor], Tensor]]:
        """Yield, for each batch, the images of its views of one kind, their draws, and their keys' words.

        Draws are made for many batches at a time: a few dozen kernel launches serve them all."""
        batches = [self.shown[kind].rows(i, c) for i, c in zip(indices, copies, strict=True)]
        stacked = np.stack([np.stack(column) for column in zip(*batches, strict=True)])
        plan = to_device(stacked, self.device)
        augment = self.augments[kind]
        several = max(1, DRAWN // max(1, plan.shape[2] * len(augment.purposes)))
        for some, numbers in zip(*(each.split(several) for each in plan), strict=True):
            hashed = drawing.words(augment.seed, epoch, some, numbers)
            drawn = zip(*augment.draw(epoch, some, numbers), strict=True)
            yield from zip(some, drawn, hashed, strict=True)

    def _batch(
        self,
        views: tuple[tuple[Tensor, tuple[Tensor, Tensor], Tensor], ...],
        partner: Tensor | None,
        numbers: Tensor,
    ) -> Batch:
        indices, drawn, hashed = views[0]
        own = len(numbers) * self.views
        images, targets = self._augmented[0](self.store, self.labels, indices, drawn, partner)
        small = None
        if len(views) > 1:
            small, _ = self._augmented[1](self.store, self.labels, *views[1][:2], None)
        mask = None if self.store.masks is None else self.store.masks[indices[:own]]
        return Batch(images, targets[: len(numbers)], numbers, mask, self.views, hashed[:own], small)

    def _plan(self, epoch: int, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the images of the epoch's global batches and which copy each is, (steps, batch) both."""
        batches = [self.order.batch(epoch, step) for step in range(start, self.steps_per_epoch)]
        indices, copies = (np.stack(arrays) for arrays in zip(*batches, strict=True))
        if self.bad:
            unreadable = np.isin(indices, list(self.bad))
            for step, k in np.argwhere(unreadable).tolist():
                position = (start + step) * self.order.batch_size + k
                indices[step, k], extra = self._substitute(epoch, position)
                copies[step, k] += extra
        return indices, copies

    def _substitute(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the image that takes an unreadable one's place, as `Pipeline` chooses it, and what to add to
        its copy number."""
        for attempt in range(ATTEMPTS - 1):
            drawn = words(self.order.seed, epoch, REPLACE, position, attempt)
            index = int(drawn % np.uint64(self.order.count))
            if index not in self.bad:
                return index, (attempt + 1) * SUBSTITUTE
        last = next(iter(self.bad.values()))
        raise DataError(
            f"{ATTEMPTS} unreadable files in a row, one of them {last}: run `vitreous check` on the data"
        )

    def _rows(self, count: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the rows of a global batch that this rank needs, its own first, and which of them each of
        its own is mixed with."""
        part = share(count, self.rank, self.world_size)
        own = np.arange(part.start, part.stop)
        mixes = self.augment is not None and (self.augment.mixup > 0 or self.augment.cutmix > 0)
        if not mixes or not len(own):  # a rank may have no image of a small batch
            return own, None
        paired = partners(count)[own]
        rows = np.concatenate([own, np.setdiff1d(paired, own)])
        return rows, (paired[:, None] == rows).argmax(1)

    @torch.no_grad()
    def _evaluation(self, start: int) -> Iterator[Batch]:
        """Iterate every readable image once, in order; a rank's batch may be empty."""
        for step in range(start, self.steps_per_epoch):
            indices, _ = self.order.batch(0, step)
            own = indices[share(len(indices), self.rank, self.world_size)]
            numbers = own[~np.isin(own, list(self.bad))]
            chosen = to_device(numbers, self.device)
            pixels = self.store.pixels[chosen] * self.batch_augment.scale - self.batch_augment.shift
            mask = None if self.store.masks is None else self.store.masks[chosen]
            hashed = drawing.words(0, 0, chosen, 0)  # of the image alone
            yield Batch(pixels, self.labels[chosen], torch.from_numpy(numbers), mask, words=hashed)
