"""Unreadable files: found in a few seconds before a training, which stops where they are too many."""

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data_images import make_folder, own_cache
from vitreous.data import Dataset, open_data, require_readable
from vitreous.data.bad import BadFile, refusal, screen
from vitreous.data.images import EncodedImages
from vitreous.data.split import Split
from vitreous.errors import DataError

__all__ = ["own_cache"]


def broken(root: Path, count: int, classes: tuple[int, int] = (60, 60)) -> Dataset:
    """A folder whose first files are no images."""
    make_folder(root, {"x": classes[0], "y": classes[1]})
    for number in range(count):
        (root / "x" / f"{number:03d}.png").write_bytes(b"broken %d" % number)
    return open_data(root, carve=False)


def test_half_of_the_files_stop_a_training(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        require_readable(broken(tmp_path, 60))
    message = str(error.value)
    assert message.startswith("60 of 120 images can't be read, more than 1%: replace or remove them")
    assert message.count("x/0") == 10 and "x/009.png: not a readable image" in message
    assert message.endswith("and 50 more") and "\n" not in message


def test_few_are_only_named(tmp_path: Path) -> None:
    bad = require_readable(broken(tmp_path, 2, (25, 25)))
    assert [(file.split, file.file) for file in bad] == [("train", "x/000.png"), ("train", "x/001.png")]
    assert bad[0].reason.startswith("not a readable image") and str(bad[0]).startswith("x/000.png: not a")


def test_every_split_is_read(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"x": 10, "y": 10})
    make_folder(tmp_path / "test", {"x": 10, "y": 10}, first=100)
    (tmp_path / "train" / "y" / "009.png").write_bytes(b"")
    for number in (0, 9):
        (tmp_path / "test" / "x" / f"{number:03d}.png").write_bytes(b"")
    found = screen(open_data(tmp_path, carve=False))
    files = ["test/x/000.png", "test/x/009.png", "train/y/009.png"]
    assert [bad.file for bad in found.bad] == files and found[1:] == (40, 40)
    assert {bad.split for bad in found.bad} == {"train", "test"}
    with pytest.raises(DataError, match="3 of 40 images"):
        require_readable(open_data(tmp_path, carve=False))


def test_arrays_are_decoded_already() -> None:
    assert screen(open_data("digits")) == ([], 1797, 1797)
    assert require_readable(open_data("digits")) == []


def test_the_limit_is_one_in_a_hundred_and_three() -> None:
    for bad, read, stops in (
        (3, 300, False),
        (3, 299, True),
        (2, 10, False),
        (0, 0, False),
        (101, 10_000, True),
    ):
        assert (refusal(["x.png: broken"] * bad, read, read) is not None) == stops


def test_a_sample_must_show_it_beyond_chance() -> None:
    """Of a set with 0.9 % bad files a sample of 2,000 often has over 20; it must not be refused for that."""
    chance = np.random.default_rng(0)
    allowed = [refusal(["x"] * bad, 2000, 100_000) for bad in chance.binomial(2000, 0.009, 1000)]
    assert sum(map(bool, allowed)) < 3
    refused = [refusal(["x"] * bad, 2000, 100_000) for bad in chance.binomial(2000, 0.03, 1000)]
    assert sum(map(bool, refused)) > 990


def slow_split(count: int, bad: int) -> Dataset:
    """Images that each take 20 ms to read, the last ones not readable."""

    class Slow(EncodedImages):
        def read(self, index: int, channels: int = 3, *, shortest: int | None = None) -> Image.Image:
            time.sleep(0.02)
            if index >= count - bad:
                raise DataError(f"{self.name(index)}: broken")
            return Image.new("RGB", (1, 1))

    images = Slow([str(i) for i in range(count)], [str(i) for i in range(count)])
    split = Split(images, np.zeros(count, np.int64), 1, np.zeros((count, 16), np.uint8))
    return Dataset(["a"], False, {"train": split}, "")


def test_it_takes_only_so_long_and_is_evenly_spread_then() -> None:
    bad, read, count = screen(slow_split(100_000, 50_000), seconds=0.5)
    assert 10 <= read < 1000 and count == 100_000
    assert 0.2 < len(bad) / read < 0.8  # though all bad ones are at the end


def test_at_most_a_sample_is_read() -> None:
    bad, read, count = screen(slow_split(1000, 500), sample=40, seconds=60)
    assert (len(bad), read, count) == (20, 40, 1000)
    assert bad[0] == BadFile("train", str(bad[0].file), "broken")
