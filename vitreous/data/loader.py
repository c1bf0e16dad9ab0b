"""Batches on a device, in an order that is a function of (seed, epoch, position); workers only change the
speed."""

import contextlib
import math
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from vitreous.config import Augment, Preprocessing
from vitreous.data import mix, operations
from vitreous.data.augment import ERASE, MIX, TINY, Draws, normalize, preset
from vitreous.data.cache import ImageCache
from vitreous.data.images import ArrayImages
from vitreous.data.order import Order, balanced_weights, words
from vitreous.data.pipeline import Pipeline, Raw, storage_size
from vitreous.data.split import Split
from vitreous.data.store import cache_root
from vitreous.errors import DataError

SMALL_BATCH = 1 << 22
"""Pixels below which a batch is not worth a second thread."""


@dataclass
class Batch:
    """One rank's part of a global batch, ready for the model."""

    images: Tensor
    """float32 (B, C, H, W), normalised, on the device."""
    targets: Tensor
    """int64 (B,), or float32 (B, K): several labels, or mixed ones."""
    indices: Tensor
    """int64 (B,), on the CPU: the images' numbers in the split."""
    mask: Tensor | None = None
    """bool (B, N): patches that are not padding, where images keep their aspect."""

    def __len__(self) -> int:
        return len(self.images)


class _Steps(Sampler[tuple[int, int]]):
    """The (epoch, step) pairs that the workers are asked for; changed before each epoch."""

    def __init__(self) -> None:
        self.epoch, self.steps = 0, range(0)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(self.epoch, step) for step in self.steps])

    def __len__(self) -> int:
        return len(self.steps)


class Loader:
    """Iterates batches of a split, for training or (each image once, in order) for evaluation."""

    def __init__(
        self,
        split: Split,
        *,
        preprocessing: Preprocessing,
        augment: str | Augment = "none",
        batch_size: int = 64,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
        device: str | torch.device = "cpu",
        training: bool = True,
        sampler: Literal["uniform", "balanced"] = "uniform",
        cache: str | Path | None = "auto",
        cache_limit: int | None = None,
        patch_size: int | tuple[int, int] = 16,
    ) -> None:
        """`batch_size` is global: each of `world_size` ranks gets its share of it.

        `cache`: "auto" keeps decoded images in the user's cache folder, a path keeps them there, None
        nowhere."""
        _check(split, batch_size, rank, world_size, workers, sampler)
        self.split, self.preprocessing, self.training = split, preprocessing, training
        self.device, self.workers, self.seed = torch.device(device), workers, seed
        self.augment = resolve(augment, split, preprocessing) if training else None
        self.order = Order(
            len(split),
            batch_size,
            seed,
            shuffle=training,
            repeats=self.augment.repeats if self.augment else 1,
            weights=balanced_weights(split.targets, split.classes)
            if training and sampler == "balanced"
            else None,
        )
        self.bad: dict[int, str] = {}
        both = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
        self.on_device = self.device.type != "cpu"  # colour operations in batches there, image by image here
        self.pipeline = Pipeline(
            split,
            preprocessing,
            self.augment,
            self.order,
            patch_size=both,
            rank=rank,
            world_size=world_size,
            operate=not self.on_device,
            cache=self._open_cache(cache, cache_limit),
        )
        self.steps = _Steps()
        self._loader: DataLoader[Raw] | None = None

    def _open_cache(self, cache: str | Path | None, limit: int | None) -> ImageCache | None:
        if cache is None or cache == "none" or isinstance(self.split.images, ArrayImages):
            return None
        root = cache_root() / "images" if cache == "auto" else Path(cache)
        settings = self.preprocessing
        if self.augment is not None and self.augment.crop_scale is not None:
            shortest = storage_size(settings.image_size)
            transform, bytes_each = (
                f"scaled{shortest}-{settings.channels}",
                shortest * shortest * 2 * settings.channels,
            )
        else:
            fit = (settings.image_size, settings.resize, settings.resize_size, settings.interpolation)
            transform = f"fitted-{settings.channels}-{words(*map(ord, repr(fit))).item():x}"
            bytes_each = settings.image_size[0] * settings.image_size[1] * settings.channels
        opened = ImageCache(root, transform, limit)
        opened.make_room((row.tobytes() for row in self.split.digests), bytes_each)
        return opened

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch; the same on every rank."""
        return self.order.steps

    def __len__(self) -> int:
        return self.steps_per_epoch

    def files(self, indices: Tensor | np.ndarray | Sequence[int]) -> list[str]:
        """Return the names of images, for reports."""
        return [self.split.name(int(index)) for index in indices]

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Iterate an epoch's batches from step `start` on.

        Evaluation may give a rank an empty batch, where the last global batch has fewer images than there are
        ranks: all ranks then take the same number of steps.
        """
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
        size = self.order.batch_size * math.prod(self.preprocessing.image_size) * self.preprocessing.channels
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
        if self.workers == 0 or self.pipeline.array is not None:  # arrays in memory need no help
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
                worker_init_fn=_leave_ctrl_c,
                # Its own: the global one must not depend on the number of workers
                generator=torch.Generator(),
            )
        try:
            for raw in self._loader:
                yield self._note(raw)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise DataError(
                f"a loader worker died ({' '.join(str(error).split())[:120]}): fewer --workers or a smaller "
                f"batch take less memory"
            ) from error

    def _note(self, raw: Raw) -> Raw:
        for index, reason in raw.bad:
            self.bad.setdefault(index, reason)
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
            for tensor in (upcoming.images, upcoming.targets, upcoming.mask):
                if tensor is not None:
                    tensor.record_stream(torch.cuda.current_stream(self.device))
            ready = upcoming
        if ready is not None:
            yield ready

    def _finish(self, raw: Raw, epoch: int) -> Batch:
        """Do on the device what is done in batches: colour operations, normalising, erasing, mixing."""
        images = raw.images.to(self.device, non_blocking=True)
        indices, numbers = raw.indices, torch.from_numpy(raw.indices[: raw.size])
        targets = self._targets(indices)
        count = raw.size
        mask = None if raw.mask is None else raw.mask[:count].to(self.device, non_blocking=True)
        if self.augment is None or count == 0:
            return Batch(normalize(images[:count], self.preprocessing), targets[:count], numbers, mask)
        draws = Draws(self.augment, self.seed, epoch, indices, raw.copies)
        if self.on_device and draws.operate.shape[1]:
            images = operations.apply_batch(images, operations.choose(self.augment, draws.operate))
        pixels = normalize(images, self.preprocessing)
        height, width = self.preprocessing.image_size
        if self.augment.erase > 0:
            chances = draws.uniforms(ERASE, mix.ERASE_DRAWS)
            boxes = mix.erase_boxes(chances, self.augment.erase, height, width)
            seeds = words(self.seed, epoch, indices, raw.copies, ERASE)
            pixels = mix.erase(pixels, boxes, seeds)
        if raw.partner is not None:
            own, boxes = mix.mix_shares(
                self.augment, draws.uniforms(MIX, mix.MIX_DRAWS)[:count], height, width
            )
            others = torch.from_numpy(raw.partner).to(self.device)
            pixels = mix.mix(pixels[:count], pixels[others], own, boxes)
            soft = self._soft(targets)
            targets = mix.mix_targets(soft[:count], soft[others], own)
        return Batch(pixels[:count], targets[:count], numbers, mask)

    def _targets(self, indices: np.ndarray) -> Tensor:
        targets = torch.from_numpy(self.split.targets[indices])
        if targets.ndim == 2:
            targets = targets.float()
        return targets.to(self.device, non_blocking=True)

    def _soft(self, targets: Tensor) -> Tensor:
        if targets.ndim == 2:
            return targets
        return torch.nn.functional.one_hot(targets, self.split.classes).float()


