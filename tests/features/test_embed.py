"""`vitreous embed`: the model's own features, of length one, with what each picture is."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from tests.conftest import digits_files
from tests.features.conftest import padded
from vitreous import cli
from vitreous.data import open_data
from vitreous.errors import DataError, ModelError, OptionError
from vitreous.features import index


def encoded(clf: vitreous.Classifier, image: Image.Image, **place: object) -> np.ndarray:
    """One picture's features by the classifier's own way, of length one."""
    with torch.no_grad():
        found = clf.model.encode(*clf.collate([clf.prepare(image)]), **place)[0].numpy()
    return found / np.linalg.norm(found)


def test_features_are_the_models_own_with_file_label_and_split(digits_file: Path, tmp_path: Path) -> None:
    found = vitreous.embed(digits_file, "digits", out=tmp_path / "a" / "digits.npz")
    with np.load(tmp_path / "a" / "digits.npz", allow_pickle=False) as file:
        held = {name: file[name] for name in file.files}
    data, clf = open_data("digits"), vitreous.load(digits_file)
    assert (found.count, found.width, found.classes) == (1797, 32, 10)
    assert found.splits.to_dict() == {name: len(split) for name, split in data.splits.items()}
    assert held["features"].dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(held["features"], axis=1), 1, atol=1e-5)
    start = 0
    for name, split in data.splits.items():
        part = slice(start, start + len(split))
        assert set(held["splits"][part]) == {name}
        assert held["files"][part].tolist() == [split.name(row) for row in range(len(split))]
        assert held["labels"][part].tolist() == [data.labels[k] for k in split.targets]
        np.testing.assert_array_equal(held["targets"][part], split.targets)
        np.testing.assert_allclose(held["features"][start], encoded(clf, split.read(0, 1)), atol=1e-5)
        start += len(split)
    about = json.loads(str(held["about"]))
    assert about["model"]["labels"] == clf.labels and about["model"]["source"] == str(digits_file)
    assert about["model"]["preprocessing"]["mean"] == [0.3] and held["classes"].tolist() == data.labels
    assert about["model"]["checksum"] == found.checksum


def test_a_file_with_an_odd_name_is_one_line(
    digits_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digits_files(tmp_path / "flat", count=3)
    for name in (b"a\nb.png", b"caf\xe9.png"):
        (tmp_path / "flat" / os.fsdecode(name)).write_bytes(b"not a picture")
    words = ["embed", str(digits_file), str(tmp_path / "flat"), "--out", str(tmp_path / "x.npz")]
    assert cli.main(words) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if ".png" in line]
    assert len(warnings) == 2 and all(line.startswith("warning: ") for line in warnings)
    assert r"a\nb.png: " in warnings[0] and r"caf\xe9.png: " in warnings[1]
    found = [row["error"] for row in vitreous.search(tmp_path / "x.npz", [tmp_path / "flat" / "a\nb.png"])]
    assert len(found) == 1 and found[0]


@pytest.mark.parametrize(
    "options", [{"layer": 0}, {"pooling": "gap"}, {"pooling": "cls_gap"}], ids=lambda each: str(each)
)
def test_layer_and_pooling_choose_the_features(
    options: dict[str, object], digits_file: Path, tmp_path: Path
) -> None:
    paths = digits_files(tmp_path / "flat", count=3)
    vitreous.embed(digits_file, tmp_path / "flat", out=tmp_path / "x.npz", **options)
    kept, clf = index.read(tmp_path / "x.npz"), vitreous.load(digits_file)
    image = Image.open(paths[2])
    np.testing.assert_allclose(kept.features[2], encoded(clf, image, **options), atol=1e-5)
    assert not np.allclose(kept.features[2][:32], encoded(clf, image), atol=1e-3)


def test_the_image_size_is_what_the_model_sees(headless: Path, photos: Path, tmp_path: Path) -> None:
    picture = photos / "train" / "flower" / "20.png"
    vitreous.embed(headless, picture, out=tmp_path / "x.npz", image_size=(48, 64))
    kept, clf = index.read(tmp_path / "x.npz"), vitreous.load(headless, image_size=(48, 64))
    np.testing.assert_allclose(kept.features[0], encoded(clf, Image.open(picture)), atol=1e-5)
    assert kept.about["model"]["preprocessing"]["image_size"] == [48, 64]


def test_a_flat_folder_and_an_image_have_no_labels(digits_file: Path, tmp_path: Path) -> None:
    paths = digits_files(tmp_path / "flat", count=3)
    found = vitreous.embed(digits_file, tmp_path / "flat", out=tmp_path / "x.npz")
    kept = index.read(tmp_path / "x.npz")
    assert kept.files.tolist() == [path.name for path in paths] and kept.labels.tolist() == [""] * 3
    assert kept.targets.tolist() == [-1] * 3 and not len(kept.classes) and found.classes == 0
    vitreous.embed(digits_file, paths[1], out=tmp_path / "y.npz")
    one = index.read(tmp_path / "y.npz")
    assert one.files.tolist() == [paths[1].name]
    np.testing.assert_allclose(one.features[0], kept.features[1], atol=1e-6)


def test_padding_counts_nowhere(headless: Path, tmp_path: Path) -> None:
    """Of a wide picture, half of what the model sees is padding: with the mask it changes nothing."""
    wide = Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 32, 3), np.uint8))
    wide.save(tmp_path / "wide.png")
    vitreous.embed(headless, tmp_path / "wide.png", out=tmp_path / "x.npz")
    clf = vitreous.load(headless)
    prepared = clf.prepare(wide)
    assert prepared.mask is not None and not prepared.mask.all()
    found = index.read(tmp_path / "x.npz").features[0]
    np.testing.assert_allclose(found, encoded(clf, wide), atol=1e-5)
    with torch.no_grad():
        blind = clf.model.encode(clf.collate([prepared]).images)[0].numpy()
    assert not np.allclose(found, blind / np.linalg.norm(blind), atol=1e-3)


def test_broken_pictures_are_named_left_out_and_counted(
    headless: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = shutil.copytree(photos, tmp_path / "data")
    (root / "train" / "china" / "02.png").write_bytes(b"no picture")
    (root / "test" / "china" / "cropped.jpg").write_bytes(b"")  # all of its split
    before = {path: path.read_bytes() for path in root.rglob("*.*")}
    assert cli.main(["embed", str(headless), str(root), "--out", str(tmp_path / "x.npz")]) == 0
    out, err = capsys.readouterr()
    assert "02.png: not a readable image" in err and "cropped.jpg: the file is empty" in err
    assert "2 files could not be read and were left out" in err
    assert [line.split() for line in out.splitlines()][2][-1] == "2" and "unreadable files" in out
    kept = index.read(tmp_path / "x.npz")
    assert "train/china/02.png" not in kept.files and "train/china/03.png" in kept.files
    assert {path: path.read_bytes() for path in root.rglob("*.*")} == before
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match="none of the 1 images could be read"):
        vitreous.embed(headless, tmp_path / "bad", out=tmp_path / "y.npz")
    assert not (tmp_path / "y.npz").exists()


def test_several_labels_stand_side_by_side(digits_file: Path, pairs: Path, tmp_path: Path) -> None:
    vitreous.embed(digits_file, pairs, out=tmp_path / "x.npz")
    kept = index.read(tmp_path / "x.npz")
    with np.load(pairs) as file:
        truth = np.concatenate([file["y_train"], file["y_test"]]).astype(bool)
    np.testing.assert_array_equal(kept.targets, truth)
    assert kept.labels[0] == "|".join(str(k) for k in np.flatnonzero(truth[0]))


def test_features_that_are_not_numbers_are_refused(tmp_path: Path, photos: Path) -> None:
    clf = padded()
    with torch.no_grad():
        clf.model.norm.weight.fill_(float("nan"))
    broken = clf.save(tmp_path / "nan.safetensors")
    with pytest.raises(ModelError, match="the features of .* images are not numbers"):
        vitreous.embed(broken, photos, out=tmp_path / "x.npz")


def test_a_file_of_another_kind_is_refused_before_the_work(headless: Path, tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"--out .*x\.txt is not an \.npz file: give a name that ends in \.npz"
    ):
        vitreous.embed(headless, "no-data", out=tmp_path / "x.txt")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(IsADirectoryError):
        vitreous.embed(headless, "no-data", out=tmp_path / "folder.npz")


def test_data_that_is_not_there_is_one_line(headless: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["embed", str(headless), "no/data"]) == 1
    assert capsys.readouterr().err.startswith(
        "error: no data at 'no/data': give a folder or file that exists"
    )


def test_features_of_other_data_are_not_replaced(digits_file: Path, tmp_path: Path) -> None:
    out, pixels = tmp_path / "x.npz", np.zeros((2, 8, 8, 1), np.uint8)
    for name in ("one", "two"):
        np.savez(tmp_path / f"{name}.npz", x_train=pixels, y_train=np.arange(2))
    for _ in range(2):  # the same data again is written anew
        vitreous.embed(digits_file, tmp_path / "one.npz", out=str(out))
    before = out.read_bytes()
    with pytest.raises(OptionError, match="x.npz holds the features of .*one.npz: choose another --out"):
        vitreous.embed(digits_file, tmp_path / "two.npz", out=str(out))
    assert out.read_bytes() == before
    with pytest.raises(OptionError, match="one.npz holds something other than features"):
        vitreous.embed(digits_file, "digits", out=str(tmp_path / "one.npz"))
