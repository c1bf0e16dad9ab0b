"""The sealed file: nothing lost, nothing half written, every change noticed, older files readable."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import FIXTURES, randomize
from vitreous import checkpoint, files
from vitreous.config import Preprocessing
from vitreous.errors import CheckpointError, VitreousError
from vitreous.models import zoo
from vitreous.models.architecture import ViTConfig
from vitreous.models.weights import Weights, build

CONFIG = ViTConfig(image_size=(16, 24), patch_size=8, width=16, depth=1, heads=2, mlp_width=32, num_classes=3)


def sample() -> Weights:
    return Weights(
        config=CONFIG,
        tensors=dict(randomize(zoo.build(CONFIG)).state_dict()),
        preprocessing=Preprocessing(image_size=(16, 24), resize="exact", mean=(0.1, 0.2, 0.3), std=(1, 2, 3)),
        labels=["a", "<b>", "ç"],
        about={"licence": "CC0", "results": {"accuracy": 0.5}},
    )


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    checkpoint.write(sample(), path)
    return path


def test_everything_comes_back(sealed: Path) -> None:
    back, ours = checkpoint.read(sealed), sample()
    assert (back.config, back.preprocessing, back.labels, back.about) == (
        ours.config,
        ours.preprocessing,
        ours.labels,
        ours.about,
    )
    assert all(torch.equal(back.tensors[name], ours.tensors[name]) for name in ours.tensors)
    assert checkpoint.describe(sealed)["labels"] == ["a", "<b>", "ç"]


def test_other_tools_can_read_the_tensors(sealed: Path) -> None:
    assert load_file(sealed).keys() == sample().tensors.keys()


@pytest.mark.parametrize("version", [1])
def test_files_of_earlier_versions_are_readable(version: int) -> None:
    """These files were written when that format was new; they must be readable for ever."""
    back = checkpoint.read(FIXTURES / f"sealed_v{version}.safetensors")
    assert back.labels == ["a", "<b>", "ç"]
    with torch.no_grad():
        logits = build(back)(torch.ones(1, 3, 16, 24))
    expected = torch.tensor(json.loads((FIXTURES / f"sealed_v{version}.json").read_text()))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_a_flipped_bit_is_noticed_and_its_tensor_named(sealed: Path) -> None:
    data = bytearray(sealed.read_bytes())
    header = struct.unpack("<Q", data[:8])[0]
    offsets = json.loads(data[8 : 8 + header])["blocks.0.mlp.fc1.weight"]["data_offsets"]
    data[8 + header + offsets[0] + 5] ^= 1
    sealed.write_bytes(data)
    with pytest.raises(
        CheckpointError, match=r"is damaged: blocks.0.mlp.fc1.weight differs from its checksum"
    ):
        checkpoint.read(sealed)
    assert checkpoint.read(sealed, verify=False).labels == ["a", "<b>", "ç"]


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, -1])
def test_a_truncated_file_is_refused(sealed: Path, keep: float) -> None:
    data = sealed.read_bytes()
    sealed.write_bytes(data[: int(len(data) * keep) if keep == 0.5 else int(keep)])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        checkpoint.read(sealed)


def test_a_header_that_lies_is_refused(sealed: Path) -> None:
    data = bytearray(sealed.read_bytes())
    data[:8] = struct.pack("<Q", 2**62)
    sealed.write_bytes(data)
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        checkpoint.read(sealed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 99}, "has format 99: this vitreous reads 1 to 1; install a newer one"),
        ({"format": "1"}, "has format 1"),
        ({"architecture": {"kind": "subprocess.Popen"}}, "unknown kind of model"),
        ({"architecture": {"kind": "vit", "width": 16, "heads": 3}}, "not a multiple of 3 heads"),
        ({"preprocessing": {"surprise": 1}}, "unknown entries surprise"),
        ({"labels": {"0": "a"}}, "labels is not a list of names"),
        ({"checksums": []}, "lacks checksums"),
    ],
    ids=str,
)
def test_metadata_that_cannot_be_used_is_refused(sealed: Path, changes: dict[str, Any], message: str) -> None:
    document = checkpoint.describe(sealed) | changes
    save_file(load_file(sealed), sealed, metadata={"vitreous": json.dumps(document)})
    with pytest.raises(CheckpointError) as refusal:
        checkpoint.read(sealed)
    assert message in str(refusal.value)


def test_tensors_that_do_not_fit_the_architecture_are_named(sealed: Path) -> None:
    weights = checkpoint.read(sealed)
    weights.tensors["surprise"] = torch.zeros(1)
    weights.tensors.pop("head.bias")
    weights.tensors["norm.bias"] = torch.zeros(3)
    with pytest.raises(
        CheckpointError, match=r"missing head.bias; left over surprise; .*norm.bias \[3\] \(expected \[16\]"
    ):
        build(weights)


def test_a_failed_write_leaves_the_old_file_and_no_debris(
    sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sealed.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        sealed.with_name("x").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(VitreousError, match="no space left on the disk"):
        checkpoint.write(sample(), sealed)
    assert sealed.read_bytes() == before
    assert not [path for path in sealed.parent.iterdir() if path.name.endswith(".part")]


def test_content_is_durable_before_the_name_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr(Path, "replace", lambda *a: (events.append("rename"), replace(*a))[1])
    files.write_text(tmp_path / "a.txt", "text")
    assert events == ["fsync", "rename", "fsync"]
    assert (tmp_path / "a.txt").read_text() == "text"


def test_a_file_that_is_not_sealed_says_so(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "plain.safetensors")
    assert not checkpoint.is_sealed(tmp_path / "plain.safetensors")
    with pytest.raises(CheckpointError, match="not a sealed vitreous file"):
        checkpoint.read(tmp_path / "plain.safetensors")
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoint.read(tmp_path / "nothing.safetensors")
