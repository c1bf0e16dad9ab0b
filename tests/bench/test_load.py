"""Loading: every contender makes as many images, of the size and batch that were asked for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.bench.conftest import place_in
from vitreous.bench import load
from vitreous.bench.cases import Case
from vitreous.data.host import HostLoader

LEFT_OPEN = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
"""timm leaves files to be closed by Python."""


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few photographs do."""
    monkeypatch.setattr(load, "LEAST", 7)


def jpegs(**changes: Any) -> Case:
    return Case(**{"job": "load", "data": "jpegs", "image_size": (32, 48), "batch_size": 4, **changes})


def test_ours_makes_an_epoch_without_and_with_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = []
    epoch = HostLoader.epoch

    def spy(self: HostLoader, number: int) -> Any:
        for batch in epoch(self, number):
            shapes.append(tuple(batch.images.shape))
            yield batch

    monkeypatch.setattr(HostLoader, "epoch", spy)
    plain, cached = load.contenders(jpegs(), place_in(tmp_path))
    assert (plain.name, cached.name) == ("vitreous", "vitreous, from its cache")
    plain.work()
    assert not (tmp_path / "cache").exists()  # every image is decoded, every time
    cached.work()
    assert any(path.is_file() for path in (tmp_path / "cache").rglob("*"))
    assert shapes == [(4, 3, 32, 48)] * 4 and plain.images == cached.images == 8


@LEFT_OPEN
@pytest.mark.parametrize("name", ["timm", "torchvision"])
def test_a_peers_epoch_is_as_large(name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    make = load.LOADERS[name]

    def spy(*arguments: Any) -> Any:
        batches = make(*arguments)
        return ((shapes.append(tuple(images.shape)), (images, labels))[1] for images, labels in batches)

    monkeypatch.setitem(load.LOADERS, name, spy)
    *_, peer = load.contenders(jpegs(), place_in(tmp_path, name))
    peer.work()
    assert (peer.name, peer.ours, peer.images) == (name, False, 8)
    assert shapes == [(4, 3, 32, 48)] * 2


@LEFT_OPEN
def test_all_normalise_alike(tmp_path: Path) -> None:
    """Photographs of one colour stay of one colour, however they are cropped: it must be the same one."""
    for number in range(4):
        path = tmp_path / "photos" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (80, 60), (255, 102, 0)).save(path)
    place, case = place_in(tmp_path, "timm", "torchvision"), jpegs()
    folder = tmp_path / "photos"
    batches = [batch.images for batch in load.our_loader(case, place, folder, None).epoch(0)]
    for name in ("timm", "torchvision"):
        batches += [images for images, _ in load.LOADERS[name](folder, case, place)]
    assert len(batches) == 3
    expected = torch.tensor([1.0, -0.2, -1.0]).view(3, 1, 1).expand(4, 3, 32, 48)
    for images in batches:
        torch.testing.assert_close(images, expected, atol=1e-5, rtol=0)


def test_arrays_are_read_by_ours_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ours,) = load.contenders(jpegs(data="npz"), place_in(tmp_path, "timm"))
    ours.work()
    assert ours.images == 8
    assert capsys.readouterr().err == "warning: timm is left out: it has no loader of .npz files\n"


def test_a_peer_without_a_loader_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [each.name for each in load.contenders(jpegs(), place_in(tmp_path, "transformers"))]
    assert found == ["vitreous", "vitreous, from its cache"]
    assert capsys.readouterr().err == "warning: transformers is left out: it has no loader of folders\n"
