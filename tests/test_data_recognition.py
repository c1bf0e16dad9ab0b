"""What DATA is: splits that are measured as one, and sources that are not recognised."""

from pathlib import Path

import numpy as np
import pytest

from tests.data_images import make_folder, own_cache
from tests.data_sources import CLASSES, expected
from vitreous.data import open_data
from vitreous.errors import DataError

__all__ = ["own_cache"]


def test_all_splits_can_be_measured_as_one(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", CLASSES)
    make_folder(tmp_path / "test", CLASSES, first=100)
    data = open_data(tmp_path, carve=False)
    name, whole = data.part("all")
    assert name == "all" and len(whole) == 18
    rows = [(whole.read(i).tobytes(), data.labels[whole.targets[i]]) for i in range(18)]
    assert sorted(rows) == sorted([*expected(CLASSES), *expected(CLASSES, 100)])
    assert whole.name(0) == "train/cat/000.png" and whole.name(9) == "test/cat/000.png"
    assert data.part(None)[0] == "test"
    with pytest.raises(DataError, match="no split 'dev': it has train, test"):
        data.part("dev")
    digits = open_data("digits")
    _, whole = digits.part("all")
    parts = [split.name(i) for split in digits.splits.values() for i in range(len(split))]
    assert [whole.name(i) for i in range(len(whole))] == parts and len(set(parts)) == 1797
    assert whole.select(np.array([1700])).name(0) == parts[1700]


def test_unknown_data_is_named_with_a_guess() -> None:
    with pytest.raises(DataError, match=r"no data at 'digit'.*did you mean digits"):
        open_data("digit")


def test_unknown_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"")
    with pytest.raises(DataError, match=r"\.csv, \.tsv, \.parquet, \.tar or \.npz"):
        open_data(tmp_path / "x.zip")
