"""Hashes of what images contain: they find duplicates, decide the split and key the cache. Names and times
don't count.

A file's hash is remembered by its path, size and times of change, so that an unchanged file is read once.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from vitreous.data.images import ArrayImages, EncodedImages, Images
from vitreous.data.store import load_arrays, write_whole
from vitreous.errors import DataError
from vitreous.files import cache_root

SIZE = 16
REMEMBER_FROM = 256
"""With fewer files than this, hashing them again costs less than keeping their hashes in a file."""
ALONE = 1 << 14
"""Bytes of pixels below which an image is hashed faster than it is handed to another thread."""


def digest(data: bytes) -> bytes:
    """Return the 16-byte content hash of an image's bytes."""
    return hashlib.blake2b(data, digest_size=SIZE).digest()


def digests(images: Images) -> np.ndarray:
    """Return uint8 (N, 16): each image's content hash."""
    if isinstance(images, ArrayImages):
        numbers = range(len(images))
        if images.pixels[:1].nbytes < ALONE:
            return _rows([digest(images.data(i)) for i in numbers])
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # hashing releases the GIL
            return _rows(list(pool.map(lambda i: digest(images.data(i)), numbers, chunksize=64)))
    keys = _keys(images)
    known = _remembered(images) if len(images) >= REMEMBER_FROM else {}
    missing = [i for i, key in enumerate(keys) if key not in known]
    with ThreadPoolExecutor(min(8, (os.cpu_count() or 1) * 2)) as pool:
        found = dict(zip(missing, pool.map(lambda i: _digest(images, i), missing, chunksize=64), strict=True))
    rows = [known[key] if i not in found else found[i] for i, key in enumerate(keys)]
    if missing and len(images) >= REMEMBER_FROM:
        _remember(images, keys, rows)
    return _rows(rows)


def _digest(images: EncodedImages, index: int) -> bytes:
    try:
        return digest(images.data(index))
    except DataError:  # unreadable: nobody's duplicate; decoding will name it
        return digest(b"unreadable\0" + images.name(index).encode("utf-8", "surrogateescape"))


def _keys(images: EncodedImages) -> list[bytes]:
    stamps: dict[str, bytes] = {}
    keys = []
    for i in range(len(images)):
        path = images.path(i)
        if path not in stamps:
            stamps[path] = stamp(path)
        keys.append(digest(stamps[path] + repr(images.span(i)).encode()))
    return keys


def stamp(path: str) -> bytes:
    """Identify a file without reading it: path, size and times of change.

    The time of its last write can be set back by anyone, that of its last change of any kind can't."""
    try:
        status = os.stat(path)
        times = f"{status.st_mtime_ns}\0{status.st_ctime_ns}"
        return f"{os.path.abspath(path)}\0{status.st_size}\0{times}".encode("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return os.urandom(SIZE)  # unreadable now, perhaps not later: never remembered


def _memory(images: EncodedImages):
    folder = os.path.commonpath([os.path.abspath(os.path.dirname(path)) for path in set(images.paths)])
    return cache_root() / "hashes" / f"{digest(folder.encode('utf-8', 'surrogateescape')).hex()}.npz"


def _remembered(images: EncodedImages) -> dict[bytes, bytes]:
    arrays = load_arrays(_memory(images))
    if arrays is None or not {"keys", "digests"} <= arrays.keys():
        return {}
    return {
        key.tobytes(): value.tobytes() for key, value in zip(arrays["keys"], arrays["digests"], strict=True)
    }


def _remember(images: EncodedImages, keys: list[bytes], rows: list[bytes]) -> None:
    write_whole(_memory(images), lambda file: np.savez(file, keys=_rows(keys), digests=_rows(rows)))


def _rows(hashed: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(hashed), np.uint8).reshape(-1, SIZE)
