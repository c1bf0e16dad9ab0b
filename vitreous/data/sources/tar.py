"""The members of a tar file, all of them or an error that says what is missing: Python's reader stops
silently at the first header that it can't read. Nothing is unpacked."""

import mmap
import tarfile
from pathlib import Path
from typing import NamedTuple

from vitreous.errors import DataError

BLOCK = tarfile.BLOCKSIZE
MAGIC, MAGIC_PLACE = b"ustar", 257
STEP = 1 << 20


class Member(NamedTuple):
    """A regular file inside a tar file."""

    name: str
    offset: int
    size: int


class DamagedError(DataError):
    """A tar file that is damaged or cut off; the message says where."""

    def __init__(self, reason: str, before: list[Member], after: list[str] | None = None) -> None:
        """`before`: members before the damage; `after`: names of those after it, where they are known."""
        super().__init__(reason)
        self.before, self.after = before, after


def read_members(path: Path) -> list[Member]:
    """Return a tar file's regular files, in order."""
    size = path.stat().st_size
    members: list[Member] = []
    with tarfile.open(path, "r:") as archive:  # "r:": compressed archives have no random access
        try:
            for member in archive:
                end = member.offset_data + member.size
                if member.size < 0:  # Python would go back, and loop for ever
                    raise DamagedError(f"damaged at byte {member.offset:,}", members)
                if end > size and member.isreg():
                    raise DamagedError(f"ends {end - size:,} bytes early, in {member.name}", members)
                if member.isreg() and not member.issparse():
                    members.append(Member(member.name, member.offset_data, member.size))
        except tarfile.TarError:
            if archive.offset < size:
                raise _damaged(path, archive.offset, members) from None
        _check_end(path, archive.offset, size, members)
    return members


def _check_end(path: Path, end: int, size: int, members: list[Member]) -> None:
    """Refuse a file whose last header is not followed by zeros up to its end."""
    if end >= size:
        raise DamagedError("its end mark is missing: it was cut off, or its writer was not closed", members)
    with open(path, "rb") as file:
        file.seek(end)
        if file.read(BLOCK).strip(b"\0"):
            raise _damaged(path, end, members)
        while piece := file.read(STEP):
            if piece.strip(b"\0"):
                after = _names_after(path, end)
                raise DamagedError(f"{size - end:,} bytes after its end mark are not read", members, after)


def _damaged(path: Path, place: int, members: list[Member]) -> DamagedError:
    return DamagedError(f"damaged at byte {place:,}", members, _names_after(path, place))


def _names_after(path: Path, start: int) -> list[str]:
    """Return the names in all sound headers after a place."""
    names = []
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        place = data.find(MAGIC, start + BLOCK)
        while place >= 0:
            header = place - MAGIC_PLACE
            if header % BLOCK == 0:
                try:
                    names.append(
                        tarfile.TarInfo.frombuf(data[header : header + BLOCK], "utf-8", "replace").name
                    )
                except tarfile.TarError:
                    pass
            place = data.find(MAGIC, place + 1)
    return names
