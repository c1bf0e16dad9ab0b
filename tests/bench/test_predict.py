"""The prediction that is timed: the classifier's own call, and peers' with the same answer."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bench.conftest import place_in, tiny_case
from vitreous.bench import predict
from vitreous.predict import Classifier


def test_it_is_the_classifiers_call_and_peers_give_its_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    probabilities = Classifier.probabilities

    def spy(self: Classifier, images: torch.Tensor) -> torch.Tensor:
        called.append(images.shape)
        return probabilities(self, images)

    monkeypatch.setattr(Classifier, "probabilities", spy)
    names = ("timm", "transformers", "torchvision")
    ours, *others = predict.contenders(tiny_case("predict", batch_size=3), place_in(tmp_path, *names))
    answer: Any = ours.work()
    assert called == [(3, 3, 32, 32)] and answer.shape == (3, 1000)
    assert answer.std() > 0  # not all the same, which would agree with anything
    assert [each.name for each in others] == list(names)
    for each in others:
        torch.testing.assert_close(each.work(), answer, atol=1e-6, rtol=1e-4)


def test_precision_changes_the_answer_of_all(tmp_path: Path) -> None:
    answers: dict[str, list[Any]] = {}
    for precision in ("float32", "bf16"):
        found = predict.contenders(tiny_case("predict", precision=precision), place_in(tmp_path, "timm"))
        answers[precision] = [each.work() for each in found]
    for exact, rough in zip(answers["float32"], answers["bf16"], strict=True):
        assert not torch.equal(exact, rough)
        torch.testing.assert_close(rough, exact, atol=1e-3, rtol=0.1)


def test_precision_is_that_of_the_verb_unless_asked_for(tmp_path: Path) -> None:
    world = place_in(tmp_path).world
    assert predict.settled(tiny_case("predict", precision=None), world).precision == "float32"
    assert predict.settled(tiny_case("predict", precision="bf16"), world).precision == "bf16"
