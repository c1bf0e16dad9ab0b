"""Files of the cache (hashes, indexes, image bytes): written whole or not at all, and read if sound."""

from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

from vitreous import files
from vitreous.errors import DataError, VitreousError


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> bool:
    """Write a file so that it appears complete or not at all; return False where there is no room or no
    permission."""
    try:
        with files.atomic(path) as temporary, open(temporary, "wb") as file:
            write(file)
    except DataError:  # the source can't be read: not the cache's fault
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
