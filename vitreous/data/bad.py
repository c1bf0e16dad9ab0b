"""Files that can't be read: few of them are named and left out, more than one in a hundred stop a training.

`check`, the start of a training and its loader ask the same function, `refusal`. No file is ever changed.
"""

import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from vitreous.data.images import ArrayImages
from vitreous.data.order import words
from vitreous.data.split import Dataset, Split
from vitreous.errors import DataError

LIMIT = 0.01
FEWEST = 3
"""Fewer bad files than this are only named: one among fifty images is no reason to stop."""
SAMPLE = 5_000
SECONDS = 5.0
LISTED = 10
DEVIATIONS = 3.0
"""A sample must show too many bad files beyond chance: by so many standard deviations."""


class BadFile(NamedTuple):
    """A file that can't be read."""

    split: str
    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


class Screening(NamedTuple):
    """What a look at a data set's images found."""

    bad: list[BadFile]
    read: int
    """Images that were decoded."""
    total: int
    """Images that there are."""


def require_readable(dataset: Dataset) -> list[BadFile]:
    """Raise a DataError where too many of a data set's images can't be read; return the few that can't.

    It takes a few seconds at most: where there are many images, a sample of them is decoded.
    """
    bad, read, total = screen(dataset)
    if (reason := refusal(list(map(str, bad)), read, total)) is not None:
        raise DataError(reason)
    return bad


def nothing_to_learn(split: Split) -> str | None:
    """Return why the images of a split teach no classes: they are of one class or copies of one; or None."""
    if split.targets.ndim == 1 and len(np.unique(split.targets)) < 2:
        return f"all {len(split):,} training images are of one class: two are needed"
    if len(split) > 1 and (split.digests == split.digests[0]).all():
        return f"all {len(split):,} training images are copies of one: there is nothing to learn"
    return None


def refusal(bad: Sequence[str], read: int, total: int) -> str | None:
    """Return why images with these bad files (each as `file: reason`) are not trained on, or None.

    `read` of `total` images were decoded. Where that is a part, the bad ones must be too many beyond chance.
    """
    allowed = LIMIT * read
    if read < total:
        allowed += DEVIATIONS * math.sqrt(LIMIT * read)
    if len(bad) < FEWEST or len(bad) <= allowed:
        return None
    more = f"; and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
    return (
        f"{len(bad):,} of {read:,} images can't be read, more than {LIMIT:.0%}: replace or remove them "
        f"(`vitreous check` lists all): {'; '.join(bad[:LISTED])}{more}"
    )


def screen(dataset: Dataset, *, sample: int = SAMPLE, seconds: float = SECONDS) -> Screening:
    """Decode images of a data set fully, in threads: `sample` of them at most, for so many seconds.

    The sample is evenly spaced, and so is what was read of it when the time is up.
    """
    splits = list(dataset.splits.items())
    ends = np.cumsum([len(split) for _, split in splits])
    total = int(ends[-1])
    if isinstance(splits[0][1].images, ArrayImages):
        return Screening([], total, total)  # decoded already
    chosen = np.unique(np.linspace(0, total - 1, min(sample, total)).astype(int))
    chosen = chosen[np.argsort(words(0, chosen), kind="stable")]  # scattered

    def look(number: int) -> BadFile | None:
        k = int(np.searchsorted(ends, number, side="right"))
        name, split = splits[k]
        index = number - int(ends[k]) + len(split)
        reason = unreadable(split, index)
        return None if reason is None else BadFile(name, split.name(index), reason)

    bad: list[BadFile] = []
    read, until, threads = 0, time.monotonic() + seconds, os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        while read < len(chosen) and (read == 0 or time.monotonic() < until):
            part = chosen[read : read + 2 * threads].tolist()
            bad += [found for found in pool.map(look, part) if found is not None]
            read += len(part)
    return Screening(sorted(bad), read, total)


def unreadable(split: Split, index: int) -> str | None:
    """Return why an image can't be read, or None. It is decoded fully: a header check passes half a JPEG."""
    try:
        split.read(index)
    except DataError as error:
        return without_name(str(error), split.name(index))
    return None


def without_name(message: str, name: str) -> str:
    """Return a decoder's message without the file's name in front of it."""
    return message.removeprefix(f"{name}: ").rsplit(f"{os.sep}{os.path.basename(name)}: ", 1)[-1]
