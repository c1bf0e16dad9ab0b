"""The file of features: written whole or not at all; what is no index, or would run code, is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitreous.errors import DataError
from vitreous.features import index
from vitreous.features.index import Index


def some(**changes: Any) -> Index:
    """An index of three pictures."""
    model = {
        "source": "tiny",
        "checksum": "0" * 32,
        "labels": [],
        "layer": -1,
        "pooling": "model",
        "preprocessing": {"image_size": [8, 8]},
    }
    held: dict[str, Any] = {
        "features": np.eye(3, 5, dtype=np.float32),
        "files": np.array(["a.png", "b/ü.png", "c"]),
        "labels": np.array(["x", "", "x|y"]),
        "splits": np.array(["train"] * 3),
        "targets": np.array([0, -1, 1]),
        "classes": np.array(["x", "y"]),
        "digests": np.arange(48, dtype=np.uint8).reshape(3, 16),
        "about": {"model": model, "data": {"source": "photos"}},
    }
    return Index(**held | changes)


def arrays(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    index.write(tmp_path / "x.npz", some())
    found = index.read(tmp_path / "x.npz")
    for name in index.ARRAYS[:-1]:
        np.testing.assert_array_equal(getattr(found, name), getattr(some(), name))
    assert found.about == {"format": 1, **some().about} and len(found) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_an_older_file_stays_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.write(tmp_path / "x.npz", some())
    before = (tmp_path / "x.npz").read_bytes()

    def killed(file: Any, **held: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", killed)
    with pytest.raises(KeyboardInterrupt):
        index.write(tmp_path / "x.npz", some())
    assert (tmp_path / "x.npz").read_bytes() == before and len(list(tmp_path.iterdir())) == 1


class Hostile:
    """Unpickling this would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_no_pickle_is_opened(tmp_path: Path) -> None:
    index.write(tmp_path / "x.npz", some())
    held = arrays(tmp_path / "x.npz")
    held["labels"] = np.array([Hostile(tmp_path / "run")] * 3, object)
    np.savez(tmp_path / "y.npz", **held)
    with pytest.raises(DataError, match="is not a vitreous index: Object arrays cannot be loaded"):
        index.read(tmp_path / "y.npz")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": np.ones((3, 5), np.float32)}, "features are not of length 1"),
        ({"features": np.full((3, 5), np.nan, np.float32)}, "features are not of length 1"),
        ({"features": np.eye(3, 5)}, "features are not float32"),
        ({"features": np.zeros((0, 5), np.float32)}, "features are not float32"),
        ({"files": np.array(["a"])}, "files is not text for each picture"),
        ({"splits": np.arange(3)}, "splits is not text for each picture"),
        ({"digests": np.zeros((3, 4), np.uint8)}, "digests are not"),
        ({"targets": np.zeros(2)}, "targets are not one for each"),
        ({"about": np.array("{")}, "Expecting property name"),
        ({"about": np.array("[]")}, "its description has no format"),
        ({"about": np.array('{"format": 1}')}, "its description names no model"),
        (
            {"about": np.array('{"format": 1, "model": {}, "data": {}}')},
            "its description of the model is incomplete",
        ),
        ({"targets": None}, "it has no targets"),
    ],
)
def test_what_does_not_belong_together_is_one_line(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    index.write(tmp_path / "x.npz", some())
    held = {
        name: value for name, value in (arrays(tmp_path / "x.npz") | changes).items() if value is not None
    }
    np.savez(tmp_path / "y.npz", **held)
    with pytest.raises(DataError) as caught:
        index.read(tmp_path / "y.npz")
    assert str(caught.value).startswith(f"{tmp_path / 'y.npz'} is not a vitreous index: {message}")
    assert str(caught.value).endswith("; make one with `vitreous embed`") and "\n" not in str(caught.value)


def test_damaged_compressed_newer_and_missing_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with pytest.raises(DataError, match="no index at .*x.npz: make one with `vitreous embed CKPT DATA --out"):
        index.read(path)
    index.write(path, some())
    held, whole = arrays(path), path.read_bytes()
    for data in (b"", b"no zip", whole[: len(whole) // 2], whole.replace(b"\x00\x00\x80?", b"\x00\x00\x80@")):
        path.write_bytes(data)
        with pytest.raises(DataError, match="is not a vitreous index"):
            index.read(path)
    np.savez_compressed(path, **held)
    with pytest.raises(DataError, match="its arrays are compressed"):
        index.read(path)
    about = json.loads(str(held["about"])) | {"format": 2}
    np.savez(path, **held | {"about": np.array(json.dumps(about))})
    with pytest.raises(DataError, match="has format 2: this vitreous reads 1; install a newer one"):
        index.read(path)
