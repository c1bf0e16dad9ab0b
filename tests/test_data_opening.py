"""Splits that are carved, classes that are numbered, fingerprints and remembered hashes."""

import os
import pickle
import shutil
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data_images import encoded, make_folder, own_cache, picture
from tests.hostile.shards import shard
from vitreous.data import InMemory, content, keep_classes, open_data, open_pictures, opening, typical_size
from vitreous.data.holdout import carve, places
from vitreous.data.images import EncodedImages
from vitreous.data.store import write_whole
from vitreous.errors import DataError, UnlabelledError

__all__ = ["own_cache"]


def hashes(numbers: list[int]) -> np.ndarray:
    return np.stack([np.frombuffer(content.digest(str(n).encode()), np.uint8) for n in numbers])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2)), min_size=1, max_size=80),
    st.lists(st.tuples(st.integers(61, 99), st.integers(0, 2)), max_size=30),
    st.integers(0, 5),
)
def test_duplicates_stay_together_and_parts_cover_all(
    images: list[tuple[int, int]], more: list[tuple[int, int]], seed: int
) -> None:
    numbers, targets = (list(x) for x in zip(*images, *more, strict=True))
    parts = carve(hashes(numbers), np.array(targets), ("val", "test"), seed)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(numbers)))
    side = {i: name for name, rows in parts.items() for i in rows.tolist()}
    by_content: dict[int, set[str]] = {}
    for i, number in enumerate(numbers):
        by_content.setdefault(number, set()).add(side[i])
    assert all(len(sides) == 1 for sides in by_content.values())


def test_added_files_move_no_others() -> None:
    before = carve(hashes(list(range(600))), np.arange(600) % 3, ("val", "test"), 0)
    after = carve(hashes(list(range(900))), np.arange(900) % 3, ("val", "test"), 0)
    for name, rows in before.items():
        assert set(rows.tolist()) == {i for i in after[name].tolist() if i < 600}


def test_the_split_is_stratified_and_seeded() -> None:
    targets = np.repeat([0, 1, 2], [3000, 600, 60])
    digests = hashes(list(range(len(targets))))
    parts = carve(digests, targets, ("val", "test"), 0)
    for name in ("val", "test"):
        fractions = np.bincount(targets[parts[name]], minlength=3) / [3000, 600, 60]
        assert np.abs(fractions - 0.1).max() < 0.08 and np.abs(fractions[:2] - 0.1).max() < 0.04
    assert not np.array_equal(parts["val"], carve(digests, targets, ("val", "test"), 1)["val"])


def test_a_small_class_gets_a_held_out_image_if_it_can_spare_one() -> None:
    for count in (4, 5, 8):
        for seed in range(20):
            parts = carve(hashes(list(range(2 * count))), np.repeat([0, 1], count), ("val",), seed)
            assert (np.bincount(np.repeat([0, 1], count)[parts["val"]], minlength=2) >= 1).all()
    lone = carve(hashes([0, 1]), np.array([0, 1]), ("val", "test"), 3)
    assert len(lone["train"]) >= 0 and sum(map(len, lone.values())) == 2


def test_places_are_uniform() -> None:
    assert abs(places(hashes(list(range(4000))), 0).mean() - 0.5) < 0.02


def test_folders_are_carved_by_content_not_name(tmp_path: Path) -> None:
    first = open_data(make_folder(tmp_path / "a", {"x": 40, "y": 40}), seed=3)
    assert first.carved == ("val", "test") and set(first.splits) == {"train", "val", "test"}
    for number, file in enumerate(sorted((tmp_path / "a").rglob("*.png"))):
        target = tmp_path / "b" / file.parent.name / f"renamed{997 * number % 80}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    second = open_data(tmp_path / "b", seed=3)
    assert first.fingerprint == second.fingerprint
    for name, split in first.splits.items():
        assert sorted(map(bytes, split.digests)) == sorted(map(bytes, second.splits[name].digests))
    assert open_data(tmp_path / "a", seed=4).fingerprint != first.fingerprint


