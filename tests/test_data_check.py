"""`vitreous check` finds one of every fault, changes nothing, and packs; bad files stop or are written
down."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data_images import encoded, make_folder, own_cache, picture
from vitreous import cli
from vitreous.data import open_data
from vitreous.data.bad import BadFile, found_by, require_readable, screen, write_bad_files
from vitreous.data.check import check
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
    report = check(open_data(faulty, carve=False))
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
    assert "balanced" in out and "few" in out
    assert "truncated.jpg" in err
    with Image.open(tmp_path / "grid.png") as grid:
        colours = np.asarray(grid.convert("RGB"))[:96, 160:256]
    assert len(np.unique(colours.reshape(-1, 3), axis=0)) > 50  # there are pictures in it


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
    (root / "x" / "bad.png").write_bytes(b"bad")
    assert cli.main(["check", str(root)]) == 1
    assert "1 of 41 images can't be read, more than 1%" in capsys.readouterr().err
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


def test_screening_finds_bad_files_and_the_rule_stops(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"x": 60, "y": 60})
    data = open_data(root, carve=False)
    assert screen(data.splits) == ([], 120)
    for i in range(12):
        (root / "x" / f"{i:03d}.png").write_bytes(b"broken %d" % i)
    bad, looked = screen(open_data(root, carve=False).splits)
    assert len(bad) == 12 and looked == 120
    with pytest.raises(DataError, match="12 of 120 images") as error:
        require_readable(bad, looked)
    assert str(error.value).count("x/0") == 10 and "and 2 more" in str(error.value)
    require_readable(bad[:1], 100)  # one in a hundred is allowed
    with pytest.raises(DataError):
        require_readable(bad[:2], 199)
    sampled, looked = screen(open_data(root, carve=False).splits, sample=40)
    assert looked == 40 and 2 <= len(sampled) <= 6


def test_arrays_need_no_screening() -> None:
    assert screen(open_data("digits").splits) == ([], 1797)


def test_bad_files_are_written_down_once(tmp_path: Path) -> None:
    bad = [BadFile("train", "b.jpg", "truncated, by half"), BadFile("train", "a.jpg", "empty")]
    write_bad_files(tmp_path / "bad_files.csv", [*bad, *bad])
    with open(tmp_path / "bad_files.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["split", "file", "reason"],
        ["train", "a.jpg", "empty"],
        ["train", "b.jpg", "truncated, by half"],
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["bad_files.csv"]


def test_what_a_loader_met_is_named(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"x": 3, "y": 3})
    split = open_data(root, carve=False).splits["train"]
    assert found_by("train", split, {4: "y/001.png: the file is empty"}) == [
        BadFile("train", "y/001.png", "the file is empty")
    ]
