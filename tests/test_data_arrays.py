"""DATA as arrays: .npz and idx files, of any kind of number; pickles are never run."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data_images import own_cache, picture
from tests.data_sources import idx, make_idx
from vitreous.config import Preprocessing
from vitreous.data import make_loader, open_data
from vitreous.data.sources.arrays import pixels, read_idx
from vitreous.errors import DataError

__all__ = ["own_cache"]


@pytest.mark.parametrize(
    "keys",
    [
        ("images", "labels", None, None),
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ],
)
def test_npz(tmp_path: Path, keys: tuple[str, str, str | None, str | None]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 5, 3), np.uint8)
    arrays = {keys[0]: images, keys[1]: np.arange(20) % 4}
    if keys[2] and keys[3]:
        arrays |= {keys[2]: images[:5], keys[3]: np.arange(5)[:, None] % 4}
    np.savez(tmp_path / "x.npz", **arrays)  # pyright: ignore[reportArgumentType]
    data = open_data(tmp_path / "x.npz", carve=False)
    assert data.labels == ["0", "1", "2", "3"]
    assert np.array_equal(np.asarray(data.splits["train"].read(7)), images[7])
    assert list(data.splits) == (["train", "test"] if keys[2] else ["train"])


def test_what_idx_files_hold_is_read_without_a_warning(tmp_path: Path) -> None:
    """Their pixels lie in memory that can't be written to, of which torch warns."""
    make_idx(tmp_path)
    split = open_data(tmp_path).splits["test"]
    torch.set_warn_always(True)
    try:
        loader = make_loader(split, preprocessing=Preprocessing(image_size=(28, 28), mean=(0.5,), std=(0.5,)))
        assert len(next(iter(loader.epoch(0))).images)
    finally:
        torch.set_warn_always(False)


def test_npz_with_names_and_several_labels(tmp_path: Path) -> None:
    targets = np.array([[1, 0], [1, 1], [0, 0]])
    np.savez(tmp_path / "x.npz", images=np.zeros((3, 4, 4), np.uint8), labels=targets, class_names=["a", "b"])
    data = open_data(tmp_path / "x.npz", carve=False)
    assert data.multilabel and data.labels == ["a", "b"]
    assert np.array_equal(data.splits["train"].targets, targets.astype(bool))


def test_arrays_of_every_kind_become_bytes_or_are_refused() -> None:
    assert pixels(np.full((2, 3, 8, 8), 7, np.uint8), "x").shape == (2, 8, 8, 3)
    assert pixels(np.ones((2, 8, 8), bool), "x").max() == 255
    assert pixels(np.full((2, 8, 8), 65535, np.uint16), "x").max() == 255
    assert pixels(np.full((2, 8, 8, 1), 0.5, np.float32), "x").max() == 128
    assert pixels(np.full((2, 8, 8, 13), 200, np.int64), "x").shape[-1] == 13
    for array, message in (
        (np.full((2, 8, 8), -1.0), "from -1"),
        (np.full((2, 8, 8), 300, np.int32), "300"),
        (np.zeros((2, 8), np.uint8), "shape"),
    ):
        with pytest.raises(DataError, match=message):
            pixels(array, "x")


def test_npz_never_runs_pickles(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "trapped"),))

    np.savez(tmp_path / "x.npz", images=np.array([Trap()], object), labels=np.zeros(1, np.int64))
    with pytest.raises(DataError):
        open_data(tmp_path / "x.npz")
    assert not (tmp_path / "trapped").exists()


def test_npz_faults_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", weights=np.zeros(3))
    with pytest.raises(DataError, match="holds weights; expected images and labels"):
        open_data(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", images=np.zeros((3, 4, 4), np.uint8), labels=np.zeros(2, np.int64))
    with pytest.raises(DataError, match="3 train images but 2 labels"):
        open_data(tmp_path / "x.npz")
    (tmp_path / "y.npz").write_bytes(b"PK\x03\x04broken")
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        open_data(tmp_path / "y.npz")


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files(tmp_path: Path, packed: bool) -> None:
    images = make_idx(tmp_path, packed=packed)
    data = open_data(tmp_path, carve=False)
    assert np.array_equal(np.asarray(data.splits["test"].read(3, channels=1)), images[23])
    assert data.splits["train"].targets.tolist() == [i % 10 for i in range(20)]


def test_idx_files_that_lie_are_refused(tmp_path: Path) -> None:
    whole = idx(np.zeros((3, 4, 4), np.uint8))
    for data in (
        whole[:-1],
        whole + b"x",
        b"\0\0\x0d\x01" + bytes(8),
        b"",
        bytes([0, 0, 8, 3]) + b"\xff" * 12,
    ):
        (tmp_path / "f").write_bytes(data)
        with pytest.raises(DataError, match=r"idx|truncated|limit"):
            read_idx(tmp_path / "f")


def test_an_image_kind_that_a_store_cannot_show() -> None:
    from vitreous.data.images import ArrayImages

    store = ArrayImages(np.zeros((2, 4, 4, 13), np.uint8), "x")
    with pytest.raises(DataError, match="13 channels"):
        store.read(0)
    with pytest.raises(DataError, match="set the model's channels to 13"):
        store.array(3)
    assert store.array(13).shape == (2, 4, 4, 13)
    color = ArrayImages(np.asarray(picture())[None], "x")
    assert np.array_equal(color.array(1)[0, ..., 0], np.asarray(picture().convert("L")))
    assert isinstance(color.read(0), Image.Image)
