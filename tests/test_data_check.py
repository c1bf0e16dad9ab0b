"""`vitreous check` finds one of every fault, changes nothing, and packs."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data_images import encoded, make_folder, own_cache, picture
from vitreous import cli
from vitreous.data import check, open_data
from vitreous.data.survey import survey

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


def test_every_option_that_is_advised_exists(
    faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Advice, in the tables and on the page, is understood by the command line: it misses the data alone."""
    advice = [text for _, _, text in check.summary(survey(open_data(faulty, carve=False)))]
    advice += [line for line in Path("docs/check.md").read_text().splitlines() if line.startswith("| ")]
    named = [words for text in advice for words in re.findall(r"--[a-z-]+(?: [a-z]+)?", text)]
    assert named.count("--balance sampler") == 2  # in the table and on the page
    for words in named:
        assert cli.main(["train", str(tmp_path / "nowhere"), *words.split()]) == 1, words
        assert "no data at" in capsys.readouterr().err


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
