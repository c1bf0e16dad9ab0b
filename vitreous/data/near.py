"""Pictures that differ only in encoding and size, found by a hash of how they look.

A picture is reduced to 9 x 8 pixels; its hash (dHash) has a bit for each pair of neighbours in a row, which
tells which is brighter. Hashes that differ in few bits are candidates; of those, first the small pictures are
compared, and then, by `alike`, the pictures themselves: strokes on an empty ground differ in few pixels.
"""

from collections.abc import Iterator

import numpy as np
from PIL import Image

SIZE = (9, 8)
"""Width and height of the small picture."""
GAP = 16.0
"""Large photographs are first reduced by whole factors, down to this many pixels for each small one."""
MOST_BITS = 10
LARGEST_DIFFERENCE = 0.08
"""Mean difference of the small pictures, relative to their contrast. Of 300 photographs, copies of a quarter
of the size or of JPEG quality 50 were at 0.07 at most, different ones with near hashes at 1.0 at least."""
FINE = 32
"""Most pixels of a side when two pictures are compared themselves."""
LARGEST_DEVIATION = 0.16
"""Root mean square of their difference, relative to their contrast."""
MOST_CANDIDATES = 256
"""Candidates kept of each picture, the nearest: blank ones may have thousands."""
ROWS, COLUMNS = 16, 8192
"""Hashes that are compared at a time: what fits into a processor's cache."""
GRAY = np.array([0.299, 0.587, 0.114], np.float32)


def small(image: Image.Image) -> np.ndarray:
    """Return uint8 (8, 9, 3): a picture that is small enough to be compared with all others."""
    return _reduced(image, SIZE)


def alike(first: Image.Image, second: Image.Image) -> bool:
    """Tell whether two pictures show the same, as far as the smaller of them can tell.

    They are compared in gray: JPEG keeps colours at half the resolution.
    """
    return deviation(first, second) <= LARGEST_DEVIATION


def deviation(first: Image.Image, second: Image.Image) -> float:
    """Return the root mean square of two pictures' difference, relative to their contrast."""
    size = (min(FINE, first.width, second.width), min(FINE, first.height, second.height))
    one, other = (_reduced(image.convert("L"), size).astype(np.float32) for image in (first, second))
    contrast = float(min(one.std(), other.std()))
    return float(np.sqrt(np.square(one - other).mean())) / max(1.0, contrast)


def _reduced(image: Image.Image, size: tuple[int, int]) -> np.ndarray:
    """Return a picture of any mode in this width and height, uint8 (H, W, 3)."""
    image = image if image.mode in ("L", "RGB") else image.convert("RGB")
    pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR, reducing_gap=GAP))
    return pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)


def hashes(pictures: np.ndarray) -> np.ndarray:
    """Return uint64 (N,) of small pictures (N, 8, 9, 3)."""
    gray = pictures.astype(np.float32) @ GRAY
    bits = (gray[:, :, 1:] > gray[:, :, :-1]).reshape(len(pictures), 64)
    return np.packbits(bits, axis=1).view(np.uint64).reshape(len(pictures))


def copies(pictures: np.ndarray, others: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield, for each small picture that is near to some of the others, its number and theirs, nearest
    first."""
    if not len(pictures) or not len(others):
        return
    own, known = hashes(pictures), hashes(others)
    contrast, contrasts = contrast_of(pictures), contrast_of(others)
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
            place = start + row
            apart = differences(pictures[place], others[candidates], contrast[place], contrasts[candidates])
            order = np.argsort(apart, kind="stable")[: int((apart <= LARGEST_DIFFERENCE).sum())]
            if len(order):
                yield place, candidates[order]


def differences(
    picture: np.ndarray, others: np.ndarray, contrast: float, contrasts: np.ndarray
) -> np.ndarray:
    """Return how far small pictures (N, 8, 9, 3) are from one (8, 9, 3), relative to their contrast."""
    apart = np.abs(others.astype(np.int16) - picture).reshape(len(others), -1)
    return apart.sum(1, dtype=np.int32) / picture.size / np.maximum(np.minimum(contrasts, contrast), 1.0)


def contrast_of(pictures: np.ndarray) -> np.ndarray:
    """Return the contrast of small pictures (N, 8, 9, 3): how far pixels deviate, mean of the channels."""
    parts = [pictures[start : start + COLUMNS] for start in range(0, len(pictures), COLUMNS)]
    return np.concatenate([part.std((1, 2), dtype=np.float32).mean(1) for part in parts])
