"""Where our own files lie, and how they are written: whole and durable, or not there at all."""

import csv
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from vitreous.errors import DiskFullError, VitreousError
from vitreous.written import encodable, finite_json

FULL = (errno.ENOSPC, errno.EDQUOT)
LONGEST_FIELD = (1 << 31) - 1


def cache_root() -> Path:
    """Return the folder for files that can be made again, never inside the user's data.

    It is $VITREOUS_CACHE, else $XDG_CACHE_HOME/vitreous, else ~/.cache/vitreous.
    """
    own = os.environ.get("VITREOUS_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitreous"


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success make its content durable and move it over `path`.

    On any error the temporary file is removed, and what stood at `path` before is untouched. The file gets
    the mode that the umask gives, whoever writes it (safetensors would hide it from all other users).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode & 0o777  # the umask itself can't be read without changing it
        yield temporary
        if temporary.stat().st_mode & 0o777 != mode:
            temporary.chmod(mode)
        publish(temporary, path)
    except Exception as error:
        if not disk_is_full(error):
            raise
        raise DiskFullError(
            f"the disk of {path.parent} is full: {path.name} was not written: make room, or take another disk"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def require_utf8(path: Path) -> None:
    """Refuse a name that the libraries which read and write weights can't use."""
    if encodable(str(path)) != str(path):
        raise VitreousError(f"{encodable(str(path))}: the name of weights has to be UTF-8: choose another")


def refuse_existing(*paths: Path) -> None:
    """Refuse to write where anything stands, a link to nothing too: what a user has is never overwritten."""
    for path in paths:
        if os.path.lexists(path):
            raise VitreousError(f"{path} exists: choose another name, or remove it first")


def held(folder: Path) -> set[str]:
    """Return the names in a folder, if there is one, but for what a killed process of ours was writing."""
    names = {each.name for each in folder.iterdir()} if folder.is_dir() else set()
    return {name for name in names if not (name.startswith(".") and name.endswith(".part"))}


def prepare_folder(folder: Path) -> Path:
    """Make a folder for results before the work, which would be lost if its results could not be written."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    return folder


def lies_in(path: str | Path, root: str | Path) -> bool:
    """Tell whether a path is a folder or lies in it, through links too."""
    return Path(path).resolve().is_relative_to(Path(root).resolve())


def disk_is_full(error: BaseException) -> bool:
    """Tell whether the error means that a disk, or the user's share of it, is full, whoever wrote."""
    if isinstance(error, OSError):
        return error.errno in FULL
    text = str(error) if isinstance(error, SafetensorError) else ""  # it has the number in its text alone
    return isinstance(error, DiskFullError) or any(f"(os error {number})" in text for number in FULL)


def allow_long_fields() -> None:
    """Let Python read long fields of a CSV: 20,000 names of classes exceed its 131,072 characters."""
    csv.field_size_limit(LONGEST_FIELD)


def publish(finished: Path, path: Path) -> None:
    """Make a finished file durable, and only then give it its name."""
    with finished.open("rb+") as file:
        os.fsync(file.fileno())
    finished.replace(path)
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically; names in it may be of any bytes."""
    write_bytes(path, encodable(text).encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file atomically."""
    with atomic(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically; what is not finite is refused."""
    write_text(path, finite_json(value, indent=2) + "\n")


def sync_folder(folder: Path) -> None:
    """Make a rename inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
