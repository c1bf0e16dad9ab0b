"""A real server in its own process, for the tests of the server and of its page."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx


@dataclass
class Running:
    """A server that answers."""

    process: "subprocess.Popen[str]"
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self, seconds: float = 30) -> int:
        """Send SIGTERM and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


@contextmanager
def running(command: list[str], folder: Path, *, ready: bool = True) -> Iterator[Running]:
    """Start a server with `--port 0`, learn its port from the line that it prints, and end it at the end."""
    log = folder / "server.log"
    with log.open("w") as stream:
        # A script has its own folder first on its path: the package must come from this tree all the same.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
        process = subprocess.Popen(
            [sys.executable, *command, "--port", "0"],
            stdout=stream,
            stderr=stream,
            text=True,
            env=environment,
        )
    try:
        server = Running(process, _port(process, log), log)
        if ready:
            _until_ready(server)
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _port(process: "subprocess.Popen[str]", log: Path) -> int:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"http://\S+:(\d+)/", log.read_text()):
            return int(found[1])
        time.sleep(0.05)
    raise AssertionError(f"the server did not start: {log.read_text()}")


def _until_ready(server: Running) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if httpx.get(f"{server.url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"the server did not get ready: {server.log.read_text()}")
