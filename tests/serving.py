"""A real server in its own process, for the tests of the server and of its page."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import httpx
import torch

from tests.forks import FORKS, say_into
from vitreous import cli
from vitreous.predict import Classifier
from vitreous.serve import start


@dataclass
class Running:
    """A server that answers."""

    process: ForkServerProcess
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def stop(self, seconds: float = 30) -> int | None:
        """Send SIGTERM and return the exit status."""
        self.process.terminate()
        self.process.join(seconds)
        return self.process.exitcode


@contextmanager
def running(
    checkpoint: Path, folder: Path, *flags: str, seconds: float = 0.0, **changes: Any
) -> Iterator[Running]:
    """Serve a checkpoint, learn the port from the line that is printed, and end the server at the end.

    Its model takes so many `seconds` longer for each image; `changes` are settings that have no flag.
    """
    log = folder / "server.log"
    log.touch()
    arguments = ["serve", str(checkpoint), "--port", "0", *flags]
    process = FORKS.Process(target=_serve, args=(arguments, log, seconds, changes))
    process.start()
    try:
        server = Running(process, _port(process, log), log)
        until_ready(server.url)
        yield server
    finally:
        process.kill()
        process.join()


def _serve(arguments: list[str], log: Path, seconds: float, changes: dict[str, Any]) -> None:
    say_into(log)
    given = start.settings
    start.settings = lambda **flags: replace(given(**flags), **changes)
    torch.set_num_threads(1)
    original = Classifier.probabilities

    def slow(self: Classifier, images: torch.Tensor, mask: None) -> torch.Tensor:
        time.sleep(seconds * len(images))
        return original(self, images, mask)

    if seconds:
        Classifier.probabilities = slow
    sys.exit(cli.main(arguments))


def _port(process: ForkServerProcess, log: Path) -> int:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.is_alive():
        if found := re.search(r"http://\S+:(\d+)/", log.read_text()):
            return int(found[1])
        time.sleep(0.02)
    raise AssertionError(f"the server did not start: {log.read_text()}")


def until_ready(url: str) -> None:
    """Wait until the model of a server is warm."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"the server at {url} did not get ready")
