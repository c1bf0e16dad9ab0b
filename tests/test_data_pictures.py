"""What a picture is, the same for training and prediction; what else lies in a folder is counted."""

import importlib.util
import os
from pathlib import Path

import pytest

from tests.data_images import encoded, make_folder, own_cache, picture
from vitreous.data import heif, open_data, pictures
from vitreous.data.decode import decode
from vitreous.data.pictures import LeftOut
from vitreous.data.survey import survey
from vitreous.errors import DataError
from vitreous.predict.inputs import find

__all__ = ["own_cache"]


@pytest.fixture
def littered(tmp_path: Path) -> Path:
    """Six pictures of two classes, and one of everything that is no picture of a class."""
    root = make_folder(tmp_path / "pictures", {"cat": 3, "dog": 3})
    image = encoded(picture(70))
    for name in (
        "cat/._000.png",
        "cat/.hidden.png",
        "cat/002.png.bak",
        "dog/photo",
        "dog/a.png~",
        "loose.png",
    ):
        (root / name).write_bytes(image)
    (root / "emu").mkdir()
    (root / "gnu" / "nested" / "deep").mkdir(parents=True)
    make_folder(root / ".git", {"x": 1}, first=90)
    (root / "dog" / "around").symlink_to(root, target_is_directory=True)
    make_folder(tmp_path / "elsewhere", {"": 2}, first=80)
    (root / "fox").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    return root


def test_everything_that_is_left_out_is_counted_by_reason(littered: Path) -> None:
    data = open_data(littered, carve=False)
    assert data.labels == ["cat", "dog", "fox"] and len(data.splits["train"]) == 8  # a linked class is one
    assert {row.reason: (row.count, row.example) for row in data.left_out} == {
        "side files of macOS (._x)": (1, "cat/._000.png"),
        "hidden files": (1, "cat/.hidden.png"),
        "hidden folders": (1, ".git"),
        "files ending in .bak": (1, "cat/002.png.bak"),
        "files without an ending": (1, "dog/photo"),
        "files with other endings": (1, "dog/a.png~"),
        "pictures outside class folders": (1, "loose.png"),
        "folders without pictures": (2, "emu"),
        "links to a folder that they lie in": (1, "dog/around"),
    }
    line = pictures.said(data.left_out)
    assert line is not None and line.startswith("left out: folders without pictures: 2 (emu); ")
    assert line.endswith("; for other reasons: 3 (`vitreous check` lists them)") and "\n" not in line


def test_prediction_and_training_agree_on_what_a_picture_is(littered: Path) -> None:
    split = open_data(littered, carve=False).splits["train"]
    trained = {str(littered / split.name(index)) for index in range(len(split))}
    predicted = [item.file for item in find([str(littered)])]
    assert len(predicted) == len(set(predicted)) and set(predicted) == {*trained, str(littered / "loose.png")}


def test_what_lies_beside_split_folders_is_counted(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"a": 2, "b": 2})
    make_folder(tmp_path / "extra", {"a": 3}, first=50)
    (tmp_path / "val").mkdir()
    (tmp_path / "cover.png").write_bytes(encoded(picture(60)))
    (tmp_path / "README.md").write_text("about")
    (tmp_path / ".cache").mkdir()
    data = open_data(tmp_path, carve=False)
    assert list(data.splits) == ["train"]
    assert set(data.left_out) == {
        LeftOut("pictures outside the split folders", 4, "cover.png"),
        LeftOut("files ending in .md", 1, "README.md"),
        LeftOut("folders without pictures", 1, "val"),
        LeftOut("hidden folders", 1, ".cache"),
    }


def test_a_folder_that_cannot_be_opened_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folder(tmp_path, {"a": 1, "b": 1, "c": 1})
    scandir = os.scandir

    def refuse(path: str):
        if str(path).endswith("c"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert open_data(root, carve=False).left_out == (LeftOut("folders that can't be opened", 1, "c"),)


def test_a_link_that_leads_to_itself_is_counted(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pictures", {"a": 3, "b": 3})
    for name in ("a/circle", "b/circle.png", "circle"):
        (root / name).symlink_to(Path(name).name)
    data = open_data(root, carve=False)
    assert data.left_out == (LeftOut("links that can't be followed", 3, "circle"),)
    assert tuple(survey(data).left_out) == data.left_out and len(data.splits["train"]) == 6
    tally = pictures.Tally()
    assert len(list(find([str(root)], tally=tally))) == 6
    assert [(row.reason, row.count) for row in tally.found()] == [("links that can't be followed", 3)]
    (tmp_path / "split").mkdir()
    (tmp_path / "split" / "train").symlink_to(root)
    (tmp_path / "split" / "circle").symlink_to("circle")
    assert len(open_data(tmp_path / "split", carve=False).splits["train"]) == 6


def test_nothing_left_out_is_nothing_said(tmp_path: Path) -> None:
    data = open_data(make_folder(tmp_path, {"a": 1, "b": 1}), carve=False)
    assert data.left_out == () and pictures.said(data.left_out) is None


def test_an_error_tells_what_was_passed_over(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.mov").write_bytes(b"film")
    with pytest.raises(DataError, match=r"no images found .*; left out: .*files ending in \.mov: 1 \(cat"):
        open_data(tmp_path)


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


def test_heic_without_its_reader_is_counted_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heif, "is_installed", lambda: False)
    monkeypatch.setattr(pictures, "SUFFIXES", pictures.SUFFIXES - heif.ENDINGS)
    root = make_folder(tmp_path, {"a": 2, "b": 2})
    (root / "a" / "IMG_1.HEIC").write_bytes(HEIC)
    (row,) = open_data(root, carve=False).left_out
    assert (row.count, row.example) == (1, "a/IMG_1.HEIC") and "pip install pillow-heif" in row.reason
    with pytest.raises(DataError, match=r"IMG_1\.HEIC: HEIC can't be read here: pip install pillow-heif"):
        decode(root / "a" / "IMG_1.HEIC")


def test_avif_is_not_taken_for_heic() -> None:
    assert heif.is_heif(HEIC)
    assert not heif.is_heif(b"\0\0\0\x20ftypmif1\0\0\0\0mif1avifmiafMA1B")
    assert not heif.is_heif(b"\0\0\0\x20ftypavif\0\0\0\0mif1avif") and not heif.is_heif(b"\xff\xd8\xff\xe0")


@pytest.mark.skipif(importlib.util.find_spec("pillow_heif") is None, reason="pillow-heif is not installed")
def test_heic_is_read_upright_where_its_reader_is_installed(tmp_path: Path) -> None:
    heif.register()
    from PIL import Image

    whole, turned = picture(5, (64, 48)), Image.Exif()
    turned[0x0112] = 6
    root = make_folder(tmp_path, {"a": 2, "b": 2})
    whole.save(root / "a" / "flat.heic", quality=95)
    whole.save(root / "a" / "turned.HEIC", quality=95, exif=turned.tobytes())
    data = open_data(root, carve=False)
    names = [data.splits["train"].name(i) for i in range(len(data.splits["train"]))]
    assert data.left_out == () and {"a/flat.heic", "a/turned.HEIC"} <= set(names)
    assert decode(root / "a" / "flat.heic").size == (64, 48)
    assert decode(root / "a" / "turned.HEIC").size == (48, 64)
    with pytest.raises(DataError, match=r"broken\.heic: not a readable image"):
        decode((root / "a" / "flat.heic").read_bytes()[:60], name="broken.heic")
