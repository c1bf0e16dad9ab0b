"""Outliers: distances that scikit-learn gives, a limit by hand, and small classes that are no outliers."""

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from vitreous.evals import neighbours, outliers


def test_the_distance_is_the_mean_to_the_nearest() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    similarity, _ = neighbours.among(vectors, np.arange(40), 10)
    expected, _ = NearestNeighbors(n_neighbors=11, metric="cosine").fit(vectors).kneighbors(vectors)
    np.testing.assert_allclose(outliers.distances(similarity, 10), expected[:, 1:].mean(1), atol=1e-6)
    counts = np.arange(40) % 10 + 1
    own = [expected[row, 1 : count + 1].mean() for row, count in enumerate(counts)]
    np.testing.assert_allclose(outliers.distances(similarity, counts), own, atol=1e-6)


def test_neighbours_that_are_not_there_do_not_count() -> None:
    similarity = np.array([[0.9, 0.7, -np.inf], [-np.inf, -np.inf, -np.inf]])
    np.testing.assert_allclose(outliers.distances(similarity, 3), [0.2, 0.0])


def test_far_is_three_robust_deviations_above_the_median() -> None:
    scores = np.array([0.1, 0.2, 0.3, 0.4, 5.0])
    assert outliers.limit(scores) == pytest.approx(0.3 + 3 * 1.4826 * 0.1)  # |x - 0.3|: 0.2, 0.1, 0, 0.1, 4.7
    normal = np.random.default_rng(0).normal(size=100_000)
    assert 0.0008 < (normal > outliers.limit(normal)).mean() < 0.002  # 0.13 % of a normal distribution


def test_how_many_neighbours_count() -> None:
    assert [outliers.neighbours(count) for count in (2, 20, 300, 600, 10_000)] == [1, 2, 30, 50, 50]
    sizes = np.array([3, 12, 5000])
    assert np.asarray(outliers.neighbours(10_000, sizes)).tolist() == [5, 11, 50]


def test_a_small_class_is_not_far_as_a_whole() -> None:
    generator, centres = np.random.default_rng(0), np.eye(20)[[0] * 400 + [1] * 12 + [2]]
    vectors = (centres + 0.15 * generator.normal(size=(413, 20))).astype(np.float32)
    sizes = np.array([401] * 400 + [12] * 12 + [401])
    similarity, _ = neighbours.among(vectors, np.arange(413), 41)
    blind, aware = (
        outliers.distances(similarity, outliers.neighbours(413, known)) for known in (None, sizes)
    )
    assert (blind > outliers.limit(blind))[400:].all()
    assert (aware > outliers.limit(aware))[400:412].sum() <= 2 and aware.argmax() == 412
