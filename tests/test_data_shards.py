"""DATA as WebDataset tar shards: indexed once, read by range, refused when they are damaged."""

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from tests.data_images import encoded, own_cache, picture
from tests.data_sources import CLASSES, expected, seen
from vitreous.data import open_data
from vitreous.data.pictures import LeftOut
from vitreous.errors import DataError

__all__ = ["own_cache"]


def make_shard(path: Path, first: int = 0, *, numbers: bool = True, nested: bool = False) -> None:
    with tarfile.open(path, "w") as archive:
        seed = first
        for k, (name, count) in enumerate(CLASSES.items()):
            for _ in range(count):
                stem = f"{'sub/' if nested else ''}{seed:05d}"
                for ending, data in (
                    ("png", encoded(picture(seed))),
                    ("cls", (str(k) if numbers else name).encode()),
                ):
                    member = tarfile.TarInfo(f"{stem}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
                seed += 1


@pytest.mark.parametrize("nested", [False, True])
def test_tar_shards(tmp_path: Path, nested: bool) -> None:
    make_shard(tmp_path / "train-000.tar", nested=nested)
    make_shard(tmp_path / "train-001.tar", 50, nested=nested)
    make_shard(tmp_path / "val-000.tar", 100, nested=nested)
    (tmp_path / "labels.txt").write_text("cat\ndog\nemu\n")
    for _ in range(2):  # the second time from the remembered index
        found = seen(open_data(tmp_path))
        assert found == {
            "train": sorted(expected(CLASSES) + expected(CLASSES, 50)),
            "val": expected(CLASSES, 100),
        }


def test_one_shard_with_names(tmp_path: Path) -> None:
    make_shard(tmp_path / "x.tar", numbers=False)
    assert seen(open_data(tmp_path / "x.tar", carve=False)) == {"train": expected(CLASSES)}


def test_a_changed_shard_is_indexed_again(tmp_path: Path) -> None:
    make_shard(tmp_path / "x.tar", numbers=False)
    open_data(tmp_path / "x.tar")
    make_shard(tmp_path / "x.tar", 300, numbers=False)
    os.utime(tmp_path / "x.tar", ns=(1, 1))
    assert seen(open_data(tmp_path / "x.tar", carve=False)) == {"train": expected(CLASSES, 300)}


def test_compressed_or_broken_shards_are_refused(tmp_path: Path) -> None:
    make_shard(tmp_path / "x.tar")
    data = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(gzip.compress(data))
    with pytest.raises(DataError, match="uncompressed tar"):
        open_data(tmp_path / "x.tar")
    (tmp_path / "x.tar").write_bytes(data[:30_000])
    with pytest.raises(DataError):
        split = open_data(tmp_path / "x.tar", carve=False).splits["train"]
        for i in range(len(split)):
            split.read(i)


def test_a_sample_without_a_label_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        member = tarfile.TarInfo("a/7.png")
        archive.addfile(member)
    with pytest.raises(DataError, match="sample a/7 has no label"):
        open_data(tmp_path / "x.tar")


def test_samples_without_a_picture_are_counted(tmp_path: Path) -> None:
    make_shard(tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar", "a") as archive:
        for name in ("9001.npy", "9001.cls", "9002.cls", "9003.mp4", "9003.json"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    for _ in range(2):  # scanned, then remembered
        data = open_data(tmp_path, carve=False)
        assert len(data.splits["train"]) == sum(CLASSES.values())
        assert set(data.left_out) == {
            LeftOut("files ending in .npy", 1, "a.tar:9001.npy"),
            LeftOut("samples without a picture", 1, "a.tar:9002.cls"),
            LeftOut("files ending in .mp4", 1, "a.tar:9003.mp4"),
        }
