"""Calibration against scikit-learn's curve and draws from a known softmax."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.calibration import calibration_curve

from vitreous.evals import calibration


@pytest.fixture
def scored() -> tuple[np.ndarray, np.ndarray]:
    """Confidence of each answer, and whether it was right."""
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 7, 400)
    return confidence_and_right(generator.normal(size=(400, 7)) + 1.5 * np.eye(7)[targets], targets)


def confidence_and_right(logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return softmax(logits, 1).max(1), logits.argmax(1) == targets


def test_calibration_is_scikit_learns_curve(scored: tuple[np.ndarray, np.ndarray]) -> None:
    confidence, right = scored
    rows = [row for row in calibration.reliability(confidence, right, 10) if row["count"]]
    fraction, mean = calibration_curve(right, confidence, n_bins=10)
    np.testing.assert_allclose([row["accuracy"] for row in rows], fraction)
    np.testing.assert_allclose([row["confidence"] for row in rows], mean)
    gaps = sum(row["count"] * abs(row["accuracy"] - row["confidence"]) for row in rows) / 400
    assert calibration.expected_calibration_error(confidence, right, 10) == pytest.approx(gaps)


def test_bins_are_open_below_and_cover_everything() -> None:
    rows = calibration.reliability(np.array([0.0, 0.5, 0.75, 1.0]), np.array([True, False, True, True]), 4)
    assert [row["count"] for row in rows] == [1, 1, 1, 1]
    assert [(row["from"], row["to"]) for row in rows] == [(0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1)]
    assert [row["accuracy"] for row in rows] == [1.0, 0.0, 1.0, 1.0]
    empty = calibration.reliability(np.array([0.9]), np.array([True]), 4)[0]
    assert (empty["count"], empty["confidence"], empty["accuracy"]) == (0, 0.0, 0.0)


def test_fifteen_bins_are_usual(scored: tuple[np.ndarray, np.ndarray]) -> None:
    """As in arXiv 1706.04599, so that errors can be compared."""
    assert len(calibration.reliability(*scored)) == 15
    usual = calibration.expected_calibration_error(*scored)
    assert usual == calibration.expected_calibration_error(*scored, 15)
    assert usual != calibration.expected_calibration_error(*scored, 14)


def test_temperature_undoes_overconfidence() -> None:
    generator = np.random.default_rng(1)
    logits = generator.normal(size=(4000, 5)) * 2
    targets = (logits + generator.gumbel(size=logits.shape)).argmax(1)  # drawn from softmax(logits)
    assert calibration.temperature(logits * 3, targets) == pytest.approx(3.0, rel=0.1)
    before = calibration.expected_calibration_error(*confidence_and_right(logits * 3, targets))
    after = calibration.expected_calibration_error(*confidence_and_right(logits, targets))
    assert after < 0.3 * before


def test_coverage_answers_the_confident_first(scored: tuple[np.ndarray, np.ndarray]) -> None:
    confidence, right = scored
    rows = calibration.coverage_curve(confidence, right)
    assert len(rows) == 20 and rows[-1]["coverage"] == 1.0
    assert rows[-1]["accuracy"] == pytest.approx(right.mean())
    assert rows[0]["accuracy"] > rows[-1]["accuracy"]
    assert (confidence >= rows[4]["threshold"]).mean() == pytest.approx(rows[4]["coverage"], abs=0.01)
    for row in rows:
        assert row["accuracy"] == pytest.approx(right[confidence >= row["threshold"]].mean())


def test_only_mistakes_determine_a_temperature() -> None:
    """Answers that are all right ask for the coldest, and all wrong for the hottest."""
    right, wrong = np.eye(3) * 4, np.eye(3)[[1, 2, 0]] * 4
    assert not calibration.determines(right, np.arange(3))
    assert not calibration.determines(wrong, np.arange(3))
    assert calibration.determines(np.concatenate([right, wrong[:1]]), np.array([0, 1, 2, 0]))
