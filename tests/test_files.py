"""Atomic writing: whole files with the mode that the umask gives, or nothing."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.test_checkpoint import sample
from vitreous import checkpoint, files, layouts
from vitreous.data.cache import ImageCache


@pytest.fixture(params=[0o022, 0o027, 0o002], ids=oct)
def mode(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield 0o666 & ~request.param
    os.umask(before)


def test_files_get_the_mode_that_the_umask_gives(mode: int, tmp_path: Path) -> None:
    checkpoint.write(sample(), tmp_path / "sealed.safetensors")  # safetensors makes files of mode 0600
    layouts.write(sample(), tmp_path / "timm", "timm")
    files.write_text(tmp_path / "a.txt", "text")
    files.write_bytes(tmp_path / "a.bin", b"bytes")
    cache = ImageCache(tmp_path / "cache", "t", 1 << 20)
    assert cache.put(b"k" * 16, np.zeros((2, 2, 3), np.uint8))
    cache.close()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 7
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in written} == {
        path.name: oct(mode) for path in written
    }


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError), files.atomic(tmp_path / "a.txt") as temporary:
        temporary.write_text("half of the new")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"
