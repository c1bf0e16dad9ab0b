"""The nearest vectors: those that scikit-learn finds, and none of a vector's own copies."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from vitreous.evals import neighbours


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(60, 7)).astype(np.float32)


def test_the_nearest_are_scikit_learns(vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "CHUNK", 4)  # several parts
    queries, bank = vectors[:10], vectors[10:]
    found = list(neighbours.nearest(queries, neighbours.unit(bank), 5))
    distance, place = NearestNeighbors(n_neighbors=5, metric="cosine").fit(bank).kneighbors(queries)
    assert [len(part.place) for part in found] == [4, 4, 2]
    assert torch.cat([part.place for part in found]).tolist() == place.tolist()
    np.testing.assert_allclose(torch.cat([part.similarity for part in found]), 1 - distance, atol=1e-6)


def test_a_bank_that_is_too_small_gives_all_that_it_has(vectors: np.ndarray) -> None:
    (found,) = neighbours.nearest(vectors[:2], neighbours.unit(vectors[:3]), 5)
    assert found.place.shape == (2, 3) and found.place[:, 0].tolist() == [0, 1]


def test_copies_are_no_neighbours(vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "CHUNK", 7)
    twice = np.concatenate([vectors, vectors])
    groups = np.tile(np.arange(60), 2)
    similarity, place = neighbours.among(twice, groups, 4)
    distance, _ = NearestNeighbors(n_neighbors=6, metric="cosine").fit(twice).kneighbors(twice)
    np.testing.assert_allclose(similarity, 1 - distance[:, 2:], atol=1e-6)  # the first two: itself, its copy
    assert not (groups[place] == groups[:, None]).any()
    alone, _ = neighbours.among(vectors[:3], np.array([0, 0, 1]), 2)
    assert np.isneginf(alone[:, 1]).tolist() == [True, True, False]
