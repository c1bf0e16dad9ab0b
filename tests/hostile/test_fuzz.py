"""The fuzzer notices what it looks for: tracebacks, long lines, work without end, memory, a dead process."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile import fuzz
from vitreous.errors import CheckpointError

LIMITS = fuzz.Limits(seconds=60.0, mebibytes=256)


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda: None, ""),
        (lambda: fuzz.refused(lambda: _raise(CheckpointError("this file is not whole"))), ""),
        (lambda: fuzz.refused(lambda: _raise(KeyError("blocks.0"))), "KeyError: 'blocks.0'"),
        (lambda: fuzz.refused(lambda: _raise(CheckpointError("a\nb" * 9))), "AssertionError: refused in 27"),
        (lambda: fuzz.refused(lambda: _raise(CheckpointError("x" * 5000))), "refused in 5,000 characters"),
        (lambda: len(b"x" * (1 << 29)), "took "),
        (lambda: os.kill(os.getpid(), 9), "ended by 9"),
    ],
)
def test_what_goes_wrong_is_noticed(work: Callable[[], None], said: str) -> None:
    wrong, _ = fuzz.attempt(work, LIMITS)
    assert said in wrong and bool(said) == bool(wrong)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_work_without_end_is_ended() -> None:
    wrong, took = fuzz.attempt(lambda: time.sleep(600), fuzz.Limits(0.2, 256))
    assert wrong == "still running after 0.2 s" and took < 300


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_seed_is_tried_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = fuzz.Bench(tmp_path, LIMITS)
    tally, other = fuzz.Tally("checkpoints", "architectures.safetensors"), fuzz.Tally("shards", "cut")
    fuzz.fuzz(bench, [tally, other], range(7, 9))
    assert (tally.tried, tally.broken) == (other.tried, other.broken) == (2, {})
    fuzz.fuzz(bench, [tally], range(9, 99), until=0.0)
    assert tally.tried == 2 and "0 of 90 inputs were tried" in capsys.readouterr().err
    tally.broken[8] = "KeyError: 'x'"
    assert fuzz.report([tally]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split()[-4:-1] == ["2", "1", "1"]
    assert '-n 1 --seed 8 --only "checkpoints/architectures.safetensors"' in said.err
