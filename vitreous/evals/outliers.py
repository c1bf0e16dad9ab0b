"""How far a picture is from all others: the mean cosine distance to its nearest neighbours, and what is far.

Letters: N images, k neighbours.
"""

import numpy as np

NEIGHBOURS = 50
SHARE = 10
"""With few images, one in this many of them counts as a neighbour."""
FEWEST = 5
"""Neighbours that count even of a picture whose class has fewer."""
DEVIATIONS = 3.0
"""A picture counts as far if its distance is more than this many deviations above the median."""
NORMAL = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""


def neighbours(count: int, class_sizes: np.ndarray | None = None) -> np.ndarray | int:
    """Return how many neighbours count: of all images, or (N,) for the sizes (N,) of their classes.

    A class of twelve among thousands must not count as far as a whole: its pictures use eleven neighbours.
    """
    most = max(1, min(NEIGHBOURS, count // SHARE, count - 1))
    if class_sizes is None:
        return most
    return np.clip(class_sizes - 1, min(FEWEST, most), most)


def distances(similarity: np.ndarray, count: np.ndarray | int) -> np.ndarray:
    """Return the mean cosine distance (N,) to the first `count` of the nearest, given cosines (N, k).

    -inf: there are no more neighbours; they don't count.
    """
    known = np.isfinite(similarity)
    known &= np.arange(similarity.shape[1]) < np.broadcast_to(count, len(similarity))[:, None]
    total = np.where(known, 1.0 - similarity, 0.0).sum(1)
    return total / np.maximum(1, known.sum(1))


def limit(scores: np.ndarray) -> float:
    """Return the distance above which a picture is far: the median and three (robust) deviations."""
    middle = float(np.median(scores))
    return middle + DEVIATIONS * NORMAL * float(np.median(np.abs(scores - middle)))