def test_a_test_split_is_kept_and_val_carved(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"x": 30, "y": 30})
    make_folder(tmp_path / "test", {"x": 5, "y": 5}, first=500)
    data = open_data(tmp_path)
    assert data.carved == ("val",) and len(data.splits["test"]) == 10
    assert len(data.splits["train"]) + len(data.splits["val"]) == 60
    make_folder(tmp_path / "val", {"x": 2, "y": 2}, first=600)
    shutil.rmtree(tmp_path / "test")
    assert set(open_data(tmp_path).splits) == {"train", "val"}


def test_the_fingerprint_follows_content_and_labels(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"x": 4, "y": 4})
    before = open_data(root, carve=False).fingerprint
    (root / "x" / "000.png").write_bytes(encoded(picture(999)))
    changed = open_data(root, carve=False).fingerprint
    (root / "x" / "001.png").rename(root / "y" / "moved.png")
    assert len({before, changed, open_data(root, carve=False).fingerprint}) == 3


def test_hashes_are_remembered_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "REMEMBER_FROM", 1)
    root = make_folder(tmp_path, {"x": 3, "y": 3})
    first = open_data(root, carve=False).splits["train"].digests
    reads: list[int] = []
    original = EncodedImages.data
    monkeypatch.setattr(
        EncodedImages, "data", lambda self, index: reads.append(index) or original(self, index)
    )
    assert np.array_equal(open_data(root, carve=False).splits["train"].digests, first)
    assert reads == []
    (root / "y" / "001.png").write_bytes(encoded(picture(77)))
    second = open_data(root, carve=False).splits["train"].digests
    assert reads == [4]
    assert (first != second).any(1).nonzero()[0].tolist() == [4]


def test_a_damaged_memory_is_made_again(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "REMEMBER_FROM", 1)
    root = make_folder(tmp_path, {"x": 3, "y": 3})
    first = open_data(root).fingerprint
    for file in (own_cache / "hashes").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    assert open_data(root).fingerprint == first


def test_splits_travel_to_workers(tmp_path: Path) -> None:
    split = open_data(make_folder(tmp_path, {"x": 3, "y": 3}), carve=False).splits["train"]
    split.read(0)
    assert pickle.loads(pickle.dumps(split)).read(2).tobytes() == split.read(2).tobytes()


def test_labels_outside_the_classes_are_refused(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "x.npz",
        images=np.zeros((2, 4, 4), np.uint8),
        labels=np.array([0, 9]),
        class_names=["a", "b"],
    )
    with pytest.raises(DataError, match="label 9 is outside 0 to 1"):
        open_data(tmp_path / "x.npz")


def test_what_is_remembered_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "x.npz"
    assert write_whole(path, lambda file: file.write(b"first"))

    def break_off(file: IO[bytes]) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    assert not write_whole(path, break_off)
    assert path.read_bytes() == b"first" and os.listdir(path.parent) == ["x.npz"]

    def refuse(file: IO[bytes]) -> None:
        raise DataError("the source can't be read")

    with pytest.raises(DataError, match="the source"):
        write_whole(path, refuse)
    assert path.read_bytes() == b"first" and os.listdir(path.parent) == ["x.npz"]
    assert not write_whole(path / "below a file", lambda file: file.write(b"x"))


def test_the_typical_size_is_that_of_most_images_the_right_way_up(tmp_path: Path) -> None:
    for number, size in enumerate([(80, 50), (90, 60), (90, 60), (500, 400)]):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(picture(number, size)))
    (tmp_path / "a" / "9.png").write_bytes(b"broken")
    assert typical_size(open_data(tmp_path, carve=False).splits["train"]) == (60, 90)
    turned = Image.Exif()
    turned[0x0112] = 6
    for name in ("c/1.jpg", "d/1.jpg"):
        path = tmp_path / "turned" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(encoded(picture(1, (90, 60)), "JPEG", exif=turned))
    split = open_data(tmp_path / "turned", carve=False).splits["train"]
    assert split.read(0).size == (60, 90) and typical_size(split) == (90, 60)
    assert typical_size(open_data("digits").splits["val"]) == (8, 8)


