"""Pictures that are copies of each other but for encoding and size, found by a hash of how they look.

A picture is reduced to 9 x 8 pixels; its hash (dHash) has a bit for each pair of neighbours in a row, which
tells which is brighter. Hashes that differ in few bits are candidates; then the small pictures are compared.
"""

from collections.abc import Iterator

import numpy as np
from PIL import Image

SIZE = (9, 8)
"""Width and height of the small picture."""
GAP = 16.0
"""Large photographs are first reduced by whole numbers, until they have so many pixels for each small one."""
MOST_BITS = 10
LARGEST_DIFFERENCE = 0.08
"""Mean difference of the small pictures, relative to their contrast. Of 300 photographs, copies of a quarter
of the size or of JPEG quality 50 were at 0.07 at most, different ones with near hashes at 1.0 at least."""
MOST_CANDIDATES = 256
"""Of each picture, the nearest: blank ones may have thousands."""
ROWS, COLUMNS = 16, 8192
"""Hashes that are compared at a time: what fits into a processor's cache."""
GRAY = np.array([0.299, 0.587, 0.114], np.float32)


def small(image: Image.Image) -> np.ndarray:
    """Return uint8 (8, 9, 3): a picture that is small enough to be compared with all others."""
    return np.asarray(image.convert("RGB").resize(SIZE, Image.Resampling.BILINEAR, reducing_gap=GAP))


def hashes(pictures: np.ndarray) -> np.ndarray:
    """Return uint64 (N,) of small pictures (N, 8, 9, 3)."""
    gray = pictures.astype(np.float32) @ GRAY
    bits = (gray[:, :, 1:] > gray[:, :, :-1]).reshape(len(pictures), 64)
    return np.packbits(bits, axis=1).view(np.uint64).reshape(len(pictures))


def copies(pictures: np.ndarray, others: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield for each of the small pictures that has copies among the others its number, and theirs."""
    if not len(pictures) or not len(others):
        return
    own, known = hashes(pictures), hashes(others)
    for start in range(0, len(own), ROWS):
        rows = own[start : start + ROWS, None]
        found: list[list[np.ndarray]] = [[] for _ in rows]
        for column in range(0, len(known), COLUMNS):
            near = np.bitwise_count(known[None, column : column + COLUMNS] ^ rows) <= MOST_BITS
            for row in np.flatnonzero(near.any(1)):
                found[row].append(np.flatnonzero(near[row]) + column)
        for row, places in enumerate(found):
            if not places:
                continue
            candidates = np.concatenate(places)
            if len(candidates) > MOST_CANDIDATES:
                bits = np.bitwise_count(known[candidates] ^ own[start + row])
                candidates = candidates[np.argsort(bits, kind="stable")[:MOST_CANDIDATES]]
            alike = differences(pictures[start + row], others[candidates]) <= LARGEST_DIFFERENCE
            if alike.any():
                yield start + row, candidates[alike]


def differences(picture: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return how far small pictures (N, 8, 9, 3) are from one (8, 9, 3), relative to their contrast."""
    one, many = (
        picture.reshape(-1, 3).astype(np.float32),
        others.reshape(len(others), -1, 3).astype(np.float32),
    )
    contrast = np.minimum(one.std(0).mean(), many.std(1).mean(1))
    return np.abs(many - one).mean((1, 2)) / np.maximum(contrast, 1.0)
