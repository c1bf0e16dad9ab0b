"""The cache survives kills, damage and full disks, is shared by processes, and stays within its limit."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from vitreous.data.cache import ENTRY, ImageCache


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def pixels(number: int, size: int = 20) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (size, size + number % 3, 3), np.uint8)


def filled(root: Path, numbers: range, **options: int) -> ImageCache:
    cache = ImageCache(root, "t", **options)
    for number in numbers:
        cache.put(key(number), pixels(number))
    return cache


def whole(cache: ImageCache, numbers: range) -> int:
    """Count the images that are there; each must be right."""
    count = 0
    for number in numbers:
        found = cache.get(key(number))
        if found is not None:
            assert np.array_equal(found, pixels(number))
            count += 1
    return count


def test_what_is_put_is_found(tmp_path: Path) -> None:
    cache = filled(tmp_path, range(10), limit=1 << 20)
    assert whole(cache, range(10)) == 10
    cache.release()
    assert whole(ImageCache(tmp_path, "t", 1 << 20), range(12)) == 10
    assert ImageCache(tmp_path, "other", 1 << 20).get(key(1)) is None


def _write_for_ever(root: str) -> None:
    cache = ImageCache(Path(root), "t", 1 << 30)
    for number in range(1_000_000):
        cache.put(key(number), pixels(number, 200))


def test_a_killed_writer_leaves_a_usable_cache(tmp_path: Path) -> None:
    for turn in range(3):
        process = multiprocessing.get_context("fork").Process(target=_write_for_ever, args=(str(tmp_path),))
        process.start()
        deadline = time.monotonic() + 20
        while (
            time.monotonic() < deadline
            and sum(f.stat().st_size for f in tmp_path.rglob("*.index")) < (turn + 1) * 600
        ):
            time.sleep(0.01)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    reader = ImageCache(tmp_path, "t", 1 << 30)
    reader.refresh()
    assert len(reader) > 8
    for number in range(len(reader)):
        found = reader.get(key(number))
        assert found is None or np.array_equal(found, pixels(number, 200))
    assert reader.put(key(10**9), pixels(1)) and reader.get(key(10**9)) is not None


@pytest.mark.parametrize("cut", [1, ENTRY.size - 1, ENTRY.size])
def test_half_an_index_entry_is_ignored(tmp_path: Path, cut: int) -> None:
    filled(tmp_path, range(5), limit=1 << 20)
    index = next(tmp_path.rglob("*.index"))
    index.write_bytes(index.read_bytes()[:-cut])
    assert whole(ImageCache(tmp_path, "t", 1 << 20), range(5)) == 4


def test_missing_pixels_are_a_miss(tmp_path: Path) -> None:
    filled(tmp_path, range(5), limit=1 << 20)
    file = next(tmp_path.rglob("*.pixels"))
    os.truncate(file, file.stat().st_size - 10)
    assert whole(ImageCache(tmp_path, "t", 1 << 20), range(5)) == 4
    file.unlink()
    assert whole(ImageCache(tmp_path, "t", 1 << 20), range(5)) == 0


@pytest.mark.parametrize("suffix", [".pixels", ".index"])
def test_flipped_bits_are_a_miss_and_can_be_written_again(tmp_path: Path, suffix: str) -> None:
    filled(tmp_path, range(5), limit=1 << 20)
    file = next(tmp_path.rglob(f"*{suffix}"))
    data = bytearray(file.read_bytes())
    data[30] ^= 4
    file.write_bytes(bytes(data))
    cache = ImageCache(tmp_path, "t", 1 << 20)
    assert whole(cache, range(5)) == 4
    assert cache.put(key(0), pixels(0))
    assert whole(cache, range(5)) == 5
    assert whole(ImageCache(tmp_path, "t", 1 << 20), range(5)) == 5


def _write(root: str, start: int) -> None:
    filled(Path(root), range(start, start + 40), limit=1 << 22)


def test_processes_share_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(str(tmp_path), 20 * k)) for k in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert whole(ImageCache(tmp_path, "t", 1 << 22), range(80)) == 80


def test_a_child_writes_to_a_segment_of_its_own(tmp_path: Path) -> None:
    cache = filled(tmp_path, range(3), limit=1 << 20)
    child = multiprocessing.get_context("fork").Process(target=lambda: cache.put(key(7), pixels(7)))
    child.start()
    child.join()
    cache.put(key(8), pixels(8))
    cache.refresh()
    assert len(list(tmp_path.rglob("*.pixels"))) == 2
    assert whole(cache, range(10)) == 5


def test_it_stays_within_its_limit(tmp_path: Path) -> None:
    limit = 20_000
    cache = filled(tmp_path, range(100), limit=limit)
    total = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert 0.8 * limit < total <= limit
    assert 0 < whole(cache, range(100)) < 100


def test_room_is_made_of_what_was_longest_unused(tmp_path: Path) -> None:
    for part, age in ((range(10), 300), (range(10, 20), 200), (range(20, 30), 100)):
        filled(tmp_path, part, limit=1 << 20)
        newest = max(tmp_path.rglob("*.index"))  # names begin with the time
        os.utime(newest, (time.time() - age, time.time() - age))
    total = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    cache = ImageCache(tmp_path, "t", total)
    cache.make_room([*map(key, range(10)), *map(key, range(100, 105))], 1300)
    assert whole(cache, range(10)) == 10  # its own stay, though they are the oldest
    assert whole(cache, range(10, 20)) == 0
    assert whole(cache, range(20, 30)) == 10


def test_a_folder_that_cannot_be_written_costs_nothing_but_speed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ImageCache(tmp_path / "file" / "cache", "t", 1 << 20)
    assert not cache.put(key(1), pixels(1))
    assert cache.get(key(1)) is None


def test_a_full_disk_leaves_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = filled(tmp_path, range(4), limit=1 << 20)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert not cache.put(key(9), pixels(9))
    monkeypatch.undo()
    assert whole(cache, range(10)) == 4
    assert whole(ImageCache(tmp_path, "t", 1 << 20), range(10)) == 4
