"""Files of weights: whatever is wrong with one, a clear line, nothing executed, nothing written."""

import io
import json
import os
import pickle
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.hostile import checkpoints as hostile
from vitreous.errors import CheckpointError, VitreousError
from vitreous.layouts import containers
from vitreous.models.architecture import ViTConfig
from vitreous.models.weights import Weights, build
from vitreous.predict import load


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


@pytest.mark.parametrize("kind", hostile.MAKERS)
def test_hostile_files_are_refused_in_one_line_or_are_right(tmp_path: Path, kind: str) -> None:
    """`make fuzz` tries many more, each with bounds on time and memory."""
    for seed in range(2 if kind.startswith("deflated") else 8):
        folder = tmp_path / str(seed)
        folder.mkdir()
        path = hostile.place(kind, hostile.MAKERS[kind](random.Random(seed)), folder)
        heads = {} if path.is_dir() else {"heads": 2}
        try:
            (found,) = load(path, **heads).predict(Image.new("RGB", (20, 20)))
            assert 0 <= found.probability <= 1
        except VitreousError as error:
            assert "\n" not in str(error) and 10 < len(str(error)) < 1000


@pytest.mark.parametrize("layout", ["vitreous", "google", "torchvision", "timm", "hf"])
def test_what_the_hostile_files_are_made_from_is_right(tmp_path: Path, layout: str) -> None:
    for name, data in hostile.whole(layout).items():
        (tmp_path / name).write_bytes(data)
    path = tmp_path if layout in ("timm", "hf") else next(tmp_path.iterdir())
    assert load(path, **({"heads": 2} if layout == "torchvision" else {})).model.config.depth == 2


def test_a_pickle_that_holds_itself_ends(tmp_path: Path) -> None:
    looped: dict[str, object] = {}
    looped["model"] = looped
    torch.save(looped, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="holds no tensors by name"):
        containers.read(tmp_path / "w.pth")


def test_archives_that_unpack_to_far_more_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.npz").write_bytes(hostile.deflated_arrays(random.Random(0)))
    with pytest.raises(CheckpointError, match=r"would unpack from .* at most 4 times its size is taken"):
        containers.read(tmp_path / "w.npz")
    (tmp_path / "w.pth").write_bytes(hostile.deflated_pickles(random.Random(0)))
    with pytest.raises(CheckpointError, match="is compressed .* as torch never writes"):
        containers.read(tmp_path / "w.pth")


def test_compressed_arrays_of_weights_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "w.npz", a=np.random.randn(1000), head=np.zeros(10**6))
    assert containers.read(tmp_path / "w.npz").tensors["head"].shape == (10**6,)


def test_a_tensor_larger_than_its_storage_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1).expand(10**12)}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="a of \\[1000000000000\\] is larger than what it stores"):
        containers.read(tmp_path / "w.pth")


def test_more_tensors_than_a_model_has_are_refused(tmp_path: Path) -> None:
    save_file({f"a{i}": torch.zeros(1) for i in range(20_001)}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match="20,001 tensors: a model has at most 20,000"):
        containers.read(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 10**9}, "2 tensors, 1,000,000,000 layers"),
        ({"width": 2**30, "heads": 1, "mlp_width": 2**30, "depth": 1}, "parameters, the file 6 numbers"),
    ],
)
def test_a_model_far_larger_than_its_tensors_is_not_built(changes: dict[str, int], message: str) -> None:
    tensors = {"cls_token": torch.zeros(3), "norm.bias": torch.zeros(3)}
    with pytest.raises(CheckpointError, match=message):
        build(Weights(config=ViTConfig(**changes), tensors=tensors))


def test_weights_that_are_no_floats_are_refused(tmp_path: Path) -> None:
    for name, data in hostile.whole("torchvision").items():
        state = torch.load(io.BytesIO(data), weights_only=True)
        state["encoder.ln.bias"] = state["encoder.ln.bias"].long()
        torch.save(state, tmp_path / name)
        with pytest.raises(CheckpointError, match="norm.bias can't be used: it is int64"):
            load(tmp_path / name, heads=2)


def test_names_that_do_not_fit_the_classes_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in hostile.whole("timm").items():
        (tmp_path / name).write_bytes(data)
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(document | {"label_names": ["a"]}))
    assert load(tmp_path).labels == ["0", "1", "2"]
    assert "left out, 1 names for 3 classes" in capsys.readouterr().err
