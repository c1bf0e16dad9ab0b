"""Work in processes that can be ended: time, memory and crashes cost one picture; nothing is left over."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil
import pytest

from vitreous.data.guarded import TooCostly, Workers
from vitreous.errors import DataError

MEMORY = 64 << 20


def act(data: bytes) -> list[np.ndarray]:
    """Do what the bytes say."""
    if data == b"sleep":
        time.sleep(60)
    if data == b"spin":
        while True:
            pass
    if data == b"memory":
        np.empty(1 << 32, np.uint8)  # no heap that a worker is forked with has so much free in it
    if data == b"crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if data == b"bad":
        raise DataError("image: damaged")
    if data == b"says":
        os.write(2, b"TIFFReadDirectory: something is odd\n")
    if data == b"files":
        return [np.array([len(os.listdir("/proc/self/fd"))], np.uint8)]
    return [np.frombuffer(data, np.uint8).reshape(-1, 2), np.array([True, False])]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers(act, MEMORY)
    yield made
    made.close()


def test_arrays_come_back_as_they_are(workers: Workers) -> None:
    data = bytes(range(256)) * 8192  # more than a socket holds
    (pixels, mask), said = workers.run(data, 30.0)
    assert pixels.shape == (len(data) // 2, 2) and pixels.tobytes() == data and said == ""
    assert mask.dtype == bool and mask.tolist() == [True, False] and pixels.flags.writeable


@pytest.mark.parametrize(
    ("data", "kind", "match"),
    [
        (b"sleep", TooCostly, "longer than 0.3 s"),
        (b"spin", TooCostly, "longer than 0.3 s"),
        (b"memory", TooCostly, "memory"),
        (b"crash", TooCostly, "memory, or a crash"),
        (b"bad", DataError, "image: damaged"),
        (b"odd", RuntimeError, "(?s)in act.*cannot reshape"),
    ],
)
def test_what_is_wrong_costs_itself_only(
    workers: Workers, data: bytes, kind: type[Exception], match: str
) -> None:
    seconds = 0.3 if data in (b"sleep", b"spin") else 30.0
    with pytest.raises(kind, match=match):
        workers.run(data, seconds)
    assert workers.run(b"ab", 30.0)[0][0].tolist() == [[97, 98]]


def test_libraries_do_not_write_into_our_log(workers: Workers, capfd: pytest.CaptureFixture[str]) -> None:
    assert workers.run(b"says", 30.0)[1] == "TIFFReadDirectory: something is odd\n"
    assert workers.run(b"ab", 30.0)[1] == "" and capfd.readouterr().err == ""


def test_a_worker_holds_nothing_that_is_open_here(workers: Workers) -> None:
    count = int(workers.run(b"files", 30.0)[0][0][0])
    assert count <= 7  # three streams, its socket, the pipe that replaces stderr, the listing itself


def gone(process: Callable[[], bool]) -> bool:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if process():
            return True
        time.sleep(0.02)
    return False


def test_nothing_is_left_over() -> None:
    made = Workers(act, MEMORY)
    made.run(b"ab", 30.0)
    family = [psutil.Process(made.template), *psutil.Process(made.template).children()]
    assert len(family) == 2
    made.close()
    assert gone(lambda: not any(each.is_running() and each.status() != "zombie" for each in family))


def test_a_template_that_was_killed_is_replaced() -> None:
    made = Workers(act, MEMORY)
    os.kill(made.template, signal.SIGKILL)
    os.waitid(os.P_PID, made.template, os.WEXITED | os.WNOWAIT)
    assert made.run(b"ab", 30.0)[0][0].tolist() == [[97, 98]]
    made.close()


def test_orphans_end() -> None:
    """When the process that has asked is gone, its workers are too."""
    reading, writing = os.pipe()
    if (parent := os.fork()) == 0:
        made = Workers(act, MEMORY)
        made.run(b"ab", 30.0)
        children = psutil.Process(made.template).children()
        os.write(writing, " ".join(map(str, [made.template, *(each.pid for each in children)])).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    processes = [int(each) for each in os.read(reading, 1000).split()]
    assert len(processes) == 2
    assert gone(lambda: not any(psutil.pid_exists(each) for each in processes))
