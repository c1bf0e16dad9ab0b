"""The loader whose images are read and augmented by the host's processors, then moved to the device.

Batches come in an order that is a function of (seed, epoch, position); workers only change the speed.
"""

import contextlib
import ctypes
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from vitreous.config import Augment, Preprocessing
from vitreous.data import draws as drawing
from vitreous.data import mix, operations, variation
from vitreous.data.augment import ERASE, MIX, Draws, normalize
from vitreous.data.bad import refusal
from vitreous.data.batch import Batch
from vitreous.data.moving import to_device
from vitreous.data.order import order_of
from vitreous.data.pipeline import Pipeline, Raw, Shown, SmallViews
from vitreous.data.pixels import Pixels, open_cache
from vitreous.data.split import Split
from vitreous.errors import DataError

SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
SMALL_BATCH = 1 << 22
"""Pixels below which a batch is not worth a second thread."""

Sampling = Literal["uniform", "balanced"]


class _Steps(Sampler[tuple[int, int]]):
    """The (epoch, step) pairs that the workers are asked for; changed before each epoch."""

    def __init__(self) -> None:
        self.epoch, self.steps = 0, range(0)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(self.epoch, step) for step in self.steps])

    def __len__(self) -> int:
        return len(self.steps)


class HostLoader:
    """Iterates batches of a split whose images are read and augmented by the host's processors."""

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
        workers: int = 0,
        device: str | torch.device = "cpu",
        sampler: Sampling = "uniform",
        cache: str | Path | None = "auto",
        cache_limit: int | None = None,
        mask_step: tuple[int, int] = (16, 16),
        views: int = 1,
        small: SmallViews | None = None,
        decode: Literal["host", "device"] = "host",
    ) -> None:
        """`augment=None`: evaluation, each image once and in order. `decode`: where JPEGs of a training split
        are decoded. The rest as in `make_loader`."""
        self.split, self.preprocessing, self.augment, self.views = split, preprocessing, augment, views
        self.device, self.workers, self.seed = torch.device(device), workers, seed
        crops = augment is not None and augment.crop_scale is not None
        self.order = order_of(
            split.targets, split.classes, batch_size, seed, augment, balanced=sampler == "balanced"
        )
        self.bad: dict[int, str] = {}
        # Colour operations run in batches on the device, image by image on the host
        self.on_device = self.device.type != "cpu" or decode == "device"
        if decode == "device":
            cache = None
        opened = open_cache(split, preprocessing, crops=crops, where=cache, limit=cache_limit)
        self.pipeline = Pipeline(
            Pixels(split, preprocessing, crops=crops, mask_step=mask_step, cache=opened),
            augment,
            self.order,
            rank=rank,
            world_size=world_size,
            operate=not self.on_device,
            views=views,
            small=small,
            decode=decode == "host",
        )
        self.steps = _Steps()
        self._loader: DataLoader[Raw] | None = None
        self._mixing = True

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch; the same on every rank."""
        return self.order.steps

    def files(self, indices: Tensor | np.ndarray | Sequence[int]) -> list[str]:
        """Return the names of images, for reports."""
        return [self.split.name(int(index)) for index in indices]

    def epoch(self, epoch: int = 0, start: int = 0, *, mixed: bool = True) -> Iterator[Batch]:
        """Iterate an epoch's batches from step `start` on; `mixed=False`: without Mixup and CutMix.

        Evaluation may give a rank an empty batch, where the last global batch has fewer images than there are
        ranks: all ranks then take the same number of steps.
        """
        self._mixing = mixed
        raws = self._raws(epoch, start)
        if self.device.type == "cuda":
            yield from self._overlapped(raws, epoch)
        else:
            for raw in raws:
                with self._threads():
                    batch = self._finish(raw, epoch)
                yield batch

    @contextlib.contextmanager
    def _threads(self) -> Iterator[None]:
        """Work in one thread where more would only get in the way: on small batches, and beside busy
        workers."""
        size = self.order.batch_size * self.views * math.prod(self.preprocessing.image_size)
        size *= self.preprocessing.channels
        before = torch.get_num_threads()
        if self.on_device or before == 1 or (size > SMALL_BATCH and self.workers == 0):
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _raws(self, epoch: int, start: int) -> Iterator[Raw]:
        steps = range(start, self.steps_per_epoch)
        if self.workers == 0 or self.pipeline.pixels.array is not None:  # arrays in memory need no help
            for step in steps:
                with self._threads():
                    raw = self.pipeline[epoch, step]
                yield self._note(raw)
            return
        self.steps.epoch, self.steps.steps = epoch, steps
        if self._loader is None:
            self._loader = DataLoader(
                self.pipeline,  # pyright: ignore[reportArgumentType]
                sampler=self.steps,
                batch_size=None,
                num_workers=self.workers,
                collate_fn=_same,
                pin_memory=self.device.type == "cuda",
                persistent_workers=True,
                worker_init_fn=_worker_start(),
                # A generator of its own: the global one must not depend on the number of workers
                generator=torch.Generator(),
            )
        try:
            for raw in self._loader:
                yield self._note(raw)
        except DataError as error:
            raise DataError(_from_worker(error)) from None
        except (RuntimeError, MemoryError) as error:
            if "DataLoader worker" not in str(error):
                raise
            raise DataError(
                f"a loader worker died ({' '.join(str(error).split())[:120]}): fewer --workers or a smaller "
                f"batch take less memory"
            ) from error

    def _note(self, raw: Raw) -> Raw:
        """Remember a batch's bad files; stop training if they are too many of the whole split.

        An evaluation continues: its figures are of the images that could be read, and it names the others.
        """
        for index, reason in raw.bad:
            self.bad.setdefault(index, reason)
        if raw.bad and self.augment is not None:
            too_many = refusal(list(self.bad.values()), len(self.split), len(self.split))
            if too_many is not None:
                raise DataError(too_many)
        return raw

    def _overlapped(self, raws: Iterator[Raw], epoch: int) -> Iterator[Batch]:
        """Move and augment the next batch on a stream of its own while the model works on this one."""
        stream = torch.cuda.Stream(self.device)
        ready: Batch | None = None
        for raw in raws:
            with torch.cuda.stream(stream):
                upcoming = self._finish(raw, epoch)
            if ready is not None:
                yield ready
            torch.cuda.current_stream(self.device).wait_stream(stream)
            for tensor in upcoming.tensors:
                tensor.record_stream(torch.cuda.current_stream(self.device))
            ready = upcoming
        if ready is not None:
            yield ready

    def _finish(self, raw: Raw, epoch: int) -> Batch:
        """Do on the device what is done in batches: colour operations, normalising, erasing, mixing."""
        raw, images = self._decoded(raw, epoch)
        numbers, size = torch.from_numpy(raw.indices[: raw.size]), raw.size
        targets = self._targets(raw.indices)
        mask = None if raw.mask is None else to_device(raw.mask[: size * self.views], self.device)
        if self.augment is None or size == 0:
            pixels = normalize(images[:size], self.preprocessing)
            words = drawing.words(0, 0, to_device(numbers, self.device), 0)  # of the image alone
            return Batch(pixels, targets[:size], numbers, mask, self.views, words)
        shown = self.pipeline.shown
        pixels, draws, hashed = self._varied(images, raw, epoch, shown[0])
        if raw.partner is not None:
            pixels, targets = self._mixed(pixels, targets, draws, raw.partner)
        small = None
        if raw.small is not None:
            small = self._varied(to_device(raw.small, self.device), raw, epoch, shown[1])[0]
        own = size * self.views
        return Batch(pixels[:own], targets[:size], numbers, mask, self.views, hashed[:own], small)

    def _varied(self, images: Tensor, raw: Raw, epoch: int, shown: Shown) -> tuple[Tensor, Draws, Tensor]:
        """Vary and normalise images as views of one kind; return them, their draws and their keys' words."""
        draws = Draws(shown.augment, self.seed, epoch, *shown.rows(raw.indices, raw.copies))
        if self.on_device and draws.operate.shape[1]:
            images = operations.apply_batch(images, operations.choose(shown.augment, draws.operate))
        hashed = to_device(draws.hashed, self.device)
        images = variation.vary(images, shown.augment, variation.draw(shown.augment, hashed))
        pixels = normalize(images, self.preprocessing)
        if shown.augment.erase > 0:
            pixels = self._erased(pixels, draws)
        return pixels, draws, hashed

    def _decoded(self, raw: Raw, epoch: int) -> tuple[Raw, Tensor]:
        """Return the batch's pixels on the device, decoded there where they still have to be."""
        images = to_device(raw.images, self.device)
        if raw.encoded is None:
            return raw, images
        if not len(images):
            shape = self.pipeline.shape(len(raw.indices))
            images = torch.empty(shape, dtype=torch.uint8, device=self.device)
        try:
            raw.encoded.decode(images, self.preprocessing.interpolation)
            return raw, images
        except RuntimeError:
            raw = self._note(self.pipeline.redo(raw, epoch))
            return raw, to_device(raw.images, self.device)

    def _erased(self, pixels: Tensor, draws: Draws) -> Tensor:
        chances = draws.uniforms(ERASE, mix.ERASE_DRAWS)
        boxes = mix.erase_boxes(chances, draws.augment.erase, *pixels.shape[2:])
        return mix.erase(pixels, boxes, draws.hashed)

    def _mixed(
        self, pixels: Tensor, targets: Tensor, draws: Draws, partner: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """Mix the rank's images, which are the first rows, and their targets with their partners."""
        assert self.augment is not None
        size = len(partner)
        chances = draws.uniforms(MIX, mix.MIX_DRAWS)[:size]
        settings = self.augment if self._mixing else replace(self.augment, mix_probability=0.0)
        own, boxes = mix.mix_shares(settings, chances, *self.preprocessing.image_size)
        others = to_device(partner, self.device)
        soft = self._soft(targets)
        mixed = mix.mix(pixels[:size], pixels[others], own, boxes)
        return mixed, mix.mix_targets(soft[:size], soft[others], own)

    def _targets(self, indices: np.ndarray) -> Tensor:
        targets = torch.from_numpy(self.split.targets[indices])
        if targets.ndim == 2:
            targets = targets.float()
        return to_device(targets, self.device)

    def _soft(self, targets: Tensor) -> Tensor:
        if targets.ndim == 2:
            return targets
        return torch.nn.functional.one_hot(targets, self.split.classes).float()


def _from_worker(error: DataError) -> str:
    """Return an error's message without the traceback that torch puts before it when a worker raised it."""
    text = str(error)
    return text.rpartition("DataError: ")[2].strip() if "DataLoader worker" in text else text


def _worker_start() -> Callable[[int], None]:
    """Return what a worker does first. One started by a thread other than the main one is not tied: that
    thread may end before its process."""
    tied = threading.current_thread() is threading.main_thread()
    return partial(_begin_worker, tied=tied)


def _begin_worker(_: int, *, tied: bool) -> None:
    """Shield a worker from signals that terminals and shells send to the whole run: the main process decides,
    saves while batches still arrive, and then ends its workers.

    `tied`: if the main process itself is killed, the worker ends with it at once (Linux)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    if tied:
        with contextlib.suppress(AttributeError, OSError, TypeError):  # torch checks every few seconds anyway
            ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _same(raw: Any) -> Any:
    return raw
