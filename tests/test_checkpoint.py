"""The sealed file: nothing lost, nothing half written, every change noticed, older files readable."""

import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import FIXTURES, randomize
from tests.hostile import checkpoints as hostile
from vitreous import checkpoint, files, layouts
from vitreous.config import Preprocessing
from vitreous.errors import CheckpointError, VitreousError
from vitreous.models import zoo
from vitreous.models.architecture import ResNetConfig, ViTConfig
from vitreous.models.weights import Weights, build
from vitreous.predict import load

PREPROCESSING = {"image_size": [16, 24], "mean": [0.5] * 3, "std": [0.5] * 3}
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


def test_files_of_before_the_document_was_sealed_say_what_is_not_covered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They can't be told from a file whose preprocessing was changed: that is said, once."""
    load(FIXTURES / "sealed_v1.safetensors")
    said = [line for line in capsys.readouterr().err.splitlines() if "seal" in line.split()]
    assert len(said) == 1 and "not preprocessing, labels and calibration" in said[0]


def test_a_sealed_file_has_nothing_to_say(sealed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(sealed)
    assert capsys.readouterr().err == ""


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


def tiny_sealed(path: Path) -> Weights:
    """Write the smallest sealed file there is, so that each of its bits can be tried."""
    config = ResNetConfig(layers=(), stem_width=1, groups=1, in_channels=1, num_classes=0, image_size=8)
    weights = Weights(
        config=config,
        tensors={"conv.weight": torch.randn(1, 1, 7, 7), "norm.weight": torch.ones(1).half()},
        preprocessing=Preprocessing(image_size=(8, 8), mean=(0.25,), std=(0.5,)),
        labels=None,
        about={"calibration": {"temperature": 1.5}, "multilabel": True},
    )
    checkpoint.write(weights, path)
    return weights


def same(a: Weights, b: Weights) -> bool:
    documents = [(w.config, w.preprocessing, w.labels, w.about, w.notes, w.tensors.keys()) for w in (a, b)]
    return documents[0] == documents[1] and all(
        torch.equal(tensor, b.tensors[name]) and tensor.dtype == b.tensors[name].dtype
        for name, tensor in a.tensors.items()
    )


def test_any_flipped_bit_is_refused_or_harmless(tmp_path: Path) -> None:
    """Every bit of the file: lengths, names, types, offsets, the document, its checksum, the tensors."""
    path = tmp_path / "tiny.safetensors"
    before, refused = tiny_sealed(path), 0
    data = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for place in range(len(data)):
            for bit in range(8):
                file.seek(place)
                file.write(bytes([data[place] ^ 1 << bit]))
                try:
                    after = checkpoint.read(path) if checkpoint.is_sealed(path) else None
                    if after is None:
                        layouts.read(path, {})
                    assert after is not None and same(after, before), f"bit {bit} of byte {place}"
                except CheckpointError:
                    refused += 1
            file.seek(place)
            file.write(data[place : place + 1])
    assert refused > 7 * len(data)  # little of it, such as the padding of the header, may change


def test_a_document_whose_seal_was_cut_out_is_refused(sealed: Path) -> None:
    document = checkpoint.describe(sealed)
    document["sea1"] = document.pop("seal")
    sealed.write_bytes(hostile.described_as(sealed.read_bytes(), document))
    with pytest.raises(CheckpointError, match="is damaged: its seal is missing, and sea1 is unknown"):
        checkpoint.read(sealed)


@pytest.mark.parametrize("verify", [True, False])
def test_a_changed_document_is_refused(sealed: Path, verify: bool) -> None:
    """What reads only the document is cheap: it is compared even where the tensors are not."""
    document = checkpoint.describe(sealed)
    document["preprocessing"]["std"][0] = 1.5
    sealed.write_bytes(hostile.described_as(sealed.read_bytes(), document))
    with pytest.raises(CheckpointError, match=r"is damaged: its description .* differs from its checksum"):
        checkpoint.read(sealed, verify=verify)


def test_names_that_are_not_text_are_kept(tmp_path: Path) -> None:
    """A folder's name on disk is bytes: what is not UTF-8 in it becomes a lone surrogate in its label."""
    weights = sample()
    weights.labels = ["a", "\udcff", "ç"]
    weights.about = {"by number": {10: "x", 9: "y"}}
    checkpoint.write(weights, tmp_path / "model.safetensors")
    back = checkpoint.read(tmp_path / "model.safetensors")
    assert back.labels == weights.labels
    assert back.about == {"by number": {"10": "x", "9": "y"}}


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
        ({"format": "1"}, "has format '1'"),
        ({"architecture": {"kind": "subprocess.Popen"}}, "unknown kind of model"),
        ({"architecture": {"kind": "vit", "width": 16, "heads": 3}}, "not a multiple of 3 heads"),
        ({"preprocessing": {"surprise": 1}}, "unknown entries surprise"),
        ({"labels": {"0": "a"}}, "labels is not a list of names"),
        ({"checksums": []}, "lacks checksums"),
        ({"preprocessing": [1]}, "preprocessing is not an object"),
        ({"preprocessing": PREPROCESSING | {"std": [0.5, 0.0, 0.5]}}, "std (0.5, 0.0, 0.5) can't be used"),
        ({"preprocessing": PREPROCESSING | {"std": [0.5, -1, 0.5]}}, "std (0.5, -1, 0.5) can't be used"),
        ({"preprocessing": PREPROCESSING | {"std": [1e-300] * 3}}, "numbers from 1e-06 to 1e+06"),
        ({"preprocessing": PREPROCESSING | {"mean": [0.5, float("nan"), 0.5]}}, "mean (0.5, nan, 0.5)"),
        ({"preprocessing": PREPROCESSING | {"mean": [0.5]}}, "1 of mean and 3 of std"),
        ({"preprocessing": PREPROCESSING | {"image_size": [10**9, 10**9]}}, "image_size (1000000000, "),
        ({"preprocessing": PREPROCESSING | {"image_size": [16, 0]}}, "image_size (16, 0) is not a size"),
        ({"preprocessing": PREPROCESSING | {"resize": "explode"}}, "unknown resize 'explode'"),
        ({"preprocessing": PREPROCESSING | {"interpolation": 3}}, "unknown interpolation 3"),
        ({"labels": ["a", "b"]}, "2 labels for 3 classes"),
        ({"about": 7}, "about is not an object"),
        ({"about": {"calibration": {"temperature": 0}}}, "temperature 0 is not a number from"),
        ({"about": {"calibration": {"temperature": 1e-300}}}, "temperature 1e-300 is not a number from"),
        ({"about": {"abstain": 2}}, "abstain 2 is not a probability"),
        ({"about": {"thresholds": [0.5]}}, "thresholds is not one probability for each of 3 labels"),
    ],
    ids=str,
)
def test_metadata_that_cannot_be_used_is_refused(sealed: Path, changes: dict[str, Any], message: str) -> None:
    document = checkpoint.describe(sealed) | changes
    sealed.write_bytes(hostile.resealed(sealed.read_bytes(), document))
    with pytest.raises(CheckpointError) as refusal:
        checkpoint.read(sealed)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ["a", "b"]}, "2 labels for 3 classes"),
        ({"about": {"thresholds": [0.5]}}, "thresholds is not one probability for each of 3 labels"),
        ({"about": {"calibration": {"temperature": 0}}}, "temperature 0 is not a number from"),
    ],
    ids=str,
)
def test_what_could_not_be_read_again_is_not_written(
    sealed: Path, changes: dict[str, Any], message: str
) -> None:
    before = sealed.read_bytes()
    with pytest.raises(CheckpointError, match=f"is not written, .*{message}"):
        checkpoint.write(replace(sample(), **changes), sealed)
    assert sealed.read_bytes() == before


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
    with pytest.raises(VitreousError, match="the disk of .* is full: "):
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
