"""SIGTERM, SIGHUP and Ctrl-C: a checkpoint first, also where the loader's workers get the signal too."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forks import FORKS
from tests.training.runs import assert_same_run, assert_same_weights, records, run, slow, weights
from vitreous.data import Batch
from vitreous.data.host import HostLoader
from vitreous.errors import DataError
from vitreous.objectives.supervised import Supervised
from vitreous.training import Result
from vitreous.training.signals import StopSignal


def test_before_the_loop_a_signal_ends_at_once() -> None:
    """There is nothing to save yet; in the loop it is a wish. Afterwards signals mean what they did."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number, error in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
        with StopSignal() as stop:
            assert not stop.received
            with pytest.raises(error) as ended:
                signal.raise_signal(number)
            assert number == signal.SIGINT or ended.value.code == 143  # type: ignore[attr-defined]
        with StopSignal() as stop:
            stop.armed = True
            signal.raise_signal(number)
            assert stop.received
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_thread_leaves_signals_alone() -> None:
    """Python lets the main thread alone handle them: a run in a notebook's thread goes without."""
    entered: list[bool] = []

    def enter() -> None:
        with StopSignal() as stop:
            entered.append(stop.received)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [False]


def test_what_nohup_started_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            stop.armed = True
            signal.raise_signal(signal.SIGHUP)
            assert not stop.received
    finally:
        signal.signal(signal.SIGHUP, before)


def _stopped_while_evaluating(data: str, out: Path, last: bool) -> None:
    """Get a signal as the first evaluation begins, or as the last does."""
    evaluate, count = Supervised.evaluate, 0

    def interrupted(self: Supervised, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == (6 if last else 1):
            signal.raise_signal(signal.SIGTERM)
        return evaluate(self, *arguments)

    Supervised.evaluate = interrupted  # type: ignore[method-assign]
    run(data, out)


@pytest.mark.parametrize("last", [False, True])
def test_an_evaluation_that_a_signal_stopped_is_made_up_for(
    data: str, tmp_path: Path, undisturbed: Result, last: bool
) -> None:
    """The model that it would have chosen is chosen all the same."""
    child = FORKS.Process(target=_stopped_while_evaluating, args=(data, tmp_path / "run", last))
    child.start()
    child.join(60)
    assert child.exitcode == 143
    assert len(records(tmp_path / "run", "val")) == (5 if last else 0)
    run(data, tmp_path / "run")
    assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_signals_stop_with_a_checkpoint(
    data: str, tmp_path: Path, undisturbed: Result, number: signal.Signals, status: int
) -> None:
    ready = FORKS.Event()
    child = FORKS.Process(target=slow, args=(data, tmp_path / "run", ready, 0.2))
    child.start()
    assert ready.wait(60) and child.pid
    os.kill(child.pid, number)
    child.join(60)
    assert child.exitcode == status
    latest = (tmp_path / "run" / "resume" / ".latest").read_text()
    assert latest in ("step-00000004\n", "step-00000005\n")  # the step under way was finished
    run(data, tmp_path / "run")
    assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_to_the_workers_too(
    pictures: str, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """A terminal and a batch system signal every process of the run, also those that read images."""
    ready = FORKS.Event()
    child = FORKS.Process(target=slow, args=(pictures, tmp_path / "run", ready, 0.3, "--workers", "2"))
    child.daemon = False
    child.start()
    assert ready.wait(60) and child.pid
    os.killpg(child.pid, number)
    child.join(30)
    assert child.exitcode == status
    run(pictures, tmp_path / "run", workers=0)
    run(pictures, tmp_path / "whole", workers=1)
    assert_same_weights(weights(tmp_path / "run"), weights(tmp_path / "whole"))


@pytest.mark.parametrize("signalled", [False, True])
def test_workers_that_end_are_an_error_unless_a_signal_came(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signalled: bool
) -> None:
    """With one they were told to, as the run was: it saves the steps that it took, and leaves."""
    epoch = HostLoader.epoch

    def ending(self: HostLoader, *arguments: Any, **options: Any) -> Iterator[Batch]:
        for count, batch in enumerate(epoch(self, *arguments, **options)):
            if count == 3:
                if signalled:
                    signal.raise_signal(signal.SIGTERM)
                raise DataError("a worker ended")
            yield batch

    monkeypatch.setattr(HostLoader, "epoch", ending)
    with pytest.raises(SystemExit if signalled else DataError):
        run(data, tmp_path)
    latest = (tmp_path / "resume" / ".latest").read_text()
    assert latest == ("step-00000003\n" if signalled else "step-00000000\n")


def test_a_second_signal_ends_at_once(data: str, tmp_path: Path) -> None:
    ready = FORKS.Event()
    child = FORKS.Process(target=slow, args=(data, tmp_path / "run", ready, 60.0))
    child.start()
    assert ready.wait(60) and child.pid
    os.kill(child.pid, signal.SIGTERM)
    time.sleep(0.3)
    assert child.is_alive()
    os.kill(child.pid, signal.SIGTERM)
    child.join(5)
    assert child.exitcode == 143
