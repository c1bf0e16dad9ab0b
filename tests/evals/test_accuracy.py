"""Accuracy, per class, confusion, mistakes and comparisons against scikit-learn and closed forms."""

import json

import numpy as np
import pytest
import sklearn.metrics
import torch
from scipy.special import softmax
from scipy.stats import binomtest

from vitreous.evals import accuracy, answers, metrics
from vitreous.evals.answers import Answers


def answered(logits: np.ndarray, targets: np.ndarray) -> Answers:
    """Return the answers that logits are."""
    return answers.from_logits(
        torch.from_numpy(logits), torch.from_numpy(targets), torch.arange(10, 10 + len(targets))
    )


@pytest.fixture
def scored() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 7, 400)
    return generator.normal(size=(400, 7)) + 1.5 * np.eye(7)[targets], targets


def test_figures_are_scikit_learns(scored: tuple[np.ndarray, np.ndarray]) -> None:
    logits, targets = scored
    labels = [str(k) for k in range(7)]
    found = accuracy.document(answered(logits, targets), labels)
    guess = logits.argmax(1)
    assert found["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(targets, guess))
    assert found["top5"] == pytest.approx(sklearn.metrics.top_k_accuracy_score(targets, logits, k=5))
    assert found["loss"] == pytest.approx(sklearn.metrics.log_loss(targets, softmax(logits, 1)))
    assert found["confusion"] == sklearn.metrics.confusion_matrix(targets, guess).tolist()
    assert found["mean_per_class_accuracy"] == pytest.approx(
        sklearn.metrics.balanced_accuracy_score(targets, guess)
    )
    precision, recall, f1, _ = sklearn.metrics.precision_recall_fscore_support(
        targets, guess, average="macro"
    )
    assert (found["precision"], found["recall"], found["f1"]) == pytest.approx((precision, recall, f1))
    low, high = found["accuracy_interval"]
    scipys = binomtest(int((guess == targets).sum()), 400).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((scipys.low, scipys.high), rel=1e-9)


@pytest.mark.parametrize(
    ("right", "count"), [(0, 23), (23, 23), (1, 23), (11, 12), (0, 1), (1, 1), (7, 4000)]
)
def test_the_interval_of_few_images_is_scipys(right: int, count: int) -> None:
    """Also where all are right, or none: 23 of 23 does not show that every other one would be."""
    found = metrics.wilson(np.arange(count) < right)
    scipys = binomtest(right, count).proportion_ci(method="wilson")
    assert found == pytest.approx([scipys.low, scipys.high], rel=1e-9, abs=1e-12)
    assert 0 <= found[0] < found[1] <= 1 and found[0] <= right / count <= found[1]
    scores, targets = np.eye(2)[(np.arange(count) >= right).astype(int)], np.zeros(count, int)
    assert metrics.interval("accuracy", scores, targets) == found


def test_a_class_without_images_and_a_single_image_are_no_trouble() -> None:
    found = accuracy.document(answered(np.array([[0.1, 2.0, 0.3]]), np.array([1])), ["a", "b", "c"])
    assert found["accuracy"] == found["mean_per_class_accuracy"] == found["f1"] == 1.0
    assert [row["count"] for row in found["per_class"]] == [0, 1, 0]


def test_the_paired_test_is_mcnemars() -> None:
    first, second = np.zeros(100, bool), np.zeros(100, bool)
    first[:60], second[:50], second[60:85] = True, True, True  # 10 only first, 25 only second
    found = accuracy.compare(first, second)
    assert (found["only_first_right"], found["only_second_right"]) == (10, 25)
    assert found["p_value"] == pytest.approx(0.01673, abs=1e-4)  # 2 * P(Binomial(35, 1/2) <= 10)
    assert found["difference"] == pytest.approx(0.15)
    assert accuracy.compare(first, first)["p_value"] == 1.0


def test_worst_mistakes_are_the_most_confident_ones() -> None:
    logits = np.array([[5.0, 0.0], [0.0, 9.0], [1.0, 0.0]])
    rows = accuracy.worst_mistakes(answered(logits, np.array([1, 0, 0])), ["a", "b"], most=5)
    assert [row["index"] for row in rows] == [11, 10]
    assert rows[0]["probability"] > 0.999

    assert (rows[0]["truth"], rows[0]["guess"], rows[1]["guess"]) == ("a", "b", "a")
    assert rows[0]["loss"] == pytest.approx(9.0, abs=1e-3)


def test_the_most_confused_pairs_come_first() -> None:
    targets = np.array([0, 0, 0, 1, 1, 2])
    logits = np.eye(3)[[1, 1, 0, 2, 1, 2]] * 5.0
    rows = accuracy.most_confused(answered(logits, targets), ["a", "b", "c"])
    assert rows == [{"truth": "a", "guess": "b", "count": 2}, {"truth": "b", "guess": "c", "count": 1}]


def test_many_classes_make_no_matrix() -> None:
    """21,000 classes: a confusion of all pairs would be 441 million numbers."""
    generator = np.random.default_rng(0)
    classes, count = 21_000, 1_000
    targets = generator.integers(0, classes, count)
    guesses = np.where(generator.random(count) < 0.7, targets, generator.integers(0, classes, count))
    right = guesses == targets
    found = Answers(
        indices=np.arange(count),
        targets=targets,
        guesses=guesses,
        probabilities=generator.uniform(0.2, 1.0, count),
        losses=generator.exponential(size=count),
        ranks=np.where(right, 0, 7),
        classes=classes,
    )
    document = accuracy.document(found, [f"n{label}" for label in range(classes)])
    assert document["confusion"] is None
    assert document["accuracy"] == right.mean()
    assert 0 < len(document["confused"]) <= 100
    assert len(json.dumps(document)) < 5_000_000
    few = accuracy.document(answered(np.eye(3), np.arange(3)), ["a", "b", "c"])
    assert few["confusion"] == np.eye(3, dtype=int).tolist()
