"""What a trained model converts to is said before it is trained, and holds."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import randomize
from tests.training.runs import plan_of, run
from vitreous.config import TrainConfig
from vitreous.convert import convert
from vitreous.data.augment import EvaluationTransform
from vitreous.errors import LayoutError
from vitreous.models import zoo
from vitreous.predict import Classifier
from vitreous.training import Result, portability
from vitreous.training.defaults import choose
from vitreous.training.facts import Facts
from vitreous.training.plan import Plan

FACTS: dict[str, Any] = {"images": 5000, "classes": 3, "multilabel": False, "bf16": False, "cores": 2}


def chosen(size: tuple[int, int], channels: int = 3, device: str = "cpu", **options: Any) -> Plan:
    return choose(TrainConfig(**options), Facts(size=size, channels=channels, device=device, **FACTS))


@pytest.mark.parametrize(
    ("size", "channels", "device"),
    [
        ((8, 8), 1, "cpu"),
        ((32, 32), 3, "cuda"),
        ((96, 144), 3, "cpu"),
        ((12, 30), 4, "cuda"),
        ((4, 4), 1, "cpu"),
    ],
)
def test_what_training_chooses_converts_to_timm(
    size: tuple[int, int], channels: int, device: str, tmp_path: Path
) -> None:
    plan = chosen(size, channels, device)
    assert portability.describe(plan).startswith("timm; not to Hugging Face")
    model = randomize(zoo.build(plan.architecture))
    transform = EvaluationTransform(plan.preprocessing, plan.architecture.step)
    source = Classifier(model, transform, ["a", "b", "c"]).save(tmp_path / "model.safetensors")  # type: ignore[arg-type]
    assert convert(str(source), tmp_path / "timm", "timm").largest_difference < 1e-5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "timm; not to Hugging Face or torchvision (gap pooling where it reads a class token)"),
        ({"model": "ViT-Ti/16"}, "timm, Hugging Face, torchvision"),
        (
            {"model": "ViT-Ti/16", "fit": "pad"},
            "timm, torchvision; not to Hugging Face (padding to a square)",
        ),
        ({"model": "BiT-R50x1"}, "timm, Hugging Face; not to torchvision (BiT)"),
    ],
)
def test_the_line_names_what_is_in_the_way(options: dict[str, Any], said: str) -> None:
    assert portability.describe(chosen((32, 32), **options)) == said


def test_the_card_says_it_and_convert_the_same(undisturbed: Result, tmp_path: Path) -> None:
    said = portability.describe(plan_of(undisturbed.folder))
    assert f"It converts to {said}." in (undisturbed.folder / "model_card.md").read_text()
    with pytest.raises(LayoutError) as caught:
        convert(str(undisturbed.folder), tmp_path / "hf", "hf")
    assert str(caught.value) == (
        "the hf layout has no place for gap pooling where it reads a class token: choose another layout"
    )


def test_the_start_says_it(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(data, tmp_path / "run", epochs=1)
    assert f"converts to: {portability.describe(plan_of(tmp_path / 'run'))}\n" in capsys.readouterr().err
