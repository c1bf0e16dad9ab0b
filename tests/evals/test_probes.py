"""Probes, metrics, corruptions and reassessed labels against scikit-learn, timm and closed forms."""

import json
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics
from PIL import Image
from sklearn.datasets import load_sample_image
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier
from timm.data.real_labels import RealLabelsImagenet

from vitreous.errors import DataError
from vitreous.evals import (
    alignment,
    corruptions,
    fewshot,
    knn,
    linear,
    metrics,
    real,
)


@pytest.fixture
def scored() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 7, 400)
    return generator.normal(size=(400, 7)) + 1.5 * np.eye(7)[targets], targets


def clusters(count: int, seed: int, classes: int = 4, width: int = 12) -> tuple[np.ndarray, np.ndarray]:
    centres = np.random.default_rng(9).normal(size=(classes, width)) * 0.9
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, classes, count)
    return (centres[targets] + generator.normal(size=(count, width))).astype(np.float32), targets


def several(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images with any of three labels, each a direction of its own."""
    generator = np.random.default_rng(seed)
    targets = generator.random((count, 3)) < [0.5, 0.3, 0.2]
    directions = np.random.default_rng(9).normal(size=(3, 12))
    return (targets @ directions + generator.normal(size=(count, 12))).astype(np.float32), targets


def test_neighbours_are_scikit_learns() -> None:
    train, test = clusters(300, 1), clusters(80, 2)

    def weights(distance: np.ndarray) -> np.ndarray:
        return np.exp((1 - distance) / knn.TEMPERATURE)

    peer = KNeighborsClassifier(10, metric="cosine", weights=weights).fit(*train)
    ours = knn.scores(*train, test[0], 4, [10])[10]
    np.testing.assert_allclose(ours, peer.predict_proba(test[0]), atol=1e-5)


def test_neighbours_with_several_labels_are_scikit_learns() -> None:
    features, targets = several(300, 1)
    queries, _ = several(80, 2)

    def weights(distance: np.ndarray) -> np.ndarray:
        return np.exp((1 - distance) / knn.TEMPERATURE)

    peer = KNeighborsClassifier(20, metric="cosine", weights=weights).fit(features, targets)
    theirs = np.stack([column[:, 1] for column in peer.predict_proba(queries)], axis=1)
    np.testing.assert_allclose(knn.scores(features, targets, queries, 3, [20])[20], theirs, atol=1e-5)


def test_the_number_of_neighbours_is_chosen_on_held_out_images() -> None:
    test = clusters(100, 3)
    found, scores = knn.evaluate(clusters(300, 1), clusters(100, 2), test, 4)
    assert found["validation"][str(found["k"])] == max(found["validation"].values())
    assert metrics.accuracy(scores, test[1]) > 0.7


def test_few_shot_is_ridge_regression() -> None:
    features, targets = clusters(60, 1)
    [ours], mean = fewshot.solve(features, targets, 4, [2.5])
    centred = np.concatenate([features - features.mean(0), np.ones((60, 1))], axis=1)
    signs = np.where(np.eye(4)[targets] > 0, 1.0, -1.0)
    peer = Ridge(alpha=2.5, fit_intercept=False).fit(centred, signs)
    np.testing.assert_allclose(ours, peer.coef_.T, rtol=1e-5, atol=1e-6)
    normal = np.linalg.solve(centred.T @ centred + 2.5 * np.eye(13), centred.T @ signs)  # by hand
    np.testing.assert_allclose(ours, normal, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fewshot.scores(features, ours, mean), peer.predict(centred), atol=1e-4)


def test_few_shot_draws_are_balanced_and_more_shots_help() -> None:
    train = clusters(300, 1)
    rows = fewshot.draw(train[1], 5, seed=3)
    assert np.bincount(train[1][rows]).tolist() == [5, 5, 5, 5]
    assert len(set(rows.tolist())) == 20
    found = fewshot.evaluate(train, clusters(200, 2), clusters(400, 3), 4)
    shots = found["shots"]
    assert list(shots) == ["1", "5", "10", "25"]
    assert shots["25"]["accuracy"] > shots["1"]["accuracy"]
    low, high = shots["5"]["interval"]
    assert low < shots["5"]["accuracy"] < high
    two = fewshot.evaluate(train, clusters(200, 2), clusters(400, 3), 4, shots=(1,), seeds=2)
    low, high = two["shots"]["1"]["interval"]  # by Student's t of two draws: wider than what can be
    assert 0.0 <= low < two["accuracy"] < high <= 1.0


def test_logistic_regression_is_scikit_learns() -> None:
    features, targets = clusters(200, 1)
    strength = 1e-3
    weight, bias, mean, deviation = linear.fit(features, targets, 4, strength)
    scaled = (features - features.mean(0)) / features.std(0)
    peer = LogisticRegression(C=1 / (strength * 200), tol=1e-8, max_iter=5000).fit(scaled, targets)
    ours = weight.numpy() - weight.numpy().mean(1, keepdims=True)
    theirs = peer.coef_.T - peer.coef_.T.mean(1, keepdims=True)
    np.testing.assert_allclose(ours, theirs, atol=2e-3)
    test = clusters(100, 2)[0]
    scaled_test = (test - features.mean(0)) / features.std(0)
    found, expected = (
        linear.scores(test, (weight, bias, mean, deviation)),
        peer.decision_function(scaled_test),
    )
    found, expected = (scores - scores.mean(1, keepdims=True) for scores in (found, expected))
    np.testing.assert_allclose(found, expected, atol=1e-2)  # answers may differ where two classes are equal


def test_logistic_regression_with_several_labels_is_scikit_learns() -> None:
    features, targets = several(200, 1)
    strength = 1e-3
    weights = linear.fit(features, targets, 3, strength)
    scaled = (features - features.mean(0)) / features.std(0)
    alone = LogisticRegression(C=1 / (strength * 200), tol=1e-8, max_iter=5000)
    peer = OneVsRestClassifier(alone).fit(scaled, targets.astype(int))
    np.testing.assert_allclose(linear.scores(features, weights), peer.decision_function(scaled), atol=5e-3)


def test_the_strength_is_chosen_on_held_out_images() -> None:
    test = clusters(300, 3)
    found, scores = linear.evaluate(clusters(100, 1), clusters(100, 2), test, 4)
    tried = found["validation"]
    assert tried[f"{found['strength']:.1e}"] == max(tried.values())
    assert metrics.accuracy(scores, test[1]) > 0.7


def test_metrics_are_scikit_learns(scored: tuple[np.ndarray, np.ndarray]) -> None:
    scores, targets = scored
    guess = scores.argmax(1)
    assert metrics.accuracy(*scored) == sklearn.metrics.accuracy_score(targets, guess)
    balanced = sklearn.metrics.balanced_accuracy_score(targets, guess)
    assert metrics.mean_per_class_accuracy(*scored) == pytest.approx(balanced)
    low, high = metrics.interval("mean_per_class_accuracy", *scored)
    assert low < balanced < high
    hot = np.eye(9)[targets] > 0  # two labels that never occur
    wide = np.pad(scores, ((0, 0), (0, 2)))
    precision = sklearn.metrics.average_precision_score(hot[:, :7], scores)
    assert metrics.mean_average_precision(wide, hot) == pytest.approx(precision)
    assert metrics.mean_average_precision(wide, np.zeros_like(hot)) == 0.0


def test_reassessed_labels_are_timms(tmp_path: Path) -> None:
    path = tmp_path / "real.json"
    path.write_text(json.dumps([[1, 2], [], [3], [0]]))
    files = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in (1, 2, 3, 4)]
    logits = np.eye(5)[[2, 0, 4, 0]]
    peer = RealLabelsImagenet(files, real_json=str(path))
    import torch

    peer.add_result(torch.from_numpy(logits))
    found = real.figures(logits.argmax(1), files, real.read(path))
    assert found == {"real_accuracy": pytest.approx(peer.get_accuracy(k=1) / 100), "real_count": 3}
    with pytest.raises(DataError, match="no ImageNet validation image"):
        real.figures(np.array([0]), ["cat.jpg"], real.read(path))


def test_classes_are_fitted_by_name() -> None:
    for data, known, rows in (
        (["dog", "cat"], ["cat", "bird", "dog"], [2, 0]),
        (["DOG ", "Cat"], ["cat", "dog"], [1, 0]),
        (["1", "0"], ["0", "1", "2"], [1, 0]),
    ):
        found = alignment.match(data, known)
        assert found.rows.tolist() == rows and found.by == "name" and not found.doubt
    with pytest.raises(
        DataError, match=r"does not know 1 of the data's 2 classes: 'cow'; it knows 2, such as 'cat'"
    ):
        alignment.match(["cat", "cow"], ["cat", "dog"])


def test_classes_without_names_are_fitted_by_order_or_number_which_is_said() -> None:
    found = alignment.match(["a", "b"], ["0", "1"])
    assert found.rows.tolist() == [0, 1] and found.by == "order"
    assert "2 classes are matched to its by order ('a' is taken for number 0)" in found.doubt
    found = alignment.match(["0", "1"], ["cat", "dog"], numbered=True)
    assert found.rows.tolist() == [0, 1] and found.by == "number" and "'0' is taken for 'cat'" in found.doubt
    for data, known, numbered in (
        (["0", "1"], ["cat", "dog"], False),  # names of folders, which share nothing with the model's
        (["0", "1"], ["cat", "dog", "owl"], True),
        (["0", "2"], ["cat", "dog"], True),
        (["a", "b"], ["0", "1", "2"], False),
        (["a", "b"], ["3", "7"], False),  # names that happen to be numbers, as of a part of the digits
        (["0", "b"], ["0", "1"], False),
    ):
        with pytest.raises(DataError, match="the checkpoint does not know"):
            alignment.match(data, known, numbered=numbered)


def test_imagenets_subsets_are_fitted_by_synset_and_number() -> None:
    known = [f"name {row}" for row in range(1000)]
    found = alignment.match(["n01443537", "n01440764"], known)
    assert found.rows.tolist() == [1, 0] and found.by == "synset" and not found.doubt
    found = alignment.match(["0", "999", "10"], known)
    assert found.rows.tolist() == [0, 999, 10] and found.by == "number"
    assert "3 classes are matched to the checkpoint's 1,000 by number, not by name" in found.doubt
    with pytest.raises(DataError, match="does not know 2 of"):
        alignment.match(["0", "1000"], known)


@pytest.mark.parametrize("name", corruptions.CORRUPTIONS)
@pytest.mark.parametrize("size", [(112, 96), (8, 8)])
def test_corruptions_are_repeatable_and_harmful(name: str, size: tuple[int, int]) -> None:
    photograph = Image.fromarray(load_sample_image("flower.jpg")).resize((size[1], size[0]))
    pixels = np.asarray(photograph.convert("L"))[..., None] if size == (8, 8) else np.asarray(photograph)
    mild, strong = (corruptions.corrupt(pixels, name, severity, seed=1, index=3) for severity in (1, 5))
    assert strong.shape == pixels.shape and strong.dtype == np.uint8
    np.testing.assert_array_equal(strong, corruptions.corrupt(pixels, name, 5, seed=1, index=3))
    change = [np.abs(each.astype(float) - pixels).mean() for each in (mild, strong)]
    assert change[1] > 2
    if name != "elastic_transform" and size != (8, 8):  # its severities bend in different ways
        assert change[1] > change[0]