@pytest.mark.parametrize("kind", ["npz", "parquet", "csv", "tar"])
def test_numbers_are_classes_as_they_come(tmp_path: Path, kind: str) -> None:
    """WordNet's numbers, or dates: a class for each value, not for each number below the largest."""
    values = [0, 10**12, 2084071, 10**12, 0, 7] * 2
    root = make_folder(tmp_path / "images", {"a": len(values)})
    files = [f"images/a/{i:03d}.png" for i in range(len(values))]
    path = tmp_path / f"x.{kind}"
    if kind == "npz":
        np.savez(path, images=np.arange(12 * 16, dtype=np.uint8).reshape(12, 4, 4), labels=np.array(values))
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"path": files, "label": values}), path)
    elif kind == "csv":
        path.write_text("path,label\n" + "".join(f"{f},{v}\n" for f, v in zip(files, values, strict=True)))
    else:
        images = [(f"{i:03d}.png", (root / "a" / f"{i:03d}.png").read_bytes()) for i in range(12)]
        classes = [(f"{i:03d}.cls", str(value).encode()) for i, value in enumerate(values)]
        path.write_bytes(shard(images + classes))
    data = open_data(path, carve=False)
    assert data.labels == ["0", "7", "2084071", "1000000000000"]
    assert [data.labels[k] for k in data.splits["train"].targets] == list(map(str, values))


def test_labels_that_would_take_all_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MOST_TARGETS", 30)
    tags = [["a", "b", "c", "d"], ["e", "f"], ["g"]] * 2
    make_folder(tmp_path, {"x": 6})
    rows = [f"x/{i:03d}.png,{'|'.join(row)}\n" for i, row in enumerate(tags)]
    (tmp_path / "x.csv").write_text("path,label\n" + "".join(rows))
    with pytest.raises(DataError, match="6 images with any of 7 labels"):
        open_data(tmp_path / "x.csv")


def test_negative_labels_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((3, 4, 4), np.uint8), labels=np.array([0, -1, 1]))
    with pytest.raises(DataError, match="label -1 is negative"):
        open_data(tmp_path / "x.npz")


def test_classes_are_kept_with_their_images_and_numbered_anew(pairs: Path) -> None:
    digits = open_data("digits")
    part = keep_classes(digits, (7, 2))
    assert part.labels == [digits.labels[7], digits.labels[2]]
    for name, whole in digits.splits.items():
        kept = part.splits[name]
        assert kept.classes == 2
        assert np.bincount(kept.targets).tolist() == [(whole.targets == number).sum() for number in (7, 2)]
        first = np.flatnonzero(np.isin(whole.targets, (7, 2)))[0]
        assert kept.read(0, 1).tobytes() == whole.read(int(first), 1).tobytes()
    assert len({digits.fingerprint, part.fingerprint, keep_classes(digits, (2, 7)).fingerprint}) == 3
    with pytest.raises(DataError, match="several labels can't be split by class"):
        keep_classes(open_data(str(pairs)), (0,))


def test_only_data_without_labels_is_opened_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def refuse(name: str, root: Path | None) -> None:
        tries.append(name)
        raise DataError(f"{name} can't be downloaded, try {len(tries)}")

    monkeypatch.setattr(opening.named, "open_source", refuse)
    with pytest.raises(DataError, match="can't be downloaded, try 1"):
        open_pictures("cifar10")
    assert tries == ["cifar10"]
    make_folder(tmp_path / "one", {"cat": 3})
    make_folder(tmp_path / "flat", {"": 3})
    for data in (tmp_path / "one", tmp_path / "flat", InMemory(list(np.zeros((3, 4, 4), np.uint8)))):
        with pytest.raises(UnlabelledError):
            open_data(data)
        assert len(open_pictures(data, carve=False).splits["train"]) == 3
