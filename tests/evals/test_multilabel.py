"""Figures of several labels per image against scikit-learn; the threshold of each label."""

import numpy as np
import pytest
import sklearn.metrics
from scipy.special import expit

from vitreous.evals import metrics, multilabel
from vitreous.evals.multilabel import Scores


def scored() -> Scores:
    """200 images with any of five labels, the last of which never occurs."""
    generator = np.random.default_rng(0)
    targets = generator.random((200, 5)) < [0.5, 0.2, 0.1, 0.7, 0.0]
    logits = generator.normal(size=(200, 5)) + 1.5 * targets
    return Scores(np.arange(200), logits, targets)


def test_several_labels_are_scikit_learns() -> None:
    scores = scored()
    logits, targets = scores.logits, scores.targets
    found = multilabel.document(scores, list("abcde"))
    score = sklearn.metrics.average_precision_score(
        targets[:, :4], 1 / (1 + np.exp(-logits[:, :4])), average="macro"
    )
    assert found["mean_average_precision"] == pytest.approx(score)
    assert found["per_class"][4]["average_precision"] is None
    f1 = sklearn.metrics.f1_score(targets[:, :4], logits[:, :4] >= 0, average=None)
    np.testing.assert_allclose([row["f1"] for row in found["per_class"][:4]], f1)
    assert found["f1"] == pytest.approx(f1.mean())
    best = multilabel.thresholds(logits, targets)
    tuned = multilabel.document(scores, list("abcde"), best)
    assert tuned["f1"] >= found["f1"]
    assert best[4] == 0.5
    precision = sklearn.metrics.precision_score(targets[:, :4], logits[:, :4] >= 0, average=None)
    recall = sklearn.metrics.recall_score(targets[:, :4], logits[:, :4] >= 0, average=None)
    np.testing.assert_allclose([row["precision"] for row in found["per_class"][:4]], precision)
    np.testing.assert_allclose([row["recall"] for row in found["per_class"][:4]], recall)


def test_the_headline_is_scikit_learns() -> None:
    scores = scored()
    found = multilabel.headline(scores)
    logits, targets = scores.logits, scores.targets
    losses = [sklearn.metrics.log_loss(targets[:, k], expit(logits[:, k]), labels=[0, 1]) for k in range(5)]
    assert found["loss"] == pytest.approx(np.mean(losses))  # a mean over labels, not a sum
    assert found["accuracy"] == sklearn.metrics.accuracy_score(targets, logits >= 0)  # all labels right
    assert found["count"] == 200
    wide = Scores(np.arange(1), np.arange(7.0)[None], np.eye(7, dtype=bool)[:1])
    assert multilabel.headline(wide)["top5"] == 0.0  # the only label has the lowest score of seven
    assert multilabel.headline(Scores(np.arange(1), np.arange(7.0)[None], wide.targets[:, ::-1]))["top5"] == 1


@pytest.mark.parametrize("limit", [0.2, 0.8])
def test_limits_decide_what_is_right(limit: float) -> None:
    scores = scored()
    right = ((expit(scores.logits) >= limit) == scores.targets).all(1)
    np.testing.assert_array_equal(scores.right([limit] * 5), right)
    assert multilabel.headline(scores, [limit] * 5)["accuracy"] == right.mean()


def test_calibration_of_all_labels_together() -> None:
    """Scores that are frequencies have next to no error; scores of 0.9 of which half are true, 0.4."""
    generator = np.random.default_rng(0)
    chances = generator.uniform(0.01, 0.99, (4000, 3))
    honest = Scores(
        np.arange(4000), np.log(chances / (1 - chances)), generator.random(chances.shape) < chances
    )
    assert multilabel.document(honest, list("abc"))["ece"] < 0.02
    sure = Scores(np.arange(4), np.full((4, 1), np.log(9.0)), np.array([[True], [False]] * 2))
    assert multilabel.document(sure, ["a"])["ece"] == pytest.approx(0.4)


