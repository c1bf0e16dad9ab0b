"""No picture of a tar shard is lost in silence: a shard that is damaged or cut off is named, and how much."""

import random
from pathlib import Path

import pytest

from tests.data_images import own_cache
from tests.hostile import shards
from vitreous import cli
from vitreous.data import open_data
from vitreous.errors import DataError

__all__ = ["own_cache"]

WHOLE = shards.shard(shards.samples(40))
START = 2 * (512 + 1024) + 512  # of the third sample's second member, about


def found(folder: Path, data: bytes) -> int:
    """Return how many images a shard of these bytes is opened with."""
    (folder / "train-000.tar").write_bytes(data)
    return len(open_data(folder, carve=False).splits["train"])


def test_no_flipped_bit_in_a_header_loses_a_picture(tmp_path: Path) -> None:
    chance = random.Random(0)
    for _ in range(40):
        data = shards.flipped_header(WHOLE, chance)
        try:
            assert found(tmp_path, data) == 40
        except DataError as error:
            assert "train-000.tar" in str(error) and "damaged" in str(error)


def test_no_cut_loses_a_picture(tmp_path: Path) -> None:
    members = shards.headers(WHOLE)
    places = [random.Random(1).randrange(1, len(WHOLE)) for _ in range(30)] + members[1::9]
    for place in places:
        try:
            assert found(tmp_path, WHOLE[:place]) == 40
        except DataError as error:
            assert "train-000.tar" in str(error)


def test_it_says_how_much_is_missing(tmp_path: Path) -> None:
    start = shards.headers(WHOLE)[6]
    with pytest.raises(
        DataError, match=rf"damaged at byte {start:,}: 3 samples before .*, 36 after"
    ) as damaged:
        found(tmp_path, shards.flipped(WHOLE, start + 3))
    said = str(damaged.value).replace(str(tmp_path), "")  # whose numbers are pytest's
    assert "40" not in said and "copy the shard again" in said
    with pytest.raises(DataError, match="ends 212 bytes early, in 00003.png"):
        found(tmp_path, WHOLE[: start + 512 + 300])
    with pytest.raises(DataError, match=r"end mark is missing"):
        found(tmp_path, WHOLE[:start])
    with pytest.raises(DataError, match=r"bytes after its end mark"):
        found(tmp_path, WHOLE + WHOLE)


def test_it_remembers_how_many_there_were(tmp_path: Path) -> None:
    assert found(tmp_path, WHOLE) == 40
    start = shards.headers(WHOLE)[6]
    for data in (shards.flipped(WHOLE, start + 3), WHOLE[:start]):
        with pytest.raises(DataError, match="when it was last whole it had 40 samples"):
            found(tmp_path, data)
    assert found(tmp_path, WHOLE) == 40


def test_every_damaged_shard_is_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train-001.tar").write_bytes(WHOLE[:20_000])
    (tmp_path / "train-002.tar").write_bytes(WHOLE)
    (tmp_path / "val-000.tar").write_bytes(shards.flipped(WHOLE, shards.headers(WHOLE)[6]))
    assert cli.main(["check", str(tmp_path)]) == 1
    line = capsys.readouterr().err
    assert "train-001.tar" in line and "val-000.tar" in line and "train-002.tar" not in line


@pytest.mark.parametrize("size", [1 << 20, 1 << 40, -512, -1024, -5120])
def test_a_member_that_lies_about_its_size_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(DataError, match="train-000.tar"):
        found(tmp_path, shards.resized(WHOLE, 4, size))


@pytest.mark.parametrize(
    "label", [b"[" * 100_000, b'{"label": 1.5}', b'{"label": {"a": 1}}', b'{"label": [[1]]}']
)
def test_labels_that_are_none_are_refused(tmp_path: Path, label: bytes) -> None:
    with pytest.raises(DataError, match="sample 00000 has no label"):
        found(tmp_path, shards.labelled(label))


def test_a_number_too_long_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(shards.labelled(b"9" * 5000, "cls"))
    assert len(open_data(tmp_path / "x.tar", carve=False).labels) == 2


@pytest.mark.parametrize("name", shards.MAKERS)
def test_every_maker_makes_a_shard_that_is_refused_or_read(tmp_path: Path, name: str) -> None:
    for seed in range(3):
        (tmp_path / "x.tar").write_bytes(shards.MAKERS[name](random.Random(seed)))
        try:
            assert open_data(tmp_path / "x.tar", carve=False).splits
        except DataError as error:
            assert "x.tar" in str(error)
