"""Peers: the same weights give the same logits; what is missing is said in one line, and the rest goes on."""

import sys

import pytest
import torch

from tests.bench.conftest import tiny_case
from vitreous.bench import peers, predict
from vitreous.bench.cases import Case
from vitreous.bench.peers import Peers


@pytest.mark.parametrize("name", ["timm", "transformers", "torchvision"])
def test_a_peer_computes_the_same_logits(name: peers.Peer) -> None:
    case = tiny_case("predict")
    model = predict.fresh_model(case).eval()
    images = torch.randn(2, 3, 32, 32)
    ((found, version, peer),) = Peers([name]).models(case, dict(model.state_dict()))
    assert found == name and version[0].isdigit()
    with torch.inference_mode():
        ours, theirs = model(images), peer.eval()(images)
    assert ours.abs().max() > 0.05  # not zero, which would agree with anything
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=0)


def test_a_peer_that_is_not_installed_is_said_once_and_the_others_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # as Python marks what can't be imported
    asked = Peers(["timm", "torchvision"])
    case = tiny_case("predict")
    tensors = dict(predict.fresh_model(case).state_dict())
    for _ in range(2):
        assert [name for name, *_ in asked.models(case, tensors)] == ["torchvision"]
    said = capsys.readouterr().err
    assert said == "warning: timm is left out: it is not installed: pip install timm\n"


def test_a_variant_that_a_peer_lacks_is_said_and_the_others_stay(capsys: pytest.CaptureFixture[str]) -> None:
    case = tiny_case("predict", model="deit_tiny_distilled_patch16_224")
    tensors = dict(predict.fresh_model(case).state_dict())
    found = [name for name, *_ in Peers(["torchvision", "timm"]).models(case, tensors)]
    assert found == ["timm"]
    said = capsys.readouterr().err
    assert said.startswith(
        "warning: torchvision is left out: it has no deit_tiny_distilled_patch16_224 with "
    )
    assert said.count("\n") == 1


def test_a_peer_that_nobody_named_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(peers, "import_module", lambda name: imported.append(name) or torch)
    assert list(Peers([])) == [] and imported == []
    assert [name for name, _ in Peers(["timm"])] == ["timm"] and imported == ["timm"]


def test_images_that_are_not_square_are_left_to_those_who_take_them() -> None:
    case = Case(job="predict", model="vit_tiny_patch16_224", image_size=(32, 48), precision="float32")
    tensors = dict(predict.fresh_model(case).state_dict())
    found = [name for name, *_ in Peers(["timm", "transformers", "torchvision"]).models(case, tensors)]
    assert found == ["timm"]
