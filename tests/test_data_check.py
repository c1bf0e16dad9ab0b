"""`vitreous check` finds one of every fault, changes nothing, and packs."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data_images import encoded, make_folder, own_cache, picture
from vitreous import cli
from vitreous.data import check, open_data, require_readable
from vitreous.data.survey import survey
from vitreous.errors import DataError

__all__ = ["own_cache"]


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """A folder with one of every fault among 240 good images."""
    root = tmp_path / "data"
    make_folder(root / "train", {"many": 150, "some": 40, "few": 3}, format="jpg")
    make_folder(root / "val", {"many": 20, "some": 20, "few": 10}, format="jpg", first=500)
    train = root / "train"
    (train / "many" / "truncated.jpg").write_bytes(encoded(picture(900, (300, 200)), "JPEG")[:1500])
    (train / "many" / "twin.jpg").write_bytes((train / "many" / "000.jpg").read_bytes())
    (train / "some" / "other-label.jpg").write_bytes((train / "many" / "001.jpg").read_bytes())
    (root / "val" / "many" / "leak.jpg").write_bytes((train / "many" / "002.jpg").read_bytes())
    (train / "some" / "wide.png").write_bytes(encoded(picture(901, (400, 40))))
    (train / "some" / "gray.png").write_bytes(encoded(picture(902, mode="L")))
    (train / "some" / "large.png").write_bytes(encoded(Image.new("1", (6000, 5000))))
    return root


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(root.rglob("*")) if p.is_file()}


def test_finds_one_of_every_fault_and_changes_nothing(faulty: Path) -> None:
    before = contents(faulty)
    report = survey(open_data(faulty, carve=False))
    assert contents(faulty) == before
    assert [(bad.split, bad.file) for bad in report.unreadable] == [("train", "train/many/truncated.jpg")]
    assert "truncated" in report.unreadable[0].reason and "many" not in report.unreadable[0].reason
    assert report.duplicates == [
        ["train/many/000.jpg", "train/many/twin.jpg"],
        ["train/many/001.jpg", "train/some/other-label.jpg"],
    ]
    assert report.conflicts == [["train/many/001.jpg", "train/some/other-label.jpg"]]
    assert report.leaks == [["train/many/002.jpg", "val/many/leak.jpg"]]
    assert report.near_empty == ["few"]
    assert report.imbalance == pytest.approx(151 / 3)
    assert report.per_class["many"] == {"train": 151, "val": 21}
    assert report.over_large == ["train/some/large.png (6000x5000)"]
    assert report.aspects["2 and more"] == 1 and report.formats == {"JPEG": 246, "PNG": 3}
    assert report.modes["L"] == 1 and report.short_sides["4096 and more"] == 1
    assert report.blocker is None


def test_the_verb_prints_tables_and_a_picture(
    faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", str(faulty), "--grid", str(tmp_path / "grid.png")]) == 0
    out, err = capsys.readouterr()
    assert "unreadable files" in out and "truncated.jpg" in out and "duplicates across splits" in out
    assert "--balance sampler" in out and "few" in out
    assert "truncated.jpg" in err
    with Image.open(tmp_path / "grid.png") as grid:
        colours = np.asarray(grid.convert("RGB"))[:96, 160:256]
    assert len(np.unique(colours.reshape(-1, 3), axis=0)) > 50  # there are pictures in it


def test_what_can_not_be_written_is_found_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.tar").touch()
    for words, said in (
        (["--grid", "grid.txt"], "--grid grid.txt is not the name of a picture"),
        (["--grid", str(tmp_path / "none" / "grid.png")], "there is no folder"),
        (["--pack", str(tmp_path / "full")], "is not empty: name a new folder"),
        (["--pack", str(tmp_path / "full" / "a.tar")], "is not empty: name a new folder"),
    ):
        assert cli.main(["check", "digits", *words]) == 1
        out, err = capsys.readouterr()
        assert said in err and len(err.splitlines()) == 1 and not out


def test_no_picture_is_overwritten(faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = next((faulty / "train").rglob("*.jpg"))
    before = picture.read_bytes()
    assert cli.main(["check", str(faulty), "--grid", str(picture)]) == 1
    out, err = capsys.readouterr()
    assert err == f"error: {picture} exists: choose another name, or remove it first\n" and not out
    assert picture.read_bytes() == before


def test_every_option_that_is_advised_exists(
    faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Advice, in the tables and on the page, is understood by the command line: it misses the data alone."""
    advice = [text for _, _, text in check.summary(survey(open_data(faulty, carve=False)))]
    advice += [line for line in Path("docs/check.md").read_text().splitlines() if line.startswith("| ")]
    named = [words for text in advice for words in re.findall(r"--[a-z-]+(?: [a-z]+)?", text)]
    assert named.count("--balance sampler") == 2  # in the table and on the page
    assert "--fit pad" in named
    for words in named:
        assert cli.main(["train", str(tmp_path / "nowhere"), *words.split()]) == 1, words
        assert "no data at" in capsys.readouterr().err


