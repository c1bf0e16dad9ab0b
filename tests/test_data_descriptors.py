"""Shards that are read by any number of threads leave no descriptor behind, and few are open at a time."""

import gc
import io
import multiprocessing
import os
import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.data_images import encoded, own_cache, picture
from vitreous.data import Dataset, open_data
from vitreous.data.cache import ImageCache
from vitreous.data.descriptors import OpenFiles

__all__ = ["own_cache"]

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="descriptors can't be counted here"
)


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def make_shards(folder: Path, count: int) -> Path:
    """Write shards of one image each, of two classes."""
    folder.mkdir()
    for number in range(count):
        with tarfile.open(folder / f"train-{number:04d}.tar", "w") as archive:
            for ending, data in (("png", encoded(picture(number))), ("cls", b"%d" % (number % 2))):
                member = tarfile.TarInfo(f"{number}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return folder


def test_shards_close_with_their_data_set(tmp_path: Path) -> None:
    folder = make_shards(tmp_path / "shards", 120)
    before = open_descriptors()
    for _ in range(3):
        data: Dataset | None = open_data(folder)  # hashes every image, in several threads
        for split in data.splits.values():
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(split.read, range(len(split))))
        assert open_descriptors() - before <= 64  # the splits share them
    data = split = None
    assert open_descriptors() == before


def test_what_one_thread_drops_another_can_still_read(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 50)
    files = OpenFiles(limit=2)
    before = open_descriptors()

    def read(turn: int) -> bool:
        number = turn * 7 % 20
        return files.read(str(tmp_path / str(number)), 10, 5) == bytes([number]) * 10

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(2000)))
    assert len(files) == 2 and open_descriptors() - before == 2


def test_the_longest_unused_file_is_closed_first(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in "abc"]
    for name in names:
        Path(name).write_bytes(b"before")
    files = OpenFiles(limit=2)
    for number in (0, 1, 0, 2):
        files.read(names[number], 6, 0)
    for name in names:  # other files under these names: who is still open reads the old content
        Path(name).unlink()
        Path(name).write_bytes(b"after!")
    assert [files.read(names[k], 6, 0) for k in (0, 2, 1)] == [b"before", b"before", b"after!"]


def _read_in_child(files: OpenFiles, path: str, results: "multiprocessing.SimpleQueue[bytes]") -> None:
    results.put(files.read(path, 3, 1))


def test_open_files_travel_to_other_processes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"01234")
    files = OpenFiles()
    assert files.read(str(tmp_path / "x"), 3, 1) == b"123"
    copy = pickle.loads(pickle.dumps(files))
    assert len(copy) == 0 and copy.read(str(tmp_path / "x"), 3, 1) == b"123"
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with files._lock:  # a thread of ours may hold it at the moment of the fork
        child = context.Process(target=_read_in_child, args=(files, str(tmp_path / "x"), results))
        child.start()
    child.join(20)
    child.kill()
    assert child.exitcode == 0 and results.get() == b"123"


def test_the_cache_closes_what_it_writes_to(tmp_path: Path) -> None:
    before, cache = open_descriptors(), None
    for number in range(5):
        cache = ImageCache(tmp_path, "t", 1 << 20)
        assert cache.put(number.to_bytes(16, "little"), np.zeros((4, 4, 3), np.uint8))
        assert open_descriptors() - before == 2
    assert cache is not None
    cache.close()
    assert cache.put(b"x" * 16, np.zeros((4, 4, 3), np.uint8))
    del cache
    assert open_descriptors() == before
