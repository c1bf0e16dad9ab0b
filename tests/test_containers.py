"""Files of weights: whatever is wrong with one, a clear line, nothing executed, nothing written."""

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from vitreous.errors import CheckpointError
from vitreous.layouts import containers


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch exploded",)


def test_a_pickle_that_wants_more_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Bomb()}, "bomb.pth")
    Path("plain.pth").write_bytes(pickle.dumps(Bomb(), protocol=2))
    for name in ("bomb.pth", "plain.pth"):
        with pytest.raises(CheckpointError, match="was refused: it wants .*system"):
            containers.read(Path(name))
    assert not Path("exploded").exists()


@pytest.mark.parametrize("wrapped", ["{}", "model", "state_dict", "teacher"])
def test_nested_state_dicts_are_found(tmp_path: Path, wrapped: str) -> None:
    state = {"module.a.weight": torch.ones(2), "module.b": torch.zeros(1)}
    torch.save(state if wrapped == "{}" else {wrapped: state, "epoch": 3}, tmp_path / "w.pth")
    assert set(containers.read(tmp_path / "w.pth").tensors) == {"a.weight", "b"}


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth", ".bin", ".txt"])
def test_empty_and_garbage_files_are_refused(tmp_path: Path, suffix: str) -> None:
    for content in (b"", b"\x00" * 64, b"GIF89a not weights", os.urandom(512)):
        path = tmp_path / f"w{suffix}"
        path.write_bytes(content)
        with pytest.raises(CheckpointError) as refusal:
            containers.read(path)
        assert "\n" not in str(refusal.value)


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.randn(1000)}, tmp_path / "w.pth")
    np.savez(tmp_path / "w.npz", a=np.random.randn(1000))
    for path in (tmp_path / "w.pth", tmp_path / "w.npz"):
        path.write_bytes(path.read_bytes()[:-500])
        with pytest.raises(CheckpointError, match="not a whole"):
            containers.read(path)


def test_an_array_header_that_lies_takes_no_memory(tmp_path: Path) -> None:
    """The header promises 8 TB; the member holds a hundred bytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("a.npy", header.getvalue() + b"\x00" * 100)
    with pytest.raises(CheckpointError, match="promises 8,000,000,000,"):
        containers.read(tmp_path / "w.npz")


def test_python_objects_in_an_npz_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", a=np.array([Bomb()], dtype=object))
    with pytest.raises(CheckpointError, match="Python objects"):
        containers.read(tmp_path / "w.npz")


def test_bfloat16_of_jax_is_read(tmp_path: Path) -> None:
    values = torch.randn(7).bfloat16()
    raw = values.view(torch.int16).numpy().view(np.dtype("V2"))
    np.savez(tmp_path / "w.npz", a=raw)
    assert torch.equal(containers.read(tmp_path / "w.npz").tensors["a"], values.float())


def test_a_folder_without_weights_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no weights: expected one of model.safetensors"):
        containers.read(tmp_path)
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(CheckpointError, match="is not JSON"):
        containers.read(tmp_path)


def test_documents_beside_a_bare_file_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_attention_heads": 99}')
    torch.save({"a": torch.zeros(1)}, tmp_path / "w.pth")
    assert containers.read(tmp_path / "w.pth").documents == {}


def test_the_hub_is_asked_through_its_cache_and_offline_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    def snapshot_download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.update(name=name, revision=revision, patterns=allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert containers.fetch("hf://google/vit-base@v1.0") == tmp_path
    assert (asked["name"], asked["revision"]) == ("google/vit-base", "v1.0")
    assert not any(pattern.endswith(".py") for pattern in asked["patterns"])


def test_offline_the_hub_is_a_clear_line() -> None:
    with pytest.raises(CheckpointError, match="hf://nobody/nothing could not be fetched"):
        containers.fetch("hf://nobody/nothing")
    with pytest.raises(CheckpointError, match="write hf://owner/name"):
        containers.fetch("hf://../etc")
