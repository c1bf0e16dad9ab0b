"""Conversion: proven by the target's library, kept only when it agrees, nothing overwritten."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import FIXTURES
from tests.test_evaluate import tiny_classifier
from tests.test_vit import tiny
from vitreous import cli
from vitreous.config import Preprocessing
from vitreous.convert import convert
from vitreous.data.augment import EvaluationTransform
from vitreous.errors import LayoutError, VitreousError
from vitreous.models.weights import Model
from vitreous.predict import Classifier, load

SEALED = FIXTURES / "sealed_v1.safetensors"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A sealed model that every layout can hold."""
    classifier = load(FIXTURES / "google_vit.npz")
    config = {"image_size": 32, "patch_size": 8, "width": 32, "depth": 2, "heads": 4, "mlp_width": 64}
    from tests.conftest import randomize
    from vitreous.models import zoo

    classifier.model = randomize(zoo.create_model("ViT-B/16", **config, num_classes=10))
    return classifier.save(tmp_path / "source.safetensors")


@pytest.mark.parametrize(
    ("layout", "name", "witness"),
    [
        ("timm", "folder", "timm 1."),
        ("timm", "bare.safetensors", "timm 1."),
        ("hf", "folder", "transformers 5."),
        ("torchvision", "bare.pth", "torchvision 0."),
        ("vitreous", "sealed.safetensors", "vitreous"),
    ],
)
def test_the_targets_library_is_the_witness(
    source: Path, tmp_path: Path, layout: str, name: str, witness: str
) -> None:
    result = convert(str(source), tmp_path / name, layout)
    assert result.compared_with.startswith(witness)
    assert result.largest_difference <= 1e-5
    assert (tmp_path / name).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, name])


def test_a_model_without_classes_is_proven_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers would add a layer that the weights don't have, and advise to train it."""
    model = tiny(num_classes=0, image_size=(16, 16))
    transform = EvaluationTransform(Preprocessing(image_size=(16, 16)))
    headless = Classifier(model, transform, []).save(tmp_path / "headless.safetensors")
    said = logging.getLogger("transformers")
    said.addHandler(caplog.handler)
    try:
        assert convert(str(headless), tmp_path / "hf", "hf").compared_with.startswith("transformers")
    finally:
        said.removeHandler(caplog.handler)
    assert not caplog.records


def test_a_fresh_head_of_zeros_cannot_hide_a_wrong_model(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = convert(str(source), tmp_path / "hf", "hf", num_classes=4)
    assert result.largest_difference <= 1e-5
    assert not load(tmp_path / "hf").model.head.weight.any()

    def wrong(path: Path, layout: str, config: object) -> tuple[str, Model]:
        model = load(path).model
        with torch.no_grad():
            model.blocks[0].attn.qkv.weight.mul_(1.01)
        return "a wrong library", model

    monkeypatch.setitem(convert.__globals__, "_reload", wrong)
    with pytest.raises(LayoutError, match=r"away from its source \(by a wrong library\), more than 1e-04"):
        convert(str(source), tmp_path / "bad", "hf", num_classes=4)
    assert not (tmp_path / "bad").exists()
    assert not list(tmp_path.glob(".draft*"))


def test_nothing_is_overwritten(source: Path, tmp_path: Path) -> None:
    before = source.read_bytes()
    with pytest.raises(VitreousError, match="exists: choose another name"):
        convert(str(source), source, "vitreous")
    assert source.read_bytes() == before


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "convert",
        str(FIXTURES / "google_hybrid.npz"),
        str(tmp_path / "a.safetensors"),
        "--to",
        "vitreous",
    ]
    assert cli.main([*arguments, "--image-size", "64", "96", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compared_with"] == "vitreous"
    assert load(tmp_path / "a.safetensors").model.config.image_size == (64, 96)
    assert cli.main(["convert", str(SEALED), str(tmp_path / "b.npz"), "--to", "google"]) == 1
    assert "no place for the activation gelu (JAX computes gelu_tanh)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layout", "name", "lost"),
    [
        ("vitreous", "sealed.safetensors", []),
        ("timm", "folder", ["temperature", "probability below"]),
        ("hf", "folder", ["temperature", "probability below"]),
        (
            "timm",
            "bare.pth",
            ["temperature", "probability below", "names of 10", "cover 40x40"],
        ),
        ("torchvision", "bare.pth", ["temperature", "probability below", "names of 10", "preprocessing"]),
        ("google", "bare.npz", ["temperature", "probability below", "names of 10", "preprocessing"]),
    ],
)
def test_what_a_layout_cannot_carry_is_said(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str, name: str, lost: list[str]
) -> None:
    classifier = load(FIXTURES / "google_vit.npz" if layout == "google" else source)
    classifier.labels = [f"class {row}" for row in range(10)]
    classifier.about |= {"calibration": {"temperature": 1.5}, "abstain": 0.25}
    changed = replace(
        classifier.preprocess.preprocessing, resize="cover", resize_size=(40, 40), mean=(0.1,) * 3
    )
    classifier.preprocess.preprocessing = changed
    sealed = classifier.save(tmp_path / "rich.safetensors")
    capsys.readouterr()
    found = convert(str(sealed), tmp_path / name, layout).lost
    assert len(found) == len(lost) and all(part in text for part, text in zip(lost, found, strict=True))
    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert warned == [f"warning: the {layout} layout can't carry {text}" for text in found]


def test_saving_says_what_converting_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """timm crops where this model pads: its predictions would be of other pixels."""
    classifier = tiny_classifier("pad", 0)
    sealed = classifier.save(tmp_path / "a.safetensors")
    assert capsys.readouterr().err == ""
    classifier.save(tmp_path / "saved", layout="timm")
    said = capsys.readouterr().err
    assert said.startswith("warning: the timm layout can't carry the preprocessing: pad 8x8, bicubic,")
    assert said.count("\n") == 1
    convert(str(sealed), tmp_path / "converted", "timm")
    assert capsys.readouterr().err == said


def test_a_model_without_names_or_calibration_loses_nothing(source: Path, tmp_path: Path) -> None:
    assert convert(str(source), tmp_path / "folder", "timm").lost == []
