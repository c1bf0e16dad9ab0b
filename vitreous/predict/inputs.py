"""What the user named, as a lazy stream of images: files, folders, patterns, standard input, or in memory.

Nothing is opened here, and no more names are held than one folder of moderate size has.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import has_magic, iglob
from itertools import chain, islice
from typing import Any, BinaryIO

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.data import pictures
from vitreous.data.decode import MAX_BYTES, SUFFIXES
from vitreous.data.pictures import Tally
from vitreous.errors import DataError, kind

SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF87a", b"GIF89a", b"II*\0", b"II+\0", b"MM\0*", b"\0\0\0")
BMP_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)
"""Sizes of the header that follows the first 14 bytes of a BMP: its two letters may begin a name as well."""
PEEK = 18
BOM = "\ufeff"
"""Windows' editors put it before the first line of a list."""
KINDS = "give a path, a folder, a pattern, bytes, an open file, a Pillow image, an array or a tensor"


@dataclass(frozen=True)
class Item:
    """One thing to predict: a file by its name, bytes or a picture in memory, or why there is nothing."""

    file: str
    """Its name; empty where it has none."""
    data: Any = None
    """Encoded bytes, or a picture as `Classifier.prepare` takes it."""
    error: str | None = None


def find(paths: Iterable[str], stdin: BinaryIO | None = None, tally: Tally | None = None) -> Iterator[Item]:
    """Yield the images of files, folders (searched whole), shell patterns, and `-`: standard input.

    Standard input is an image, or a list of files: one per line, or ended by NUL as `find -print0` writes it.
    What is passed over in folders is counted in `tally`.
    """
    tally = Tally() if tally is None else tally
    for path in paths:
        if path == "-":
            yield from _standard_input(stdin or sys.stdin.buffer)
        elif os.path.isdir(path):
            yield from _or_error(
                _walk(path, tally), path, f"no image in this folder ({', '.join(sorted(SUFFIXES))})"
            )
        elif has_magic(path) and not os.path.lexists(path):
            yield from _or_error(_matches(path, tally), path, "no file matches this pattern")
        else:
            yield Item(path)


def items(given: Any) -> Iterator[Item]:
    """Yield what a Python caller gave: one picture or several of any kind, folders and patterns too."""
    single = isinstance(given, str | os.PathLike | bytes | bytearray | Image.Image) or hasattr(given, "read")
    if isinstance(given, np.ndarray | Tensor):
        single = given.ndim != 4
    if single:
        several = [given]
    elif isinstance(given, Iterable):
        several = list(given)
    else:
        raise DataError(f"{kind(given)} is no picture: {KINDS}")
    for each in several:  # before any of them is read
        known = isinstance(each, str | os.PathLike | bytes | bytearray | Image.Image | np.ndarray | Tensor)
        if not known and not hasattr(each, "read"):
            raise DataError(f"{kind(each)} is no picture: {KINDS}")
    for each in several:
        if hasattr(each, "read"):
            yield _opened(each)
        elif isinstance(each, bytearray):
            yield Item("", data=bytes(each))
        elif isinstance(each, str | os.PathLike):
            yield from find([os.fspath(each)])
        elif isinstance(each, np.ndarray | Tensor) and each.ndim == 4:
            yield from (Item("", data=one) for one in each)
        else:
            yield Item("", data=each)


def _opened(file: Any) -> Item:
    """Return the picture in an open file."""
    data = file.read(MAX_BYTES + 1)
    if not isinstance(data, bytes):
        raise DataError(f"{getattr(file, 'name', 'the file')} is open as text: open it as bytes ('rb')")
    return Item("", data=data)


def _or_error(items: Iterator[Item], path: str, error: str) -> Iterator[Item]:
    first = next(items, None)
    return chain([first], items) if first else iter([Item(path, error=error)])


def _matches(pattern: str, tally: Tally) -> Iterator[Item]:
    """Yield what a pattern matches, by name; beyond 100,000 matches in the disk's order."""
    found = iglob(pattern, recursive=True)
    for path in chain(sorted(islice(found, pictures.SORTED_UP_TO)), found):
        if os.path.isdir(path):
            if not pattern.endswith("**"):  # `**` names every folder below, whose files it names too
                yield from _walk(path, tally)
        else:
            yield Item(path)


def _walk(folder: str, tally: Tally) -> Iterator[Item]:
    for path, error in pictures.walk(folder, tally):
        yield Item(path, error=error)


def _standard_input(stream: BinaryIO) -> Iterator[Item]:
    start = stream.read(PEEK)
    if _begins_image(start):
        yield Item("-", data=start + stream.read(MAX_BYTES))
        return
    found = False
    for name in map(os.fsdecode, _names(stream, start)):
        if not found and name.startswith(BOM) and not os.path.lexists(name):
            name = name.removeprefix(BOM)
        found = True
        yield Item(name)
    if not found:
        yield Item("-", error="standard input is empty: pipe an image or a list of files into it")


def _begins_image(start: bytes) -> bool:
    if start.startswith(b"BM"):
        return int.from_bytes(start[14:18], "little") in BMP_HEADERS
    return start.startswith(SIGNATURES) or (start[:4] == b"RIFF" and start[8:12] == b"WEBP")


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