def test_left_out_files_are_counted_and_the_held_out_part_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folder(tmp_path / "data", {"x": 30, "y": 30})
    (root / "x" / "001.png.bak").write_bytes(b"x")
    (root / "z").mkdir()
    (root / "beside.png").write_bytes(encoded(picture(99)))
    assert cli.main(["check", str(root)]) == 0
    out, err = capsys.readouterr()
    rows = {re.split(r" {2,}", line)[0]: line.split()[-2:] for line in out.splitlines()}
    assert rows["left out: files ending in .bak"] == ["1", "x/001.png.bak"]
    assert rows["left out: folders without pictures"] == ["1", "z"]
    assert rows["left out: pictures outside class folders"] == ["1", "beside.png"]
    parts = {name: len(split) for name, split in open_data(root).splits.items()}
    held = f"hold out {parts['val']} for val and {parts['test']} for test"
    assert held in err and f"learn from {parts['train']}" in err
    assert cli.main(["check", str(root), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["training"] == parts and document["held_out"] == ["val", "test"]
    assert document["images"] == {"train": 60}  # what the source has
    assert {"reason": "files ending in .bak", "count": 1, "example": "x/001.png.bak"} in document["left_out"]


def test_nothing_is_held_out_where_the_source_has_its_splits(faulty: Path) -> None:
    report = survey(open_data(faulty, carve=False))
    assert report.held_out == [] and report.training == report.images and report.left_out == []


def test_near_copies_across_splits_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Encoded anew, resized, stretched: copies all the same. Exact ones are counted elsewhere."""
    root = make_folder(tmp_path, {"train/x": 20, "train/y": 20}, format="jpg")
    make_folder(root / "test", {"x": 10, "y": 10}, first=100)
    (root / "test" / "x" / "quality.jpg").write_bytes(encoded(picture(0), "JPEG", quality=40))
    (root / "test" / "x" / "half.png").write_bytes(encoded(picture(1).resize((24, 18))))
    (root / "test" / "y" / "square.webp").write_bytes(encoded(picture(2).resize((96, 96)), "WEBP"))
    (root / "test" / "y" / "exact.jpg").write_bytes((root / "train" / "x" / "003.jpg").read_bytes())
    report = survey(open_data(root, carve=False))
    assert sorted(report.near_copies) == [
        ["test/x/half.png", "train/x/001.jpg"],
        ["test/x/quality.jpg", "train/x/000.jpg"],
        ["test/y/square.webp", "train/x/002.jpg"],
    ]
    assert report.leaks == [["train/x/003.jpg", "test/y/exact.jpg"]]
    check.show(report)
    assert re.search(r"near-copies across splits +3  test/x/half.png ~ train", capsys.readouterr().out)


def test_copies_that_training_would_hold_out_are_found(tmp_path: Path) -> None:
    """Without splits in the source, what counts are those that training makes."""
    root = make_folder(tmp_path, {"x": 40, "y": 40})
    for number in range(40):
        (root / "x" / f"small{number:02d}.jpg").write_bytes(encoded(picture(number).resize((40, 30)), "JPEG"))
    sides = {
        split.name(i): name
        for name, split in open_data(root).splits.items()
        for i in range(len(split))
        if split.name(i).startswith("x/")
    }
    apart = {n for n in range(40) if sides[f"x/{n:03d}.png"] != sides[f"x/small{n:02d}.jpg"]}
    found = survey(open_data(root, carve=False)).near_copies
    assert {int(re.findall(r"\d+", row[0])[0]) for row in found} == apart and apart


def test_a_class_without_training_images_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"x": 12, "y": 12})
    make_folder(tmp_path / "test", {"x": 3, "y": 3, "only": 3}, first=50)
    report = survey(open_data(tmp_path, carve=False))
    assert report.untaught == ["only"] and report.blocker is None
    assert ("classes without training images", 1, "only") in check.summary(report)


def test_a_crop_that_cuts_much_away_is_a_hint(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"x": 20, "y": 20})
    hints = [row for row in check.summary(survey(open_data(root, carve=False))) if "far from" in row[0]]
    assert hints == []
    for number in range(5):
        (root / "x" / f"wide{number}.png").write_bytes(encoded(picture(200 + number, (90, 50))))
    (row,) = [row for row in check.summary(survey(open_data(root, carve=False))) if "far from" in row[0]]
    assert row[1] == 5 and row[2].endswith("train with --fit pad")


@pytest.mark.parametrize("bad", [2, 3])
def test_check_and_training_agree_on_what_stops(tmp_path: Path, bad: int) -> None:
    """Few of all images, but more than one in a hundred of those that are learned from."""
    make_folder(tmp_path / "train", {"x": 30, "y": 30})
    make_folder(tmp_path / "test", {"x": 150, "y": 150}, first=100)
    for number in range(bad):
        (tmp_path / "train" / "x" / f"{number:03d}.png").write_bytes(b"bad %d" % number)
    report = survey(open_data(tmp_path, carve=False))
    if bad == 2:
        assert report.blocker is None and len(require_readable(open_data(tmp_path))) == 2
        return
    with pytest.raises(DataError, match=r"3 of \d+ training images can't be read, more than 1%") as stopped:
        require_readable(open_data(tmp_path))
    assert report.blocker == str(stopped.value)


def test_a_class_without_a_readable_image_stops_both(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"x": 5, "y": 2})
    make_folder(tmp_path / "val", {"x": 5, "y": 5}, first=50)
    for number in range(2):
        (tmp_path / "train" / "y" / f"{number:03d}.png").write_bytes(b"bad %d" % number)
    blocker = survey(open_data(tmp_path, carve=False)).blocker
    assert blocker == "1 of the classes have a readable training image: two are needed"
    with pytest.raises(DataError, match="1 of the classes have a readable training image"):
        require_readable(open_data(tmp_path))


def test_json_is_one_document_and_nothing_else(faulty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(faulty), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["images"] == {"train": 199, "val": 51}
    assert document["unreadable"][0]["file"] == "train/many/truncated.jpg"
    assert document["blocker"] is None and document["leaks"] and document["fingerprint"]


def test_exit_1_only_when_training_could_not_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folder(tmp_path / "a", {"x": 20, "y": 20})
    for number in range(3):
        (root / "x" / f"bad{number}.png").write_bytes(b"bad")
        assert cli.main(["check", str(root)]) == (number == 2)  # one or two are only named
    assert "3 of 43 images can't be read, more than 1%" in capsys.readouterr().err
    held = make_folder(tmp_path / "b" / "test", {"x": 3, "y": 3}).parent
    assert cli.main(["check", str(held)]) == 1
    assert "no training split" in capsys.readouterr().err
    assert cli.main(["check", str(tmp_path / "nowhere")]) == 1
    assert cli.main(["check", "digits"]) == 0


def test_packed_shards_hold_the_same_data(faulty: Path, tmp_path: Path) -> None:
    assert cli.main(["check", str(faulty), "--pack", str(tmp_path / "shards")]) == 0
    data, packed = open_data(faulty, carve=False), open_data(tmp_path / "shards", carve=False)
    assert packed.labels == data.labels
    for name, split in packed.splits.items():
        original = data.splits[name]
        pairs = {(bytes(d), int(t)) for d, t in zip(original.digests, original.targets, strict=True)}
        assert {(bytes(d), int(t)) for d, t in zip(split.digests, split.targets, strict=True)} <= pairs
        assert len(split) == len(original) - (name == "train")  # without the truncated one
    assert cli.main(["check", str(faulty), "--pack", str(tmp_path / "shards")]) == 1  # never over old shards


def test_arrays_and_several_labels_are_packed_without_loss(tmp_path: Path) -> None:
    from vitreous.data.pack import pack

    images = np.random.default_rng(0).integers(0, 256, (6, 9, 7, 3), np.uint8)
    targets = np.array([[1, 0], [0, 1], [1, 1]] * 2)
    np.savez(tmp_path / "x.npz", images=images, labels=targets, class_names=["a", "b"])
    pack(open_data(tmp_path / "x.npz", carve=False), tmp_path / "shards")
    packed = open_data(tmp_path / "shards", carve=False)
    assert packed.multilabel and np.array_equal(packed.splits["train"].targets, targets.astype(bool))
    assert np.array_equal(np.asarray(packed.splits["train"].read(4)), images[4])


def test_peers_can_read_packed_shards(faulty: Path, tmp_path: Path) -> None:
    """A shard is plain tar with jpg and cls members of one stem, as WebDataset's readers expect."""
    import tarfile

    cli.main(["check", str(faulty), "--pack", str(tmp_path / "shards")])
    with tarfile.open(tmp_path / "shards" / "val-000000.tar") as archive:
        names = archive.getnames()
    assert names[:2] == ["000000000.jpg", "000000000.cls"] and len(names) == 102
