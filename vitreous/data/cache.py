"""Decoded, pre-scaled images in memory-mapped files that processes share, so that a JPEG is decoded once.

Each writing process appends to a segment of its own: pixels first, then a checksummed index entry of fixed
size. A writer that is killed leaves at worst some pixels that no entry points to. Nothing is ever changed in
place.

`files.atomic` is not used: a segment grows by one image at a time, so there is no whole file to move into
place, and forcing each image to disk would cost more than decoding it. Checksums detect what a power cut
lost."""

import contextlib
import mmap
import os
import secrets
import shutil
import struct
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

VERSION = 1
# Magic, content hash, offset, height, width, channels, checksum of the pixels; checksum of the entry.
ENTRY = struct.Struct("<4s16sQ3IQ12xI")
MAGIC = b"VIC\x01"
DEFAULT_LIMIT = 32 << 30
REFRESH_SECONDS = 1.0


class ImageCache:
    """A folder of segments with pixels of one transform, keyed by content hash; at most `limit` bytes in
    all."""

    def __init__(self, root: Path, transform: str, limit: int | None = None) -> None:
        """`root` holds the folders of all transforms, which share the limit (default: 32 GB, or half of what
        is free)."""
        self.root, self.folder = root, root / f"v{VERSION}-{transform}"
        self.limit = limit
        self._forget()

    def _forget(self) -> None:
        """Start with no open file: at first, and after a fork or in a process that received this object."""
        self._process = os.getpid()
        self._entries: dict[bytes, tuple[str, int, tuple[int, int, int], int]] = {}
        self._read: dict[str, int] = {}
        self._maps: dict[str, mmap.mmap] = {}
        self._checked: set[bytes] = set()
        self._writer: tuple[str, int, int, int] | None = None  # segment, its two descriptors, its length
        self._total = 0
        self._refreshed = 0.0
        self.writable = True

    def __getstate__(self) -> dict[str, object]:
        return {"root": self.root, "folder": self.folder, "limit": self.limit}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _own(self) -> None:
        if self._process != os.getpid():  # a forked child must not append to its parent's segment
            entries, read = self._entries, self._read
            self.close()  # the child's copies of the descriptors; the parent keeps its own
            self._forget()
            self._entries, self._read = entries, read

    def close(self) -> None:
        """Close the segment that this process writes to; a later `put` begins another."""
        if self._writer is not None:
            _, file, index, _ = self._writer
            self._writer = None
            os.close(file)
            os.close(index)

    def __del__(self) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._entries)

    def refresh(self) -> None:
        """Learn what other processes have added."""
        self._own()
        self._refreshed = time.monotonic()
        for index in sorted(self.folder.glob("*.index"), key=_age):  # of two entries the newer one wins
            self._read_index(index)
        self._total = _total(self.root)
        if self.limit is None:
            with contextlib.suppress(OSError):
                self.limit = min(DEFAULT_LIMIT, self._total + shutil.disk_usage(self._existing()).free // 2)

    def _existing(self) -> Path:
        return next(path for path in (self.root, *self.root.parents) if path.exists())

    def _read_index(self, index: Path) -> None:
        start = self._read.get(index.stem, 0)
        try:
            with open(index, "rb") as file:
                file.seek(start)
                data = file.read()
        except OSError:
            return
        whole = len(data) - len(data) % ENTRY.size  # a last entry may be half written
        for offset in range(0, whole, ENTRY.size):
            record = data[offset : offset + ENTRY.size]
            magic, key, place, height, width, channels, checksum, own = ENTRY.unpack(record)
            if magic == MAGIC and own == zlib.crc32(record[:-4]):
                self._entries[key] = (index.stem, place, (height, width, channels), checksum)
        self._read[index.stem] = start + whole

    def get(self, key: bytes) -> np.ndarray | None:
        """Return the pixels (H, W, C) of a content hash, read-only and mapped, or None."""
        self._own()
        entry = self._entries.get(key)
        if entry is None:
            if time.monotonic() - self._refreshed < REFRESH_SECONDS:
                return None
            self.refresh()
            entry = self._entries.get(key)
        return None if entry is None else self._pixels(key, *entry)

    def _pixels(
        self, key: bytes, segment: str, place: int, shape: tuple[int, int, int], checksum: int
    ) -> np.ndarray | None:
        size = shape[0] * shape[1] * shape[2]
        mapped = self._map(segment, place + size)
        if mapped is None:
            self._entries.pop(key, None)
            return None
        flat = np.frombuffer(mapped, np.uint8, size, place)
        if key not in self._checked:  # once in each process: a power cut may leave an entry without pixels
            if _checksum(flat) != checksum:
                self._entries.pop(key, None)
                return None
            self._checked.add(key)
        return flat.reshape(shape)

    def _map(self, segment: str, end: int) -> mmap.mmap | None:
        mapped = self._maps.get(segment)
        if mapped is None or len(mapped) < end:
            try:
                with open(self.folder / f"{segment}.pixels", "rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError):  # evicted, or empty
                return None
            self._maps[segment] = mapped
        return mapped if len(mapped) >= end else None

    def put(self, key: bytes, pixels: np.ndarray) -> bool:
        """Add pixels (H, W, C); return False if there is no room, or they are there already."""
        self._own()
        if not self.writable or key in self._entries:
            return False
        if self.limit is None or time.monotonic() - self._refreshed > REFRESH_SECONDS:
            self.refresh()
        data = np.ascontiguousarray(pixels)
        if self.limit is not None and self._total + data.nbytes + ENTRY.size > self.limit:
            return False
        try:
            segment, file, index, place = self._writer or self._open_writer()
            flat = data.reshape(-1)
            checksum = _checksum(flat)
            _write_all(file, flat.data)
            head = ENTRY.pack(MAGIC, key, place, *data.shape, checksum, 0)[:-4]
            _write_all(index, memoryview(head + zlib.crc32(head).to_bytes(4, "little")))
        except OSError:  # the disk is full or read-only: what is there stays usable
            self.writable = False
            self.close()
            return False
        self._writer = (segment, file, index, place + data.nbytes)
        self._total += data.nbytes + ENTRY.size
        self._entries[key] = (segment, place, data.shape, checksum)
        self._checked.add(key)
        return True

    def _open_writer(self) -> tuple[str, int, int, int]:
        self.folder.mkdir(parents=True, exist_ok=True)
        segment = f"{time.time_ns():x}-{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        file = os.open(self.folder / f"{segment}.pixels", flags, 0o666)
        try:
            index = os.open(self.folder / f"{segment}.index", flags, 0o666)
        except OSError:
            os.close(file)
            raise
        self._writer = (segment, file, index, 0)
        return self._writer

    def release(self) -> None:
        """Give mapped pages back to the system, which keeps them while it has room: memory stays flat."""
        for mapped in self._maps.values():
            mapped.madvise(mmap.MADV_DONTNEED)

    def make_room(self, keys: Iterable[bytes], bytes_each: int) -> None:
        """Before a run: remove the least recently used segments until its images have room."""
        self.refresh()
        wanted = set(keys)
        needed = sum(key not in self._entries for key in wanted) * bytes_each
        mine = {entry[0] for key, entry in self._entries.items() if key in wanted}
        for segment in mine:
            with contextlib.suppress(OSError):
                os.utime(self.folder / f"{segment}.index")
        others = [
            path
            for path in self.root.glob("v*/*.index")
            if path.parent != self.folder or path.stem not in mine
        ]
        for index in sorted(others, key=_age):
            if self.limit is None or self._total + needed <= self.limit:
                break
            for path in (index, index.with_suffix(".pixels")):  # a reader keeps its mapping of a removed file
                path.unlink(missing_ok=True)
            self._total = _total(self.root)
        self._entries = {key: entry for key, entry in self._entries.items() if self._exists(entry[0])}

    def _exists(self, segment: str) -> bool:
        return (self.folder / f"{segment}.index").exists() if segment not in self._maps else True


def _checksum(flat: np.ndarray) -> int:
    """Return the sum of all 64-bit words: lost pages and flipped bits change it, and it costs a third of a
    CRC."""
    whole = len(flat) // 8 * 8
    words = int(np.frombuffer(flat.data, "<u8", whole // 8).sum(dtype=np.uint64))
    return (words + int(flat[whole:].sum())) % 2**64


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _total(root: Path) -> int:
    total = 0
    for path in root.glob("v*/*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]
