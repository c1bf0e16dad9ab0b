"""DATA as folders of class folders: with splits and without, nested, or refused with the reason."""

from pathlib import Path

import pytest

from tests.data_images import encoded, make_folder, own_cache, picture
from tests.data_sources import CLASSES, expected, seen
from vitreous.data import open_data
from vitreous.errors import DataError

__all__ = ["own_cache"]


def test_folder_without_splits(tmp_path: Path) -> None:
    data = open_data(make_folder(tmp_path, CLASSES), carve=False)
    assert data.labels == ["cat", "dog", "emu"] and not data.multilabel
    assert seen(data) == {"train": expected(CLASSES)}
    assert data.splits["train"].name(0) == "cat/000.png"


@pytest.mark.parametrize("validation", ["val", "valid", "validation", "Validation"])
def test_folder_with_splits(tmp_path: Path, validation: str) -> None:
    make_folder(tmp_path / "train", CLASSES)
    make_folder(tmp_path / validation, CLASSES, first=100)
    make_folder(tmp_path / "test", {"dog": 2}, first=200)
    data = open_data(tmp_path)
    assert seen(data) == {
        "train": expected(CLASSES),
        "val": expected(CLASSES, 100),
        "test": expected({"dog": 2}, 200),
    }
    assert data.carved == ()


def test_nested_classes_mixed_case_endings_and_other_files(tmp_path: Path) -> None:
    for number, name in enumerate(["birds/emu/A.PNG", "birds/kiwi/b.Jpg", "cats/c.jpeg", "cats/d.TIFF"]):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(number)))  # the content decides, not the ending
    (tmp_path / "cats" / "notes.txt").write_text("not an image")
    (tmp_path / "cats" / ".hidden.png").write_bytes(b"x")
    (tmp_path / ".git" / "x").mkdir(parents=True)
    data = open_data(tmp_path, carve=False)
    assert data.labels == ["birds/emu", "birds/kiwi", "cats"]
    assert len(data.splits["train"]) == 4


def test_a_class_may_be_called_test(tmp_path: Path) -> None:
    data = open_data(make_folder(tmp_path, {"test": 3, "control": 3}), carve=False)
    assert data.labels == ["control", "test"] and list(data.splits) == ["train"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no images found"),
        (["a.png"], "outside a class folder"),
        (["only/a.png", "only/b.png"], "one class"),
        (["val/a/1.png", "valid/a/1.png", "train/a/1.png", "train/b/1.png"], "two folders are the val split"),
    ],
)
def test_folders_that_are_no_data(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(encoded(picture()))
    with pytest.raises(DataError, match=message):
        open_data(tmp_path)
