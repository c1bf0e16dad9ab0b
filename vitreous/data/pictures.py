"""Which files of a folder are pictures, by their names, and how folders are searched: one rule for `check`,
`train`, `predict` and `inspect`. Whatever is left out is counted by its reason. No file is opened.
"""

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from vitreous.data import heif
from vitreous.data.decode import SUFFIXES
from vitreous.written import encodable

SORTED_UP_TO = 100_000
"""Entries of a folder that are sorted; any more come in the disk's order, so that not all names are held."""
LONGEST_ENDING = 8
EXAMPLES = 6
"""Reasons that are named in one line; the others are counted together."""

LEFT_OUT = "left out: "
MAC = "side files of macOS (._x)"
HIDDEN = "hidden files"
HIDDEN_FOLDER = "hidden folders"
HEIC = f"HEIC photographs ({heif.REMEDY})"
NO_ENDING = "files without an ending"
LOOSE = "pictures outside class folders"
NO_SPLIT = "pictures outside the split folders"
EMPTY = "folders without pictures"
LOOP = "links to a folder that they lie in"
CLOSED = "folders that can't be opened"
NOWHERE = "links that can't be followed"


@dataclass(frozen=True)
class LeftOut:
    """Files that were passed over for one reason."""

    reason: str
    count: int
    example: str


class Tally:
    """Counts what is passed over."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.examples: dict[str, str] = {}

    def add(self, reason: str, example: str) -> None:
        """Count one more."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.examples.setdefault(reason, encodable(example))

    def found(self) -> tuple[LeftOut, ...]:
        """Return the counts, the largest first."""
        rows = [LeftOut(reason, count, self.examples[reason]) for reason, count in self.counts.items()]
        return tuple(sorted(rows, key=lambda row: -row.count))


def said(left_out: tuple[LeftOut, ...]) -> str | None:
    """Return in one line what was left out and why, or None where nothing was."""
    if not left_out:
        return None
    parts = [f"{row.reason}: {row.count:,} ({row.example})" for row in left_out[:EXAMPLES]]
    if rest := left_out[EXAMPLES:]:
        parts.append(f"for other reasons: {sum(row.count for row in rest):,} (`vitreous check` lists them)")
    return LEFT_OUT + "; ".join(parts)


def why_not(name: str) -> str | None:
    """Return why a file of this name is not a picture, or None for one that is."""
    if name.startswith("."):
        return MAC if name.startswith("._") else HIDDEN
    ending = os.path.splitext(name)[1].lower()
    if ending in SUFFIXES:
        return None
    if ending in heif.ENDINGS:
        return HEIC
    if ending in ("", "."):
        return NO_ENDING
    known = len(ending) <= LONGEST_ENDING and ending[1:].isalnum()
    return f"files ending in {ending}" if known else "files with other endings"


class Seen(NamedTuple):
    """A picture below a folder, or a folder that can't be opened, and why."""

    path: str
    error: str | None = None


def walk(folder: str, tally: Tally, root: str | None = None) -> Iterator[Seen]:
    """Yield the pictures below a folder sorted by name, those of its subfolders after its own.

    Links to folders are followed, except those that would lead in a circle. What is left out is counted; the
    examples are named relative to `root`.
    """
    yield from _walk(folder, root, tally, ())


Place = tuple[int, int]


def _walk(
    folder: str, root: str | None, tally: Tally, above: tuple[Place, ...]
) -> Generator[Seen, None, int]:
    """Search a folder; return how many pictures lie below it."""
    try:
        status = os.stat(folder)
        entries = os.scandir(folder)
    except OSError as error:
        yield Seen(folder, error.strerror or str(error))
        return 1  # it may hold pictures
    above = (*above, (status.st_dev, status.st_ino))
    subfolders: list[str] = []
    count = 0
    with entries:
        some = sorted(islice(entries, SORTED_UP_TO), key=lambda entry: entry.name)
        for entry in chain(some, entries):
            try:
                is_folder = entry.is_dir()
                reason = _why_not_below(entry, above) if is_folder else why_not(entry.name)
            except OSError:  # it leads to itself, or into a folder that can't be entered
                is_folder, reason = False, NOWHERE
            if reason is not None:
                tally.add(reason, _named(entry.path, root))
            elif is_folder:
                subfolders.append(entry.path)
            else:
                count += 1
                yield Seen(entry.path)
    empty = []
    for subfolder in subfolders:
        below = yield from _walk(subfolder, root, tally, above)
        count += below
        if not below:
            empty.append(subfolder)
    if count or len(above) == 1:  # else the caller counts this folder as empty, not each of those in it
        for subfolder in empty:
            tally.add(EMPTY, _named(subfolder, root))
    return count


def _named(path: str, root: str | None) -> str:
    return path if root is None else os.path.relpath(path, root)


def _why_not_below(entry: "os.DirEntry[str]", above: tuple[Place, ...]) -> str | None:
    if entry.name.startswith("."):
        return HIDDEN_FOLDER
    if not entry.is_symlink():
        return None
    status = entry.stat()
    return LOOP if (status.st_dev, status.st_ino) in above else None
