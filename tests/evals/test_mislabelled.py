"""Wrong labels: probabilities that scikit-learn gives, the rule by hand, planted mistakes that are found."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from vitreous.evals import mislabelled


@pytest.fixture
def blobs() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    targets = np.repeat(np.arange(4), 40)
    centres = generator.normal(size=(4, 12))
    return (centres[targets] + 0.6 * generator.normal(size=(160, 12))).astype(np.float32), targets


def test_folds_spread_classes_and_never_part_copies() -> None:
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 3, 200)
    groups = np.arange(200)
    groups[100:120] = groups[:20]
    fold = mislabelled.folds(targets, groups)
    assert (fold[100:120] == fold[:20]).all() and set(fold) == set(range(5))
    for label in range(3):
        counts = np.bincount(fold[(targets == label) & (groups == np.arange(200)) & (groups >= 20)])
        assert counts.max() - counts.min() <= 8  # of about 13
    assert (mislabelled.folds(targets, groups, 0) == fold).all()
    assert (mislabelled.folds(targets, groups, 1) != fold).any()


def test_probabilities_are_held_out_and_scikit_learns(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    features, targets = blobs
    fold = np.arange(160) % 5
    found = mislabelled.probabilities(features, targets, 4, fold, 0.3)
    for number in range(5):
        known, asked = features[fold != number], features[fold == number]
        mean, deviation = known.mean(0), known.std(0)
        oracle = LogisticRegression(C=1 / (0.3 * len(known)), max_iter=1000)
        oracle.fit((known - mean) / deviation, targets[fold != number])
        expected = oracle.predict_proba((asked - mean) / deviation)
        np.testing.assert_allclose(found[fold == number], expected, atol=5e-3)


def test_the_rule_by_hand() -> None:
    rows = np.array([[0.8, 0.1, 0.1]] * 6 + [[0.3, 0.2, 0.5]] * 5 + [[0.09, 0.9, 0.01], [0.1, 0.2, 0.7]])
    targets = np.array([0] * 6 + [2] * 5 + [0, 0])
    # usual for 0: (6 * 0.8 + 0.09 + 0.1) / 8 = 0.624, of which 15 % are 0.0936; for 2: 0.5
    found = mislabelled.doubts(rows, targets)
    assert np.flatnonzero(found.doubted).tolist() == [11]  # 0.1 is not so far below
    assert (found.suggested[11], found.probability[11], found.other[11]) == (1, 0.09, 0.9)
    assert found.suggested[12] == 2 and found.suggested[6] == 0  # never the given one


def test_a_class_of_few_is_not_judged() -> None:
    rows = np.tile([0.7, 0.3], (12, 1))
    rows[[5, 11]] = [0.02, 0.98], [0.98, 0.02]
    few, enough = np.array([0] * 8 + [1] * 4), np.array([0] * 7 + [1] * 5)
    assert np.flatnonzero(mislabelled.doubts(rows, few).doubted).tolist() == [5]
    assert np.flatnonzero(mislabelled.doubts(rows, enough).doubted).tolist() == [5, 11]


def test_the_strength_is_what_predicts_labels_best(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    features, targets = blobs
    fold = np.arange(160) % 5
    noise = np.random.default_rng(1).permutation(targets)  # nothing to learn: the strongest is best
    chosen = mislabelled.choose(features, targets, 4, fold)
    assert mislabelled.choose(features, noise, 4, fold) == 1.0 > chosen
    losses = {}
    for strength in mislabelled.STRENGTHS:
        found = mislabelled.probabilities(features, targets, 4, fold, strength)[fold == 0]
        losses[strength] = -np.log(found[np.arange(32), targets[fold == 0]]).mean()
    assert chosen == min(losses, key=losses.__getitem__)


def test_planted_mistakes_are_found_the_clearest_first(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    features, truth = blobs
    planted = np.arange(0, 160, 16)
    given = truth.copy()
    given[planted] = (truth[planted] + 1) % 4
    found = mislabelled.judge(features, given, 4, np.arange(160))
    rows = np.flatnonzero(found.doubted)
    assert len(np.intersect1d(rows, planted)) >= 8 and len(np.setdiff1d(rows, planted)) <= 1
    assert (found.suggested[np.intersect1d(rows, planted)] == truth[np.intersect1d(rows, planted)]).all()
    margin = (found.other - found.probability)[found.ranked]
    assert sorted(found.ranked) == rows.tolist() and (np.diff(margin) <= 0).all()
    assert mislabelled.judge(features, truth, 4, np.arange(160)).doubted.sum() == 0


def test_copies_do_not_vouch_for_each_other(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    """A wrong label that was copied with its picture: were the copies in other folds, they would agree."""
    features, truth = blobs
    features = np.concatenate([features, *[features[:1]] * 9])
    given = np.concatenate([truth, [1] * 9])
    given[0] = 1
    groups = np.concatenate([np.arange(160), [0] * 9])
    together = mislabelled.judge(features, given, 4, groups)
    apart = mislabelled.judge(features, given, 4, np.arange(169))
    assert together.probability[0] < apart.probability[0] and together.doubted[0]
