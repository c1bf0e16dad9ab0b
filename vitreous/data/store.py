"""Where vitreous keeps what it can make again (hashes, indexes, decoded images), and how a file is written
there whole.

Never inside the user's data.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np


def cache_root() -> Path:
    """Return the cache folder: $VITREOUS_CACHE, else $XDG_CACHE_HOME/vitreous, else ~/.cache/vitreous."""
    own = os.environ.get("VITREOUS_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitreous"


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> bool:
    """Write a file so that it appears complete or not at all; return False where there is no room or no
    permission."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    except OSError:
        return False
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        return False
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return True


def load_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """Read a file of arrays that we wrote, or None where there is none that can be read."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception:  # a damaged file of ours is made again
        return None
