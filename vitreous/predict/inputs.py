"""What the user named, as a lazy stream of image files: files, folders, patterns, standard input.

Nothing is opened here, and no more names are held than one folder of moderate size has.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import has_magic, iglob
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from vitreous.data.decode import MAX_BYTES, SUFFIXES

SORTED_UP_TO = 100_000
"""A larger folder comes in the disk's order: sorting it would mean to hold all of its names."""
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*", b"BM", b"\0\0\0")
PEEK = 4


@dataclass(frozen=True)
class Item:
    """One thing to predict: a file by its name, bytes that came with it, or why there is nothing."""

    file: str
    data: bytes | None = None
    error: str | None = None


def find(paths: Sequence[str], stdin: BinaryIO | None = None) -> Iterator[Item]:
    """Yield the images of files, folders (searched whole), shell patterns, and `-`: standard input.

    Standard input is an image, or a list of files: one per line, or ended by NUL as `find -print0` writes it.
    """
    for path in paths:
        if path == "-":
            yield from _standard_input(stdin or sys.stdin.buffer)
        elif os.path.isdir(path):
            yield from _or_error(
                _walk(path), path, f"no image in this folder ({', '.join(sorted(SUFFIXES))})"
            )
        elif has_magic(path) and not os.path.lexists(path):
            yield from _or_error(_matches(path), path, "no file matches this pattern")
        else:
            yield Item(path)


def _or_error(items: Iterator[Item], path: str, error: str) -> Iterator[Item]:
    first = next(items, None)
    return chain([first], items) if first else iter([Item(path, error=error)])


def _matches(pattern: str) -> Iterator[Item]:
    for path in iglob(pattern, recursive=True):
        if os.path.isdir(path):
            if not pattern.endswith("**"):  # `**` names every folder below, whose files it names too
                yield from _walk(path)
        else:
            yield Item(path)


def _walk(folder: str) -> Iterator[Item]:
    """Yield a folder's images, those of its subfolders after its own; links to folders are not followed."""
    try:
        with os.scandir(folder) as entries:
            some = list(islice(entries, SORTED_UP_TO))
            some.sort(key=lambda entry: entry.name)
            subfolders = []
            for entry in chain(some, entries):
                if entry.is_dir(follow_symlinks=False):
                    subfolders.append(entry.path)
                elif Path(entry.name).suffix.lower() in SUFFIXES:
                    yield Item(entry.path)
    except OSError as error:
        yield Item(folder, error=error.strerror or str(error))
        return
    for subfolder in subfolders:
        yield from _walk(subfolder)


def _standard_input(stream: BinaryIO) -> Iterator[Item]:
    start = stream.read(PEEK)
    if start.startswith(SIGNATURES):
        yield Item("-", data=start + stream.read(MAX_BYTES))
        return
    found = False
    for name in _names(stream, start):
        found = True
        yield Item(os.fsdecode(name))
    if not found:
        yield Item("-", error="standard input is empty: pipe an image or a list of files into it")


def _names(stream: BinaryIO, held: bytes) -> Iterator[bytes]:
    """Split a stream at NUL if the first name ends with one, else at line ends."""
    separator = None
    while True:
        block = stream.read1(1 << 16) if hasattr(stream, "read1") else stream.read(1 << 16)  # type: ignore[attr-defined]
        held += block
        if separator is None and (marks := [mark for mark in (b"\0", b"\n") if mark in held]):
            separator = min(marks, key=held.index)
        if separator is not None:
            *whole, held = held.split(separator)
            yield from (name.rstrip(b"\r") for name in whole if name.strip())
        if not block:
            break
    if held.strip():
        yield held.rstrip(b"\r")
