"""Try hostile pictures, shards, weights and requests, each in a process of its own: `make fuzz N=40`.

Held is what ends within its time and memory with one clear line or a right answer. What is broken is shown
with the command that tries it again. Nothing here is part of `make test`.
"""

import argparse
import importlib
import io
import itertools
import json
import math
import os
import random
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image

from tests.hostile import checkpoints
from tests.serving import Running, running
from vitreous import api, console
from vitreous.errors import VitreousError
from vitreous.predict import Classifier, load

KINDS = ("pictures", "checkpoints", "shards", "requests")
LONGEST_LINE = 1000
REFUSALS = (503, 504)  # of an answer above 499: too busy, too slow

Makers = dict[str, Callable[[random.Random], bytes]]


class Limits(NamedTuple):
    """What one input may cost."""

    seconds: float
    mebibytes: int


@dataclass
class Tally:
    """How the inputs of one maker ended."""

    kind: str
    maker: str
    tried: int = 0
    broken: dict[int, str] = field(default_factory=dict)
    """What went wrong, by seed."""
    slowest: float = 0.0


class Bench:
    """What hostile inputs are tried on: a small model, a folder, and a server where one is wanted."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self.checkpoint = folder / "model.safetensors"
        (data,) = checkpoints.whole("vitreous").values()
        self.checkpoint.write_bytes(data)
        self.classifier: Classifier = load(self.checkpoint)
        self.server: Running | None = None

    def pictures(self, maker: str, data: bytes, place: Path) -> None:
        """Predict a picture, then look through data that has it."""
        for name in ("a", "b"):
            (place / "data" / name).mkdir(parents=True)
            for number in range(3):
                good = Image.new("RGB", (20, 20), (90 * number, 10 * len(name), ord(name)))
                good.save(place / "data" / name / f"{number}.png")
        path = place / "data" / "a" / "hostile.png"
        path.write_bytes(data)
        refused(lambda: answered(self.classifier, path))
        api.check(str(place / "data"))

    def checkpoints(self, maker: str, data: bytes, place: Path) -> None:
        """Load a file of weights, and predict with it if it can be loaded."""
        path = checkpoints.place(maker, data, place)
        heads = {} if path.is_dir() else {"heads": 2}
        refused(lambda: answered(load(path, **heads), Image.new("RGB", (20, 20))))

    def shards(self, maker: str, data: bytes, place: Path) -> None:
        """Look through a shard."""
        (place / "train-000000.tar").write_bytes(data)
        refused(lambda: api.check(str(place / "train-000000.tar")))

    def requests(self, maker: str, data: bytes, place: Path) -> None:
        """Send the bytes to the server, which has to answer, or to hang up, and then to be well."""
        assert self.server is not None
        status = sent(self.server.port, data, self.limits.seconds)
        if status is not None and status > 499 and status not in REFUSALS:
            raise AssertionError(f"answered with {status}")
        if sent(self.server.port, b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n", 10) != 200:
            raise AssertionError("the server is no longer ready")
        if memory(self.server.pid) > self.limits.mebibytes + 2048:
            raise AssertionError(f"the server holds {memory(self.server.pid)} MiB")


def answered(classifier: Classifier, picture: Path | Image.Image) -> None:
    """Predict, and see that the answer is one."""
    (found,) = classifier.predict(picture)
    json.dumps(found.to_dict(), allow_nan=False)
    if not math.isfinite(found.probability):
        raise AssertionError(f"the probability is {found.probability}")


def refused(work: Callable[[], object]) -> None:
    """Do the work; a refusal has to be one line of some length."""
    try:
        work()
    except VitreousError as error:
        line = str(error)
        if "\n" in line or not 10 < len(line) < LONGEST_LINE:
            raise AssertionError(f"refused in {len(line):,} characters: {line[:80]!r}") from error


def sent(port: int, data: bytes, seconds: float) -> int | None:
    """Send bytes to the server; return the status of its answer, None if it hangs up without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        try:
            connection.sendall(data)
            if not select.select([connection], [], [], 1.0)[0]:  # a whole request may take longer to answer
                connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(64)
        except (BrokenPipeError, ConnectionResetError):
            return None
    parts = answer.split(b" ", 2)
    return int(parts[1]) if len(parts) > 1 else None


