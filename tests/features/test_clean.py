"""`vitreous clean`: planted copies, outliers and wrong labels are found, and nothing is changed."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitreous
from tests.features.conftest import tiles
from vitreous import cli
from vitreous.config import CleanConfig
from vitreous.data import open_data
from vitreous.features import copies
from vitreous.features.clean import _outliers, table
from vitreous.features.copies import Pair
from vitreous.features.gather import Pictures, gather, load_model, open_any, unit


def test_copies_are_found_by_features_and_confirmed_by_pixels(headless: Path, photos: Path) -> None:
    found = vitreous.clean(headless, photos)
    names = [[each["file"] for each in group["files"]] for group in found.near_copies]
    assert names == [  # other labels first, then across splits
        ["train/china/04.png", "train/flower/relabelled.jpg"],
        ["train/china/01.png", "test/china/cropped.jpg"],
        ["train/china/02.png", "train/china/mirrored.png"],
        ["train/china/03.png", "train/china/exact.png"],
    ]
    assert [group["labels_differ"] for group in found.near_copies] == [True, False, False, False]
    assert [group["across_splits"] for group in found.near_copies] == [False, True, False, False]
    assert [group["exact"] for group in found.near_copies] == [False, False, False, True]
    assert all(group["likeness"] >= 0.985 for group in found.near_copies)


def test_pixels_decide_what_features_propose(
    headless: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = CleanConfig()
    pictures = gather(load_model(str(headless), options), open_any(str(photos), None), options)
    found = {(pictures.files[pair.first], pictures.files[pair.second]) for pair in copies.find(pictures)}
    assert len(found) == 4
    monkeypatch.setattr(copies, "LEAST_COSINE", -1.0)  # everything is proposed
    assert len(copies.find(pictures)) == 4
    monkeypatch.setattr(copies, "LEAST_COSINE", 2.0)  # nothing is: exact copies are known by their hash
    ((first, second, likeness),) = copies.find(pictures)
    assert likeness == 1.0 and pictures.files[first].endswith("03.png")
    assert pictures.files[second].endswith("exact.png")


def test_copies_of_copies_are_one_group() -> None:
    pairs = [Pair(3, 4, 1.0), Pair(1, 4, 1.0), Pair(0, 2, 1.0)]
    assert copies.groups(6, pairs).tolist() == [0, 1, 0, 1, 1, 5]


@pytest.fixture(scope="module")
def planted() -> tuple[dict[str, Any], set[str]]:
    """Some digits, of which twenty have another's label; and the names of these."""
    train = open_data("digits").splits["train"]
    generator = np.random.default_rng(0)
    rows = generator.permutation(len(train))[:400]
    pixels = np.stack([np.asarray(train.read(int(row), 1)) for row in rows])
    labels = train.targets[rows].copy()
    labels[:20] = (labels[:20] + generator.integers(1, 10, 20)) % 10
    data = {"train": [(image, int(label)) for image, label in zip(pixels, labels, strict=True)]}
    return data, {f"train#{number}" for number in range(20)}


def test_planted_labels_are_found(digits_file: Path, planted: tuple[dict[str, Any], set[str]]) -> None:
    data, wrong = planted
    found = vitreous.clean(digits_file, data)
    doubted = {each["file"] for each in found.wrong_labels}
    assert len(doubted & wrong) >= 17 and len(doubted - wrong) <= 3
    truth = open_data("digits").splits["train"].targets[np.random.default_rng(0).permutation(1258)[:400]]
    names = {each["file"]: each for each in found.wrong_labels}
    right = [name for name in doubted & wrong if names[name]["suggested"] == str(truth[int(name[6:])])]
    assert len(right) >= len(doubted & wrong) - 1
    clearest = found.wrong_labels[0]
    assert clearest["probability"] < clearest["suggested_probability"] <= 1
    assert found.count == 400 and found.labels_not_judged is None


