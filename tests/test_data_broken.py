"""Broken files cost themselves only: others take their places, or training stops where they are too many."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.data_batches import SIZE, assert_same, batches
from tests.data_images import make_folder, own_cache
from vitreous.config import Augment
from vitreous.data import Split, make_loader, open_data
from vitreous.errors import DataError

__all__ = ["own_cache"]


@pytest.fixture
def broken(tmp_path: Path) -> Split:
    """Forty images, two of them broken: one truncated, one no image at all."""
    root = make_folder(tmp_path, {"a": 20, "b": 20}, format="jpg")
    (root / "a" / "003.jpg").write_bytes((root / "a" / "003.jpg").read_bytes()[:300])
    (root / "b" / "007.jpg").write_bytes(b"not an image")
    return open_data(root, carve=False).splits["train"]


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_files_are_skipped_named_and_reported(broken: Split, workers: int) -> None:
    loader = make_loader(
        broken, preprocessing=SIZE, augment="light", batch_size=10, workers=workers, cache=None
    )
    for epoch in range(2):
        got = list(loader.epoch(epoch))
        assert [len(batch) for batch in got] == [10] * 4
        assert not {3, 27} & set(torch.cat([batch.indices for batch in got]).tolist())
    assert sorted(loader.bad) == [3, 27]
    assert "003.jpg" in loader.bad[3] and loader.files([27]) == ["b/007.jpg"]


def test_skipping_is_deterministic(broken: Split) -> None:
    whole = batches(broken, batch_size=8)
    assert_same(batches(broken, batch_size=8, workers=2), whole)
    assert_same(batches(broken, batch_size=8), whole)
    parts = [batches(broken, start=2, batch_size=8, rank=rank, world_size=3) for rank in range(3)]
    for step, expected in enumerate(whole[2:]):
        assert torch.equal(torch.cat([part[step].images for part in parts]), expected.images)


def test_a_substitute_is_not_augmented_like_its_own_turn(broken: Split) -> None:
    """Who takes a broken file's place comes twice in the epoch: as two variations, not as one twice."""
    augment = Augment(crop_scale=(0.2, 0.6), randaugment=(2, 15))
    twice = 0
    for epoch in range(3):
        whole = batches(broken, epoch, augment=augment, batch_size=40)[0]
        for index in whole.indices.unique():
            turns = whole.images[whole.indices == index]
            assert len(turns) < 2 or not torch.equal(turns[0], turns[1])
            twice += len(turns) > 1
    assert twice


def test_training_stops_where_too_many_files_are_broken(tmp_path: Path) -> None:
    root = make_folder(tmp_path, {"a": 20, "b": 20})
    for number in range(20):
        (root / "a" / f"{number:03d}.png").write_bytes(b"broken")
    split = open_data(root, carve=False).splits["train"]
    for workers in (0, 2):
        with pytest.raises(DataError, match=r"\d+ of 40 images can't be read, more than 1%: .*a/0.*allowed"):
            batches(split, workers=workers)
    loader = make_loader(split, preprocessing=SIZE, training=False, cache=None)
    assert len(torch.cat([batch.indices for batch in loader.epoch()])) == len(loader.bad) == 20


def test_evaluation_leaves_broken_files_out(broken: Split) -> None:
    loader = make_loader(broken, preprocessing=SIZE, batch_size=16, training=False, cache=None)
    indices = torch.cat([batch.indices for batch in loader.epoch()])
    assert indices.tolist() == [i for i in range(40) if i not in (3, 27)]
    assert sorted(loader.bad) == [3, 27]


def test_nothing_but_broken_files_ends_with_one_line(tmp_path: Path) -> None:
    for name in ("a/1.jpg", "b/1.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"no image " + name.encode())
    split = open_data(tmp_path, carve=False).splits["train"]
    options: dict[str, Any] = {"preprocessing": SIZE, "batch_size": 2, "cache": None}
    with pytest.raises(DataError, match="unreadable files in a row"):
        list(make_loader(split, augment=Augment(), **options).epoch())
    with pytest.raises(DataError, match="none of the images that were tried can be read"):
        make_loader(split, augment="light", **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_that_is_deleted_ends_with_one_line(tmp_path: Path, workers: int) -> None:
    split = open_data(make_folder(tmp_path / "data", {"a": 20, "b": 20}), carve=False).splits["train"]
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(DataError, match=r"^50 unreadable files in a row, the last .*: No such file") as gone:
        batches(split, workers=workers)
    assert "\n" not in str(gone.value) and "Traceback" not in str(gone.value)