def test_a_threshold_is_the_score_with_the_best_f1() -> None:
    """By trying every score: also the highest, where only one image has the label, and the lowest."""
    generator = np.random.default_rng(2)
    for positives in (1, 3, 11, 12):
        logits = generator.normal(size=(12, 1))
        targets = (logits >= np.sort(logits, axis=0)[-positives]).reshape(12, 1)
        found = multilabel.thresholds(logits, targets)[0]
        f1 = [sklearn.metrics.f1_score(targets[:, 0], logits[:, 0] >= limit) for limit in logits[:, 0]]
        assert found == pytest.approx(expit(logits[int(np.argmax(f1)), 0]))
        tuned = multilabel.document(Scores(np.arange(12), logits, targets), ["a"], [found])
        assert tuned["f1"] == max(f1) == 1.0  # a score that is the threshold is above it


def f1(truth: np.ndarray, guess: np.ndarray) -> float:
    return 2 * (truth & guess).sum() / (truth.sum() + guess.sum())


def test_a_threshold_weighs_precision_and_recall() -> None:
    scores = scored()
    for k, limit in enumerate(multilabel.thresholds(scores.logits, scores.targets)[:4]):
        truth, chances = scores.targets[:, k], expit(scores.logits[:, k])
        best = max(f1(truth, chances >= each) for each in chances)
        assert best < 0.95
        assert sklearn.metrics.f1_score(truth, chances >= limit) == pytest.approx(best)


def test_images_without_any_label_have_no_f1() -> None:
    empty = Scores(np.arange(3), np.array([[-1.0], [0.5], [-2.0]]), np.zeros((3, 1), bool))
    document = multilabel.document(empty, ["a"])
    assert document["f1"] == document["mean_average_precision"] == 0.0
    assert document["accuracy"] == pytest.approx(2 / 3)


def test_calibration_is_over_all_labels_by_hand() -> None:
    """Fifteen bins of equal width, each open below; the gap of each, by how many scores it has."""
    scores = scored()
    values, truth = expit(scores.logits).ravel(), scores.targets.ravel()
    gaps = []
    for k in range(15):
        inside = (values > k / 15) & (values <= (k + 1) / 15)
        gaps.append(abs(values[inside].sum() - truth[inside].sum()))
    found = multilabel.document(scores, list("abcde"))["ece"]
    assert found == pytest.approx(sum(gaps) / 1000) and found > 0.05


def test_scores_that_are_not_numbers_have_no_precision() -> None:
    scores, targets = np.random.default_rng(0).random((20, 3)), np.eye(3, dtype=bool)[np.arange(20) % 3]
    assert 0.0 < metrics.mean_average_precision(scores, targets) < 1.0
    scores[4, 2] = np.nan
    assert np.isnan(metrics.mean_average_precision(scores, targets))


@pytest.mark.parametrize("labels", [1, 2, 5])
def test_the_confusion_of_each_label_is_scikit_learns(labels: int) -> None:
    """Of a single label too, which scikit-learn takes for two classes."""
    generator = np.random.default_rng(labels)
    logits, targets = generator.normal(size=(40, labels)), generator.random((40, labels)) < 0.3
    targets[:, -1] |= labels == 5  # a label that all images have
    found = multilabel.document(Scores(np.arange(40), logits, targets), list("abcde")[:labels])
    matrices = [
        sklearn.metrics.confusion_matrix(targets[:, k], logits[:, k] >= 0, labels=[False, True])
        for k in range(labels)
    ]
    np.testing.assert_array_equal(found["confusion"], matrices)


def test_sure_scores_keep_their_order() -> None:
    """As float32 probabilities these are all 1: the order is that of the logits."""
    logits = np.array([[30.0], [25.0], [20.0], [18.0], [-5.0]], np.float32)
    found = multilabel.document(Scores(np.arange(5), logits, np.arange(5)[:, None] < 2), ["a"])
    assert found["per_class"][0]["average_precision"] == found["mean_average_precision"] == 1.0


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_not_finite_have_figures_that_are_not(wrong: float) -> None:
    scores = scored()
    scores.logits[3, 1] = wrong
    found = multilabel.headline(scores)
    assert not np.isfinite(found["loss"]) and np.isnan(found["mean_average_precision"])


def test_a_label_is_given_at_its_threshold() -> None:
    """As scikit-learn's thresholds mean it: the score that a threshold comes from has its label."""
    scores = Scores(np.arange(2), np.array([[0.0], [-1.0]]), np.array([[True], [False]]))
    assert scores.right().all() and scores.right([0.5]).all()
    best = multilabel.thresholds(scores.logits, scores.targets)
    assert best == [0.5] and scores.right(best).all()