def memory(pid: int) -> int:
    """Return the memory that a process holds, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 20


def attempt(work: Callable[[], None], limits: Limits) -> tuple[str, float]:
    """Do the work in a fork; return what went wrong, if anything, and how long it took."""
    started = time.monotonic()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(work, writing)
    os.close(writing)
    said = _said(reading, started + limits.seconds)
    if said is None:
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    took = time.monotonic() - started
    if said is None:
        return f"still running after {limits.seconds:g} s", took
    if status:
        return f"ended by {status}", took
    before, _, said = said.partition(" ")
    peak = (usage.ru_maxrss >> 10) - int(before)
    if peak > limits.mebibytes:
        return f"took {peak:,} MiB", took
    return said, took


def _child(work: Callable[[], None], writing: int) -> None:
    """Say what memory is held, do the work, say in one line what went wrong; end without cleaning up."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.write(writing, f"{memory(os.getpid())} ".encode())
    try:
        work()
        line = ""
    except BaseException as error:  # whatever it is, it is what was looked for
        line = f"{type(error).__name__}: {str(error)[:200]}"
    os.write(writing, " ".join(line.split()).encode("utf-8", "replace"))
    os._exit(0)


def _said(reading: int, until: float) -> str | None:
    """Return what the child says until it closes the pipe, or None where it takes too long."""
    said = io.BytesIO()
    try:
        while True:
            if not select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            if not (part := os.read(reading, 65536)):
                return said.getvalue().decode("utf-8", "replace")
            said.write(part)
    finally:
        os.close(reading)


def makers(kind: str) -> Makers:
    """Return the makers of one kind of input; none where they are not written."""
    try:
        module = importlib.import_module(f"tests.hostile.{kind}")
    except ModuleNotFoundError:
        return {}
    return getattr(module, "MAKERS", {})


def fuzz(bench: Bench, tallies: Sequence[Tally], seeds: range, until: float = math.inf) -> None:
    """Try what each maker makes from the first seed, then from the next, until the seeds or the time end."""
    total = len(tallies) * len(seeds)
    bar = console.ProgressBar(total, what="input")
    for number, (seed, tally) in enumerate(itertools.product(seeds, tallies)):
        if time.monotonic() > until:
            console.warn(f"the time is over: {number:,} of {total:,} inputs were tried; more with --minutes")
            break
        bar.update(number, total, f"{tally.kind}/{tally.maker}")
        data, place = makers(tally.kind)[tally.maker](random.Random(seed)), bench.folder / "try"
        place.mkdir()
        work = getattr(bench, tally.kind)
        wrong, took = attempt(lambda d=data, p=place, t=tally, w=work: w(t.maker, d, p), bench.limits)
        shutil.rmtree(place)
        tally.tried += 1
        tally.slowest = max(tally.slowest, took)
        if wrong:
            tally.broken[seed] = wrong
    bar.close()


def wanted(only: str) -> Iterator[tuple[str, str]]:
    """Yield the makers whose `kind/name` has this text in it."""
    for kind in KINDS:
        found = makers(kind)
        if not found:
            console.note(f"{kind}: skipped, tests/hostile/{kind}.py has no MAKERS")
        yield from ((kind, name) for name in found if only in f"{kind}/{name}")


def main() -> int:
    """Try what the command line names; return 1 if anything was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=40, help="inputs of each maker")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; each input has the next")
    parser.add_argument("--only", default="", help="makers whose kind/name has this in it")
    parser.add_argument("--seconds", type=float, default=30.0, help="what one input may take")
    parser.add_argument("--mebibytes", type=int, default=1024, help="memory that one input may take")
    parser.add_argument(
        "--minutes", type=float, default=15.0, help="when to stop, with what was tried until then"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)  # forks of a process with threads may hang
    tallies = [Tally(kind, name) for kind, name in wanted(options.only)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))
        bench = Bench(folder, Limits(options.seconds, options.mebibytes))
        bench.classifier.predict(Image.new("RGB", (20, 20)))  # what is imported late is in every fork
        if any(each.kind == "requests" for each in tallies):
            bench.server = stack.enter_context(running(bench.checkpoint, folder))
        seeds = range(options.seed, options.seed + options.n)
        fuzz(bench, tallies, seeds, time.monotonic() + 60 * options.minutes)
    return report(tallies)


def report(tallies: list[Tally]) -> int:
    """Show the table, and how to try again what was broken."""
    rows = [
        [each.kind, each.maker, each.tried, each.tried - len(each.broken), len(each.broken), each.slowest]
        for each in tallies
    ]
    console.table(["kind", "maker", "tried", "held", "broken", "slowest s"], rows)
    for each in tallies:
        for seed, wrong in each.broken.items():
            console.note(f"{each.kind}/{each.maker}, seed {seed}: {wrong}")
            again = f'-n 1 --seed {seed} --only "{each.kind}/{each.maker}"'
            console.note(f"  python -m tests.hostile.fuzz {again}")
    broken = sum(len(each.broken) for each in tallies)
    console.note(f"{sum(each.tried for each in tallies) - broken} held, {broken} broken")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
