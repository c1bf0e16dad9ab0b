"""Files that can't be read: found before training, named, written down; over one in a hundred, training does
not start.

The files themselves are never touched.
"""

import csv
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitreous.data.images import ArrayImages
from vitreous.data.split import Split
from vitreous.errors import DataError

LIMIT = 0.01
SAMPLE = 5_000
LISTED = 10


class BadFile(NamedTuple):
    """One unreadable file."""

    split: str
    file: str
    reason: str


def screen(splits: dict[str, Split], *, sample: int | None = SAMPLE) -> tuple[list[BadFile], int]:
    """Decode a data set's images fully; return the bad ones and how many were looked at.

    Of a split with more than `sample` images that many are taken, evenly spaced: enough to tell 1 % from 2 %.
    None: all of them.
    """
    bad: list[BadFile] = []
    looked = 0
    for name, split in splits.items():
        if isinstance(split.images, ArrayImages):
            looked += len(split)
            continue
        count = len(split) if sample is None else min(sample, len(split))
        chosen = np.unique(np.linspace(0, len(split) - 1, count).astype(int)).tolist()
        looked += len(chosen)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            reasons = pool.map(lambda i, split=split: reason(split, i), chosen)
            bad += [BadFile(name, split.name(i), why) for i, why in zip(chosen, reasons, strict=True) if why]
    return bad, looked


def reason(split: Split, index: int) -> str | None:
    """Return why an image can't be read, or None. It is decoded fully: a header check passes half a JPEG."""
    try:
        split.read(index)
    except DataError as error:
        return plain(str(error), split.name(index))
    return None


def plain(message: str, name: str) -> str:
    """Return a decoder's message without the file's name in front of it."""
    return message.removeprefix(f"{name}: ").rsplit(f"{os.sep}{os.path.basename(name)}: ", 1)[-1]


def require_readable(bad: list[BadFile], looked: int) -> None:
    """Stop before training where more than 1 % of the images can't be read; list the first ten with
    reasons."""
    if not bad or len(bad) <= LIMIT * looked:
        return
    listed = "; ".join(f"{file.file}: {file.reason}" for file in bad[:LISTED])
    more = f"; and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
    raise DataError(
        f"{len(bad):,} of {looked:,} images can't be read, more than {LIMIT:.0%}: replace or remove them "
        f"(`vitreous check` lists all): {listed}{more}"
    )


def found_by(split_name: str, split: Split, reasons: dict[int, str]) -> list[BadFile]:
    """Return what a loader met on its way (`Loader.bad`), by name."""
    return [
        BadFile(split_name, split.name(i), plain(why, split.name(i))) for i, why in sorted(reasons.items())
    ]


def write_bad_files(path: str | Path, bad: Iterable[BadFile]) -> None:
    """Write `bad_files.csv`: split, file, reason; each file once, sorted; replaced as a whole."""
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    rows = {(file.split, file.file): file for file in bad}
    with open(part, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(BadFile._fields)
        writer.writerows(rows[key] for key in sorted(rows))
    os.replace(part, path)
