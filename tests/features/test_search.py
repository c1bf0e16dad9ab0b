"""`vitreous search`: scikit-learn's neighbours, by the very model that made the index, and by no other."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.neighbors import NearestNeighbors

import vitreous
from tests.conftest import digits_files
from tests.features.conftest import padded
from vitreous import cli
from vitreous.data import open_data
from vitreous.errors import CheckpointError, OptionError
from vitreous.features import index


@pytest.fixture(scope="module")
def indexed(photos: Path, headless: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    vitreous.embed(headless, photos, out=folder / "photos.npz", cache=folder / "cache")
    return folder / "photos.npz"


def test_the_nearest_are_scikit_learns(digits_file: Path, tmp_path: Path) -> None:
    vitreous.embed(digits_file, {"train": _part("train", 400)}, out=tmp_path / "bank.npz")
    paths = digits_files(tmp_path / "asked", "val", count=20)
    vitreous.embed(digits_file, tmp_path / "asked", out=tmp_path / "asked.npz")
    bank, asked = index.read(tmp_path / "bank.npz"), index.read(tmp_path / "asked.npz")
    oracle = NearestNeighbors(n_neighbors=7, metric="cosine").fit(bank.features)
    distance, place = oracle.kneighbors(asked.features)
    found = vitreous.search(tmp_path / "bank.npz", paths, top=7, batch_size=6)
    assert [entry["file"] for entry in found] == list(map(str, paths))
    for row, entry in enumerate(found):
        similarity = [match["similarity"] for match in entry["matches"]]
        np.testing.assert_allclose(similarity, 1 - distance[row], atol=1e-5)
        assert {match["file"] for match in entry["matches"]} == set(bank.files[place[row]])
        first = entry["matches"][0]
        assert first["label"] == str(bank.labels[bank.files == first["file"]][0])
        assert first["split"] == "train" and first["same"] is False
    right = sum(entry["matches"][0]["label"] == Path(entry["file"]).stem[-1] for entry in found)
    assert right >= 17  # the model reads digits


def _part(split: str, count: int) -> list[tuple[Image.Image, int]]:
    part = open_data("digits").splits[split]
    return [(part.read(row, 1), int(part.targets[row])) for row in range(count)]


def test_the_query_itself_is_said_to_be_it_or_left_out(indexed: Path, photos: Path) -> None:
    query = photos / "train" / "china" / "03.png"
    (entry,) = vitreous.search(indexed, query, top=3)
    same = [match for match in entry["matches"] if match["same"]]
    assert [match["file"] for match in same] == ["train/china/03.png", "train/china/exact.png"]
    assert entry["matches"][:2] == same and same[0]["similarity"] == pytest.approx(1, abs=1e-5)
    (others,) = vitreous.search(indexed, query, top=3, others=True)
    assert len(others["matches"]) == 3 and not any(match["same"] for match in others["matches"])
    assert others["matches"][0] == entry["matches"][2]
    (mirrored,) = vitreous.search(indexed, photos / "train" / "china" / "mirrored.png", others=True)
    assert mirrored["matches"][0]["file"] == "train/china/02.png"  # a near copy is another picture


def test_arrays_are_the_same_pixel_for_pixel(digits_file: Path, tmp_path: Path) -> None:
    vitreous.embed(digits_file, "digits", out=tmp_path / "x.npz")
    (path,) = digits_files(tmp_path / "asked", "test", count=1)
    name = open_data("digits").splits["test"].name(0)
    (entry,) = vitreous.search(tmp_path / "x.npz", path)
    assert (entry["matches"][0]["file"], entry["matches"][0]["same"]) == (name, True)
    pixels = np.asarray(Image.open(path))
    by_kind = vitreous.search(tmp_path / "x.npz", [Image.open(path), pixels, path.read_bytes()], others=True)
    assert all(match["file"] != name for each in by_kind for match in each["matches"])
    assert [each["file"] for each in by_kind] == ["", "", ""]


def test_another_model_is_refused_in_one_line(
    indexed: Path, photos: Path, headless: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = photos / "train" / "china" / "03.png"
    bank = index.read(indexed)
    gone = tmp_path / "gone.safetensors"
    shutil.copy(headless, gone)
    vitreous.embed(gone, photos, out=tmp_path / "x.npz")
    assert index.read(tmp_path / "x.npz").about["model"]["checksum"] == bank.about["model"]["checksum"]
    gone.unlink()
    with pytest.raises(CheckpointError) as caught:
        vitreous.search(tmp_path / "x.npz", query)
    assert str(caught.value) == (
        f"{tmp_path / 'x.npz'} was made with {gone}, which is no longer there: name the model with "
        "--checkpoint CKPT"
    )
    assert vitreous.search(tmp_path / "x.npz", query, checkpoint=headless) == vitreous.search(indexed, query)
    other = padded()
    other.model.norm.bias.data += 0.1
    other.save(gone)
    words = ["search", str(tmp_path / "x.npz"), str(query)]
    assert cli.main(words) == 1 and cli.main([*words, "--checkpoint", str(gone)]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == second and first.startswith(f"error: {gone} is not the model that made {tmp_path}")
    assert first.endswith("name that model with --checkpoint CKPT, or embed the data again")


def test_a_new_head_or_calibration_changes_no_features(indexed: Path, photos: Path, tmp_path: Path) -> None:
    clf = padded(classes=3)
    clf.about = {"calibration": {"temperature": 2.0}}
    assert vitreous.search(
        indexed, photos / "test", checkpoint=clf.save(tmp_path / "classes.safetensors")
    ) == vitreous.search(indexed, photos / "test")


def test_layer_pooling_and_size_are_those_of_the_index(headless: Path, photos: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"layer": 0, "pooling": "gap", "image_size": 48}
    vitreous.embed(headless, photos, out=tmp_path / "x.npz", **options)
    (entry,) = vitreous.search(tmp_path / "x.npz", photos / "test" / "china" / "cropped.jpg")
    assert entry["matches"][0]["same"] and entry["matches"][0]["similarity"] == pytest.approx(1, abs=1e-5)


def test_json_is_a_list_and_a_bad_file_costs_itself(
    indexed: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.png").write_bytes(b"")
    query = photos / "train" / "flower" / "20.png"
    assert (
        cli.main(["search", str(indexed), str(tmp_path / "bad.png"), str(query), "--json", "--top", "2"]) == 0
    )
    bad, good = json.loads(capsys.readouterr().out)
    assert bad == {"file": str(tmp_path / "bad.png"), "error": "the file is empty"}
    assert good["file"] == str(query) and len(good["matches"]) == 2
    assert set(good["matches"][0]) == {"file", "label", "split", "similarity", "same"}
    assert cli.main(["search", str(indexed), str(tmp_path / "bad.png")]) == 1
    out, err = capsys.readouterr()
    assert "error: the file is empty" in out and err.startswith("error: none of the 1 queries could be read")
    assert cli.main(["search", str(indexed)]) == 2
    assert cli.main(["search", str(indexed), str(query), "--top", "0"]) == 1
    assert "--top 0 is out of range: use 1 or more" in capsys.readouterr().err


def test_the_table_says_what_is_the_same(
    indexed: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["search", str(indexed), str(photos / "train" / "flower" / "20.png"), "--top", "2"]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["query", "match", "label", "split", "similarity"]
    assert first.endswith("train/flower/20.png  flower  train  1.000 (the same picture)")
    assert second.split()[-2] == "train"


def test_the_page_shows_the_pictures(indexed: Path, photos: Path, tmp_path: Path) -> None:
    query = photos / "test" / "china" / "cropped.jpg"
    found = vitreous.search(indexed, [query, "missing.jpg"], top=2, out=tmp_path / "page")
    assert found.report == tmp_path / "page" / "report.html" and found.folder == tmp_path / "page"
    page = found.report.read_text()
    drawn = re.findall(r'src="(data:[^"]+)"', page)
    assert len(drawn) == 3 and drawn[0] == drawn[1] != drawn[2]  # the query, itself in the index, another
    assert page.count("<img ") == 3 and "the query" in page and "(the same picture)" in page
    assert f"vitreous search {indexed} {query} missing.jpg --top 2 --out" in page
    assert "No such file or directory" in page
    assert json.loads((tmp_path / "page" / "search.json").read_text()) == found
    assert "cropped.jpg" in found._repr_html_()


def test_a_page_of_data_that_has_moved_keeps_its_words(
    headless: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = shutil.copytree(photos, tmp_path / "moved")
    vitreous.embed(headless, moved, out=tmp_path / "x.npz")
    shutil.rmtree(moved)
    found = vitreous.search(tmp_path / "x.npz", photos / "test", out=tmp_path / "page")
    assert found.report is not None and "train/china/01.png" in found.report.read_text()
    assert "pictures of the index left out: no data at" in capsys.readouterr().err


def test_top_is_refused_before_anything_is_read() -> None:
    with pytest.raises(OptionError, match="--top 0"):
        vitreous.search("no-index", "no-file", top=0)
