"""The prediction that is timed: the classifier's own call, and peers' with the same answer."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bench.conftest import place_in, tiny_case
from vitreous.bench import cases, predict
from vitreous.config import BenchConfig
from vitreous.models import zoo
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


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_ours_predicts_on_the_runtimes_that_are_named(
    tmp_path: Path, precision: Any, one_registry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "vit_tiny_patch16_224"
    monkeypatch.setitem(zoo.VARIANTS, name, zoo.get_config(name, depth=1))  # quicker to export
    runtimes = ("torch", "onnxruntime") if precision == "float32" else ("onnxruntime",)
    case = tiny_case("predict", precision=precision, runtimes=runtimes)
    found = list(predict.contenders(case, place_in(tmp_path, "onnxruntime")))
    ours = ["vitreous" if runtime == "torch" else f"vitreous on {runtime}" for runtime in runtimes]
    assert [each.name for each in found] == [*ours, "onnxruntime"]
    assert [each.ours for each in found] == [*(True for _ in ours), False]
    theirs: Any = found[-1].work()
    for each in found[:-1]:
        mine: Any = each.work()
        torch.testing.assert_close(mine, torch.from_numpy(theirs.probabilities), atol=1e-6, rtol=1e-4)


def test_ours_merges_as_many_patches_as_are_named(tmp_path: Path) -> None:
    (asked,) = cases.read(BenchConfig(job=("predict",), merge=("0,1",))).cases
    case = tiny_case("predict", merges=asked.merges)
    plain, merged = predict.contenders(case, place_in(tmp_path))
    assert (plain.name, merged.name) == ("vitreous", "vitreous, merging 1") and merged.ours
    assert (plain.merge, merged.merge) == (0, 1)
    one, other = plain.work(), merged.work()
    assert not torch.equal(one, other)  # type: ignore[arg-type]


def test_what_has_no_such_precision_is_left_out_saying_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one_registry: None
) -> None:
    case = tiny_case("predict", precision="bf16", runtimes=("onnxruntime", "torch"))
    found = list(predict.contenders(case, place_in(tmp_path, "onnxruntime")))
    assert [each.name for each in found] == ["vitreous"]
    assert "onnxruntime is left out: it has no bf16 here" in capsys.readouterr().err
    case = tiny_case("predict", precision="int8")
    assert list(predict.contenders(case, place_in(tmp_path, "timm"))) == []
    said = capsys.readouterr().err
    assert "torch has no int8 here" in said and "timm is left out: it has no int8 here" in said
