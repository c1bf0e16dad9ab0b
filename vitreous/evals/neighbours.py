"""The nearest vectors by cosine, exactly: used by the neighbours' probe, `search` and `clean`.

Letters: N queries, M vectors of the bank, D width, k neighbours.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CHUNK = 1024
"""Queries that are compared with the bank at a time."""


class Nearest(NamedTuple):
    """The neighbours of some queries, the nearest first."""

    similarity: Tensor  # (N, k) cosine
    place: Tensor  # (N, k) rows of the bank


def unit(features: np.ndarray) -> Tensor:
    """Return features (N, D) as float32 vectors of length one; a zero vector stays zero."""
    return torch.nn.functional.normalize(torch.from_numpy(features).float(), dim=1)


def nearest(queries: np.ndarray, bank: Tensor, count: int) -> Iterator[Nearest]:
    """Yield the `count` nearest of a bank (M, D) of length one for queries (N, D), part by part in order."""
    count = min(count, len(bank))
    for start in range(0, len(queries), CHUNK):
        similarity, place = (unit(queries[start : start + CHUNK]) @ bank.T).topk(count, dim=1)
        yield Nearest(similarity, place)


def among(features: np.ndarray, groups: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosine (N, k) and place (N, k) of each vector's nearest of another group than its own.

    `groups` (N,): copies of one picture share a number, and are not neighbours. Where there are fewer than k
    neighbours, the rest has cosine -inf.
    """
    vectors, own = unit(features), torch.from_numpy(groups)
    count = min(count, len(vectors))
    found: list[Nearest] = []
    for start in range(0, len(vectors), CHUNK):
        part = slice(start, start + CHUNK)
        similarity = vectors[part] @ vectors.T
        similarity.masked_fill_(own[part, None] == own[None], float("-inf"))
        found.append(Nearest(*similarity.topk(count, dim=1)))
    return (
        torch.cat([each.similarity for each in found]).numpy(),
        torch.cat([each.place for each in found]).numpy(),
    )
