"""A server from its start to its end: settings, warming up, overload, a quiet end."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from starlette.testclient import TestClient

from tests.serve_client import client, post, wait_until_ready
from tests.serving import Running, running, until_ready
from vitreous import cli
from vitreous.errors import VitreousError
from vitreous.predict import Classifier
from vitreous.serve import start
from vitreous.serve.app import create_app
from vitreous.serve.settings import Settings

ROOT = Path(__file__).parents[2]


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match="--deadline 0 is out of range"):
        start.settings(deadline=0)
    with pytest.raises(VitreousError, match="is not an origin"):
        start.settings(allow_origin=("example.org",))
    (tmp_path / "token").write_text("short")
    with pytest.raises(VitreousError, match="16 or more"):
        start.settings(token_file=tmp_path / "token")
    with pytest.raises(VitreousError, match="No such file"):
        start.settings(token_file=tmp_path / "missing")
    assert start.settings(host="10.0.0.5").hosts[-1] == "10.0.0.5"
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(VitreousError, match="Address already in use"),
    ):
        start.listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(VitreousError, match="port 99999 does not exist"):
        start.listen("127.0.0.1", 99999)


def test_a_missing_checkpoint_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["serve", str(tmp_path / "none.safetensors")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_not_ready_until_warm(
    digits: Classifier, image: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = threading.Event()
    original = Classifier.probabilities
    monkeypatch.setattr(Classifier, "probabilities", lambda *given: (gate.wait(20), original(*given))[1])
    with client(digits) as made:
        assert made.get("/healthz").status_code == 200
        for answer in (made.get("/readyz"), post(made, image)):
            assert (answer.status_code, answer.json()["error"]) == (503, "not_ready")
            assert answer.headers["Retry-After"] == "1"
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        levels = {each["path"]: each["level"] for each in lines if each["event"] == "request"}
        gate.set()
        wait_until_ready(made)
        assert post(made, image).status_code == 200
    assert levels == {"/healthz": "info", "/readyz": "info", "/predict": "error"}  # to ask is no error


def test_a_model_that_cannot_be_warmed_ends_the_server(
    digits: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Classifier, images: Any, mask: Any) -> Any:
        raise VitreousError("the device is gone")

    monkeypatch.setattr(Classifier, "probabilities", broken)
    failures: list[BaseException] = []
    app = create_app(digits, "digits", Settings(hosts=("testserver",)), failures.append)
    with TestClient(app) as made:
        until = time.monotonic() + 20
        while not failures:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert made.get("/readyz").status_code == 503
    assert str(failures[0]) == "the device is gone"


def test_the_command_serves_in_a_fresh_process(checkpoint: Path, tmp_path: Path) -> None:
    """The other servers are forked from a process that has imported everything."""
    command = [sys.executable, "-m", "vitreous", "serve", str(checkpoint), "--port", "0"]
    command += ["--examples", "digits"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        until = time.monotonic() + 60
        while not (found := re.search(r"http://\S+/", (tmp_path / "log").read_text())):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        until_ready(found[0].rstrip("/"))
        assert httpx.get(f"{found[0]}examples").json() == [f"{digit + 1}-{digit}.png" for digit in range(8)]
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_sigterm_lets_requests_finish(checkpoint: Path, image: bytes, tmp_path: Path) -> None:
    with running(checkpoint, tmp_path, seconds=0.3, max_batch=1) as server:
        found: list[httpx.Response] = []
        header = {"Content-Type": "image/png"}

        def send() -> None:
            found.append(httpx.post(f"{server.url}/predict", content=image, headers=header, timeout=30))

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 10
        while httpx.get(f"{server.url}/metrics").text.find("vitreous_images_inside 3.0") < 0:
            assert time.monotonic() < until
        assert server.stop() == 0
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in found] == [200, 200, 200]


def test_overload_is_answered_or_refused_and_keeps_nothing(
    checkpoint: Path, image: bytes, tmp_path: Path
) -> None:
    """A hundred clients at a queue of eight: each request has an answer, and memory does not grow with them.

    That what is let in is answered in time is shown by a made clock in `test_batcher`, and on a real machine
    by `benchmarks/busy.py`."""
    with running(checkpoint, tmp_path, "--deadline", "120", "--queue", "8", seconds=0.01) as server:
        memory = psutil.Process(server.pid)
        asyncio.run(_press(server, image, clients=100, requests=2))
        before = memory.memory_info().rss
        found = asyncio.run(_press(server, image, clients=100, requests=20))
        growth = memory.memory_info().rss - before
    assert set(found) == {200, 429} and sum(found.values()) == 2000
    assert growth < 30e6


async def _press(server: Running, image: bytes, clients: int, requests: int) -> Counter[int]:
    """Let each client send its requests one after the other; count the statuses of the answers."""
    head = "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
    head += f"Content-Length: {len(image)}\r\n\r\n"
    found: Counter[int] = Counter()

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(requests):
            writer.write(head.encode() + image)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            found[int(answer[9:12])] += 1
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(one() for _ in range(clients)))
    return found
