"""Files that can't be read: a few are named and left out, more than one in a hundred stop training.

`check` and the start of training share one function, `stops`; its rule is `refusal`, which the loader also
applies while it reads. No file is ever changed.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from vitreous.data.images import ArrayImages
from vitreous.data.order import words
from vitreous.data.pictures import LEFT_OUT, said
from vitreous.data.split import Dataset, Split
from vitreous.errors import DataError

LIMIT = 0.01
FEWEST = 3
"""Fewer bad files than this are only named: one among fifty images is no reason to stop."""
SAMPLE = 5_000
SECONDS = 5.0
LISTED = 10
DEVIATIONS = 3.0
"""How many standard deviations above the limit the bad files of a sample must be, to rule out chance."""


class BadFile(NamedTuple):
    """A file that can't be read."""

    split: str
    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


class Screening(NamedTuple):
    """What decoding a data set's images found."""

    bad: list[BadFile]
    read: int
    """Images that were decoded."""
    total: int
    """Images in all."""


class Looked(NamedTuple):
    """What decoding the images of each split found."""

    bad: dict[str, dict[int, str]]
    """Images that can't be read, by number, and why."""
    read: dict[str, int]
    """How many were decoded."""


def require_readable(dataset: Dataset) -> list[BadFile]:
    """Raise a DataError if too many of a data set's images can't be read; else return the few that can't.

    It takes a few seconds at most: where there are many images, a sample of them is decoded.
    """
    looked = look(dataset)
    if (reason := stops(dataset, looked)) is not None:
        raise DataError(reason)
    return _files(dataset, looked.bad)


def stops(dataset: Dataset, looked: Looked) -> str | None:
    """Return why training on these splits can't start, or would be stopped by its loader; else None."""
    train = dataset.splits.get("train")
    if train is None or not len(train):
        return f"there is no training split, only {', '.join(dataset.splits)}: name a folder train"
    total = sum(len(split) for split in dataset.splits.values())
    files = list(map(str, _files(dataset, looked.bad)))
    if (reason := refusal(files, sum(looked.read.values()), total)) is not None:
        return reason
    bad, read = looked.bad.get("train", {}), looked.read.get("train", 0)
    files = list(map(str, _files(dataset, {"train": bad})))
    if (reason := refusal(files, read, len(train), "training images")) is not None:
        return reason
    if bad and read == len(train):
        targets = np.delete(train.targets, list(bad), axis=0)
        used = len(np.unique(targets)) if targets.ndim == 1 else int(targets.any(0).sum())
        if used < min(2, len(dataset.labels)):
            return f"{used} of the classes have a readable training image: two are needed"
    return None


def _files(dataset: Dataset, bad: Mapping[str, Mapping[int, str]]) -> list[BadFile]:
    return sorted(
        BadFile(name, dataset.splits[name].name(index), reason)
        for name, reasons in bad.items()
        for index, reason in reasons.items()
    )


def noted(dataset: Dataset, bad: Sequence[BadFile]) -> dict[str, str]:
    """Return what a run records about its data, name → text: its splits, and what was left out."""
    splits = [
        f"{len(split):,} {name}{' (held out)' if name in dataset.carved else ''}"
        for name, split in dataset.splits.items()
    ]
    found = {"images": ", ".join(splits)}
    if (left_out := said(dataset.left_out)) is not None:
        found["left_out"] = left_out.removeprefix(LEFT_OUT)
    if bad:
        found["unreadable"] = "; ".join(map(str, bad[:LISTED]))
    return found


def nothing_to_learn(split: Split) -> str | None:
    """Return why a split teaches no classes (all images are of one class, or copies of one), else None."""
    if split.targets.ndim == 1 and len(np.unique(split.targets)) < 2:
        return f"all {len(split):,} training images are of one class: two are needed"
    if len(split) > 1 and (split.digests == split.digests[0]).all():
        return f"all {len(split):,} training images are copies of one: there is nothing to learn"
    return None


def refusal(bad: Sequence[str], read: int, total: int, what: str = "images") -> str | None:
    """Return why images with these bad files (each as `file: reason`) are not trained on, or None.

    `read` of `total` images were decoded. If that is only a part, the excess must be beyond chance.
    """
    allowed = LIMIT * read
    if read < total:
        allowed += DEVIATIONS * math.sqrt(LIMIT * read)
    if len(bad) < FEWEST or len(bad) <= allowed:
        return None
    more = f"; and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
    return (
        f"{len(bad):,} of {read:,} {what} can't be read, more than {LIMIT:.0%}: replace or remove them "
        f"(`vitreous check` lists all): {'; '.join(bad[:LISTED])}{more}"
    )


def screen(dataset: Dataset, *, sample: int = SAMPLE, seconds: float = SECONDS) -> Screening:
    """Return what `look` found, of all splits together."""
    looked = look(dataset, sample=sample, seconds=seconds)
    total = sum(len(split) for split in dataset.splits.values())
    return Screening(_files(dataset, looked.bad), sum(looked.read.values()), total)


def look(dataset: Dataset, *, sample: int = SAMPLE, seconds: float = SECONDS) -> Looked:
    """Decode images of a data set fully, in threads: at most `sample` of them, for at most `seconds`.

    The sample is evenly spaced, and so is the part of it that was read when time runs out.
    """
    splits = list(dataset.splits.items())
    ends = np.cumsum([len(split) for _, split in splits])
    total = int(ends[-1])
    if isinstance(splits[0][1].images, ArrayImages):
        return Looked({}, {name: len(split) for name, split in splits})  # decoded already
    chosen = np.unique(np.linspace(0, total - 1, min(sample, total)).astype(int))
    chosen = chosen[np.argsort(words(0, chosen), kind="stable")]  # scattered

    def try_one(number: int) -> tuple[str, int, str | None]:
        k = int(np.searchsorted(ends, number, side="right"))
        name, split = splits[k]
        index = number - int(ends[k]) + len(split)
        return name, index, unreadable(split, index)

    looked = Looked({name: {} for name, _ in splits}, dict.fromkeys(dataset.splits, 0))
    done, until, threads = 0, time.monotonic() + seconds, os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        while done < len(chosen) and (done == 0 or time.monotonic() < until):
            part = chosen[done : done + 2 * threads].tolist()
            for name, index, reason in pool.map(try_one, part):
                looked.read[name] += 1
                if reason is not None:
                    looked.bad[name][index] = reason
            done += len(part)
    return looked


def unreadable(split: Split, index: int) -> str | None:
    """Return why an image can't be read, or None. It is decoded fully: a header check accepts half a JPEG."""
    try:
        split.read(index)
    except DataError as error:
        return without_name(str(error), split.name(index))
    return None


def without_name(message: str, name: str) -> str:
    """Return a decoder's message without the file's name in front of it."""
    return message.removeprefix(f"{name}: ").rsplit(f"{os.sep}{os.path.basename(name)}: ", 1)[-1]
