"""Where vitreous keeps what it can make again (hashes, indexes, decoded images), and how a file is written
there whole.

Never inside the user's data.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

from vitreous import files
from vitreous.errors import DataError, VitreousError


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
        with files.atomic(path) as temporary, open(temporary, "wb") as file:
            write(file)
    except DataError:  # what is written can't be read: that is no fault of the cache
        raise
    except (OSError, VitreousError):
        return False
    return True


def load_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """Read a file of arrays that we wrote, or None where there is none that can be read."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception:  # a damaged file of ours is made again
        return None
