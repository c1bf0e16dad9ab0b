"""Pictures of a data set that are copies of each other: proposed by features, confirmed by pixels.

A copy that was cropped, mirrored or encoded anew has nearly the features of the original; so have different
photographs of one thing, which their pixels tell apart. Exact copies are known by their hash.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from vitreous.data import aligned
from vitreous.errors import DataError
from vitreous.evals import neighbours
from vitreous.features.gather import Pictures

PROPOSED = 3
"""Nearest neighbours of each picture that are examined."""
LEAST_COSINE = 0.7
"""Of 180 planted copies of photographs, by the features of `tiny`, the least was 0.738."""


class Pair(NamedTuple):
    """Two pictures, by number, that are copies; the correlation of their pixels."""

    first: int
    second: int
    likeness: float


def find(pictures: Pictures) -> list[Pair]:
    """Return the pairs of copies; of exact ones, each with the first of them."""
    digests = [row.tobytes() for row in pictures.whole.digests[pictures.rows]]
    first: dict[bytes, int] = {}
    numbers = np.array([first.setdefault(digest, row) for row, digest in enumerate(digests)])
    exact = [Pair(int(number), row, 1.0) for row, number in enumerate(numbers) if number != row]
    asked = np.unique(numbers)  # one of each content
    similarity, place = neighbours.among(pictures.features[asked], asked, PROPOSED)
    proposed = {
        (min(int(asked[row]), other), max(int(asked[row]), other))
        for row, column in np.argwhere(similarity >= LEAST_COSINE)
        for other in [int(asked[place[row, column]])]
    }
    return sorted([*exact, *_confirmed(pictures, sorted(proposed))])


def _confirmed(pictures: Pictures, proposed: list[tuple[int, int]]) -> list[Pair]:
    """Look at the pixels of each pair, in threads."""
    mirror, threads = pictures.whole.mirror, os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        numbers = sorted({number for pair in proposed for number in pair})
        seen = dict(zip(numbers, pool.map(lambda number: _gray(pictures, number), numbers), strict=True))

        def compare(pair: tuple[int, int]) -> float:
            one, other = seen[pair[0]], seen[pair[1]]
            return -1.0 if one is None or other is None else aligned.likeness(one, other, mirror=mirror)

        found = list(pool.map(compare, proposed))
    return [Pair(*pair, like) for pair, like in zip(proposed, found, strict=True) if like >= aligned.LEAST]


def _gray(pictures: Pictures, number: int) -> aligned.Gray | None:
    try:
        row = int(pictures.rows[number])
        return aligned.Gray(pictures.whole.images.read(row, 1, shortest=2 * aligned.STORED))
    except DataError:  # no longer readable, or an array whose channels are not a picture's
        return None


def groups(count: int, pairs: Iterable[Pair]) -> np.ndarray:
    """Return a number (N,) for each picture: the first of those that are copies of it, or of its copies."""
    leader = np.arange(count)

    def root(row: int) -> int:
        while leader[row] != row:
            leader[row] = leader[leader[row]]
            row = int(leader[row])
        return row

    for pair in pairs:
        one, other = root(pair.first), root(pair.second)
        leader[max(one, other)] = min(one, other)
    return np.array([root(row) for row in range(count)])