def test_pictures_that_lie_apart_are_outliers() -> None:
    """A hundred pictures whose features are alike but for four, of which two are copies of each other."""
    dataset = open_data("digits")
    whole = dataset.splits["val"].select(np.arange(100))
    vectors = np.eye(16)[[1, 2, 3, 3] + [0] * 96] + 0.1 * np.random.default_rng(0).normal(size=(100, 16))
    pictures = Pictures(unit(vectors), np.arange(100), whole, replace(dataset, splits={"val": whole}), {})
    groups = np.array([0, 1, 2, 2, *range(4, 100)])
    limit, found = _outliers(pictures, groups)
    assert {each["file"] for each in found} == {whole.name(row) for row in range(4)}
    distances = [each["distance"] for each in found]
    assert limit is not None and distances == sorted(distances, reverse=True) and min(distances) > limit
    beside = {each["file"]: each["nearest"] for each in found}
    assert beside[whole.name(2)] != whole.name(3) and beside[whole.name(3)] != whole.name(
        2
    )  # a copy is no other
    assert found[0]["split"] == "val" and found[0]["label"] in dataset.labels


def test_the_seed_draws_other_parts(digits_file: Path, planted: tuple[dict[str, Any], set[str]]) -> None:
    data = planted[0]
    first, other = (vitreous.clean(digits_file, data, seed=seed).to_dict() for seed in (0, 1))
    assert first["wrong_labels"] != other["wrong_labels"]
    assert first["outliers"] == other["outliers"]


def test_layer_pooling_and_size_choose_the_features(headless: Path, photos: Path) -> None:
    plain = vitreous.clean(headless, photos).to_dict()
    for options in ({"layer": 0}, {"pooling": "gap"}, {"image_size": 48}):
        assert (
            vitreous.clean(headless, photos, **options).to_dict()["outlier_limit"] != plain["outlier_limit"]
        )


def test_what_has_no_single_labels_is_judged_by_its_pictures(
    headless: Path, digits_file: Path, photos: Path, pairs: Path, tmp_path: Path, capsys: Any
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(sorted(photos.rglob("*.*"))):
        shutil.copy(path, flat / f"{number:02d}{path.suffix}")
    found = vitreous.clean(headless, flat)
    assert len(found.near_copies) == 4 and found.wrong_labels == []
    assert found.labels_not_judged == "the pictures have none"
    assert "labels: not judged, the pictures have none" in capsys.readouterr().err
    several = vitreous.clean(digits_file, pairs)
    assert several.labels_not_judged == "a picture has several" and several.count == 900
    few = {"train": [(picture, number % 2) for number, picture in zip(range(8), tiles(), strict=False)]}
    small = vitreous.clean(headless, few)
    assert small.labels_not_judged == "two classes of 5 different pictures or more are needed"
    assert small.outlier_limit is None and small.outliers == []
    same = {"train": [(next(tiles()), number % 2) for number in range(24)]}
    assert vitreous.clean(headless, same).labels_not_judged is not None  # copies teach nothing


def test_everything_is_written_and_nothing_is_changed(
    headless: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = shutil.copytree(photos, tmp_path / "data")
    (root / "train" / "china" / "bad.png").write_bytes(b"")
    before = {path: path.read_bytes() for path in root.rglob("*.*")}
    words = ["clean", str(headless), str(root), "--out", str(tmp_path / "out")]
    assert cli.main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "out" / "clean.json").read_text())
    assert document["bad_files"] == {"train/china/bad.png": "the file is empty"}
    with (tmp_path / "out" / "suspicious.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["finding", "file", "split", "label", "suggested", "score", "beside"]
    assert rows == [[str(cell) for cell in row] for row in table(document)]
    assert [
        "exact copy",
        "train/china/exact.png",
        "train",
        "china",
        "",
        "1.000",
        "train/china/03.png",
    ] in rows
    page = (tmp_path / "out" / "report.html").read_text()
    assert len(set(re.findall(r'src="(data:[^"]+)"', page))) >= 7  # the exact copy looks as its first does
    assert page.count("<img ") >= 8 and "Copies" in page and "labelled china and flower" in page
    assert "in test and train" in page and "bad.png" in page
    assert f"vitreous clean {headless} {root} --out {tmp_path / 'out'}" in page
    assert {path: path.read_bytes() for path in root.rglob("*.*")} == before


def test_the_tables_show_so_many_of_each(
    headless: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["clean", str(headless), str(photos), "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("copies ")][0].split()[1] == "4"
    assert sum(line.startswith(("near copy", "exact copy")) for line in lines) == 2
    assert cli.main(["clean", str(headless), str(photos), "--top", "0"]) == 1
    assert "--top 0 is out of range: use 1 or more" in capsys.readouterr().err