def resolve(augment: str | Augment, split: Split, preprocessing: Preprocessing) -> Augment:
    """Return the augmentation for a split's images: a preset fitted to them, or what the user set,
    checked."""
    if isinstance(augment, str):
        array = split.images.pixels if isinstance(split.images, ArrayImages) else None
        tiny = array is not None and min(array.shape[1:3]) < TINY
        augment = preset(augment, mirror=split.mirror, tiny=tiny)
        if preprocessing.channels not in (
            1,
            3,
        ):  # a preset fits what it is given to; an explicit wish is refused below
            augment = replace(augment, randaugment=(0, 0))
    if preprocessing.resize == "pad":
        augment = replace(augment, crop_scale=None)  # native aspect: the whole image is seen
    operations.check_operations(augment, preprocessing.channels)
    return augment


def _check(split: Split, batch_size: int, rank: int, world_size: int, workers: int, sampler: str) -> None:
    if not len(split):
        raise DataError("the split has no images: check the data with `vitreous check`")
    if batch_size < 1 or batch_size < world_size:
        raise DataError(
            f"batch size {batch_size} is too small: at least 1, and one image for each of {world_size} ranks"
        )
    if not 0 <= rank < world_size:
        raise DataError(f"rank {rank} is not one of {world_size} ranks: 0 to {world_size - 1}")
    if workers < 0:
        raise DataError(f"{workers} workers: 0 (in this process) or more")
    if sampler not in ("uniform", "balanced"):
        raise DataError(f"unknown sampler {sampler!r}: uniform or balanced")


def _leave_ctrl_c(_: int) -> None:
    """Leave Ctrl-C, which a terminal sends to every process, to the main one: it may want to save first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _same(raw: Any) -> Any:
    return raw
