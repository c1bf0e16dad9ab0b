"""Whether features are alive: against other calculations, and on features that are dead."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import KNeighborsClassifier

from vitreous.evals import health


def test_effective_rank_is_the_number_of_directions() -> None:
    torch.manual_seed(0)
    assert health.effective_rank(torch.eye(8)) == pytest.approx(8.0, rel=1e-3)
    assert health.effective_rank(torch.ones(50, 8)) == pytest.approx(1.0, abs=1e-3)
    three = torch.randn(500, 3) @ torch.linalg.qr(torch.randn(16, 3))[0].T
    assert health.effective_rank(three) == pytest.approx(3.0, rel=0.02)
    values = np.linalg.svd(three.double().numpy(), compute_uv=False)
    shares = values / values.sum()
    expected = np.exp(-(shares * np.log(shares + 1e-30)).sum())
    assert health.effective_rank(three) == pytest.approx(expected, rel=1e-3)


def test_mean_cosine_is_that_of_all_pairs() -> None:
    features = torch.randn(40, 7) + 1.0
    pairs = cosine_similarity(features)[~np.eye(40, dtype=bool)]
    assert health.mean_cosine(features) == pytest.approx(pairs.mean(), rel=1e-5)


def test_neighbours_leave_the_image_itself_out() -> None:
    """As scikit-learn's would, asked about one image after the other, with weights by cosine."""
    torch.manual_seed(1)
    targets = torch.arange(60) % 3
    features = torch.randn(60, 5) + 0.8 * torch.nn.functional.one_hot(targets, 5)
    right = 0
    for row in range(60):
        others = np.arange(60) != row
        found = KNeighborsClassifier(10, metric="cosine", weights=lambda d: np.exp((1 - d) / 0.07))
        found.fit(features[others], targets[others])
        right += found.predict(features[row : row + 1])[0] == targets[row]
    assert health.knn(features, targets) == pytest.approx(right / 60)
    assert health.knn(torch.eye(4), torch.arange(4)) == 0.0  # each alone of its class


def test_dead_features_are_found_and_live_ones_are_not() -> None:
    torch.manual_seed(0)

    def found(features: torch.Tensor) -> str | None:
        return health.collapse(
            {"effective_rank": health.effective_rank(features), "mean_cosine": health.mean_cosine(features)}
        )

    assert found(torch.randn(100, 16)) is None
    assert found(torch.randn(100, 16) + 3.0) is None  # alike, as of a fresh ViT, but not the same
    assert "cosine" in str(found(torch.randn(16) + 1e-3 * torch.randn(100, 16)))
    assert "effective rank" in str(found(torch.randn(100, 1) * torch.randn(16)))


def test_features_that_are_not_numbers_have_no_rank() -> None:
    """The loop says what to do about figures that are not finite; it must get them."""
    features = torch.randn(20, 4)
    features[3, 1] = float("nan")
    assert math.isnan(health.effective_rank(features))
    assert not math.isfinite(health.mean_cosine(features))


def test_few_images_tell_nothing_of_a_collapse() -> None:
    """One image has one direction, two very much alike have hardly more."""
    figures = {"effective_rank": 1.0, "mean_cosine": 0.9999}
    assert health.collapse({**figures, "count": 7.0}) is None
    assert health.collapse({**figures, "count": 8.0}) is not None
