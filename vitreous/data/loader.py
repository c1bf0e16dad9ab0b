"""Loaders: what training and evaluation read batches from, and the one function that makes them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from vitreous.config import Augment, Preprocessing
from vitreous.data.augment import resolve
from vitreous.data.batch import Batch
from vitreous.data.device import DeviceLoader
from vitreous.data.host import HostLoader, Sampling
from vitreous.data.images import ArrayImages
from vitreous.data.pipeline import SmallViews
from vitreous.data.split import Split, typical_size
from vitreous.errors import DataError


class Loader(Protocol):
    """Batches of a split, in an order that is a function of (seed, epoch, position) and of nothing else."""

    split: Split
    bad: dict[int, str]
    """Images that turned out unreadable so far, by number, and why: `file: reason`."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch; the same on every rank."""
        ...

    def epoch(self, epoch: int = 0, start: int = 0, *, mixed: bool = True) -> Iterator[Batch]:
        """Iterate an epoch's batches from step `start` on; `mixed=False`: without Mixup and CutMix."""
        ...

    def files(self, indices: Tensor | np.ndarray | Sequence[int]) -> list[str]:
        """Return the names of images, for reports."""
        ...


def make_loader(
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
    sampler: Sampling = "uniform",
    cache: str | Path | None = "auto",
    cache_limit: int | None = None,
    mask_step: int | tuple[int, int] = 16,
    views: int = 1,
    small: SmallViews | None = None,
    pixels: Literal["host", "decode", "device"] = "host",
    progress: Callable[[int, int], None] | None = None,
) -> Loader:
    """Return a loader of a split: for training, or (`training=False`) for each image once and in order.

    Args:
        split: The images.
        preprocessing: How the model wants them.
        augment: How training images are varied: a preset's name, which is fitted to the images, or in full.
        batch_size: Images in a global batch: each of `world_size` ranks gets its share of it.
        seed: Of the order and of all draws.
        rank: Whose share is read.
        world_size: How many ranks there are.
        workers: Processes that read; 0: this one. They change nothing but the speed.
        device: Where the batches go.
        training: Whether images are shuffled and varied.
        sampler: "balanced" draws every class equally often.
        cache: Where decoded images are kept: "auto", the user's cache folder; a path; None, nowhere.
        cache_limit: Bytes that the cache may take; None: 32 GB or half of the free disk.
        mask_step: Height and width in pixels of what a token sees (a model config's `step`: a hybrid's is its
            stem's stride times its patch). Where images are padded, `batch.mask` has a place for each.
        views: How often each image comes in its batch, differently varied (see `Batch`).
        small: Further views of each image, in a smaller size.
        pixels: "host": read, decode and crop here. "decode": decode and crop a training split's JPEGs on the
            device, batch by batch. "device": decode the split once, keep it in the device's memory, vary it
            there.
        progress: Called with how many images are on the device, and how many there are.
    """
    _check(split, batch_size, rank, world_size, workers, sampler)
    common: dict[str, Any] = {
        "preprocessing": preprocessing,
        "augment": _fitted(augment, split, preprocessing, views, small) if training else None,
        "batch_size": batch_size,
        "seed": seed,
        "rank": rank,
        "world_size": world_size,
        "device": device,
        "sampler": sampler,
        "mask_step": (mask_step, mask_step) if isinstance(mask_step, int) else mask_step,
        "views": _checked_views(views, training),
        "small": small if training else None,
    }
    if pixels == "device":
        return DeviceLoader(split, progress=progress, **common)
    there = pixels == "decode" and not why_not_decoded(split, preprocessing, common["augment"], small)
    decode: Literal["host", "device"] = "device" if there else "host"
    return HostLoader(split, workers=workers, cache=cache, cache_limit=cache_limit, decode=decode, **common)


def why_not_decoded(
    split: Split, preprocessing: Preprocessing, augment: Augment | None, small: SmallViews | None
) -> str:
    """Return why the device can't decode and crop a split's JPEGs batch by batch; nothing if it can."""
    reasons = {
        "the images are arrays": isinstance(split.images, ArrayImages),
        "the device cuts crops of one size only": small is not None,
        "no random crops are cut": augment is None
        or augment.crop_scale is None
        or preprocessing.resize == "pad",
        "the device decodes colours only": preprocessing.channels != 3,
        f"the device does not resize by {preprocessing.interpolation}": preprocessing.interpolation
        not in ("bilinear", "bicubic"),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _fitted(
    augment: str | Augment, split: Split, preprocessing: Preprocessing, views: int, small: SmallViews | None
) -> Augment:
    """Return the augmentation in full, checked against the images and the number of views."""
    # Only a preset depends on the images' size, which has to be read from the files.
    size = typical_size(split) if isinstance(augment, str) else preprocessing.image_size
    full = resolve(
        augment,
        mirror=split.mirror,
        size=size,
        channels=preprocessing.channels,
        resize=preprocessing.resize,
    )
    if views > 1 and (full.mixup > 0 or full.cutmix > 0):
        raise DataError(
            f"{views} views of an image share its target, which Mixup ({full.mixup:g}) and CutMix "
            f"({full.cutmix:g}) would change in each: set both to 0"
        )
    if small is not None and full.crop_scale is None:
        raise DataError("small views are crops of the image: give a --crop-scale, and no --fit pad")
    return full


def _checked_views(views: int, training: bool) -> int:
    if views < 1 or (views > 1 and not training):
        raise DataError(f"{views} views of an image: 1 or more in training, 1 in evaluation")
    return views


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
