"""The server under load: vitreous beside LitServe, same model, same requests, same machine, in one run.

    pip install --target /tmp/litserve litserve
    PYTHONPATH=/tmp/litserve .venv/bin/python benchmarks/serve.py [--model digits|tiny] [--rounds 3] [--json]

Each server runs alone, in its own processes; the load comes from one more process on the same cores: N
clients, each with one connection, send their next request when the last one is answered. Both get the same
multipart form. LitServe runs in each of its configurations that make sense here, and the best of them counts
at each load.
`clients 1000` is overload: who is refused, who waits how long.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitreous import console

CLIENTS = (8, 32, 128)
OVERLOAD = 1000
DEADLINE = 10.0
BATCHES = {"max_batch_size": 32, "batch_timeout": 0.002}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
LITSERVE: dict[str, tuple[dict[str, Any], dict[str, str]]] = {  # options, environment
    "litserve": ({}, {}),
    "litserve, batches": (BATCHES, {}),
    "litserve, one thread": ({}, ONE_THREAD),
    "litserve, batches, one thread": (BATCHES, ONE_THREAD),
    "litserve, batches, one thread, fast queue": ({**BATCHES, "fast_queue": True}, ONE_THREAD),
}


@dataclass
class Load:
    """What the clients saw."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    failed: int = 0

    def row(self) -> dict[str, Any]:
        """Return the figures of one load."""
        done, refused = sorted(self.latencies), sorted(self.refused)
        return {
            "requests_per_second": len(done) / self.seconds,
            "p50_ms": 1000 * done[len(done) // 2] if done else None,
            "p99_ms": 1000 * done[int(0.99 * len(done))] if done else None,
            "largest_ms": 1000 * done[-1] if done else None,
            "answered": len(done),
            "refused_429": len(refused),
            "p99_of_429_ms": 1000 * refused[int(0.99 * len(refused))] if refused else None,
            "failed": self.failed,
            "past_deadline": sum(each > DEADLINE for each in done),
        }


class Client(asyncio.Protocol):
    """One connection that always has one request under way; parses no more of HTTP than it needs."""

    def __init__(self, request: bytes, load: Load, until: float) -> None:
        self.request, self.load, self.until = request, load, until
        self.held, self.start = b"", 0.0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._next()

    def _next(self) -> None:
        self.start = time.perf_counter()
        if self.start >= self.until:
            self.transport.close()
        else:
            self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.held += data
        head, found, body = self.held.partition(b"\r\n\r\n")
        if not found:
            return
        place = head.lower().find(b"content-length:")
        if len(body) < int(head[place + 15 :].split(b"\r\n", 1)[0]):
            return
        status, self.held = head[9:12], b""
        took = time.perf_counter() - self.start
        if status == b"200":
            self.load.latencies.append(took)
        elif status == b"429":
            self.load.refused.append(took)
        else:
            self.load.failed += 1
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.load.failed += 1
        if not self.done.done():
            self.done.set_result(None)


async def press(port: int, request: bytes, clients: int, seconds: float) -> Load:
    """Send from `clients` connections for some seconds."""
    load, loop = Load(), asyncio.get_running_loop()
    start = time.perf_counter()
    made = []
    for _ in range(clients):
        _, client = await loop.create_connection(
            lambda: Client(request, load, start + seconds), "127.0.0.1", port
        )
        made.append(client)
    await asyncio.wait([client.done for client in made], timeout=seconds + 2 * DEADLINE)
    load.failed += sum(not client.done.done() for client in made)
    load.seconds = time.perf_counter() - start
    return load


def form(image: bytes, port: int) -> bytes:
    """Return a whole HTTP request with the image in a multipart form."""
    body = (
        b'--edge\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n" + image + b"\r\n--edge--\r\n"
    )
    head = (
        f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n"
        "Content-Type: multipart/form-data; boundary=edge\r\n\r\n"
    )
    return head.encode() + body


def start(kind: str, checkpoint: str, port: int) -> subprocess.Popen[bytes]:
    """Start a server in its own process group."""
    if kind == "vitreous":
        command = ["-m", "vitreous", "serve", checkpoint, "--port", str(port), "--deadline", str(DEADLINE)]
    else:
        peer = str(Path(__file__).with_name("serve_peer.py"))
        command = [peer, checkpoint, str(port), str(DEADLINE), json.dumps(LITSERVE[kind][0])]
    environment = os.environ if kind == "vitreous" else {**os.environ, **LITSERVE[kind][1]}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, *command], start_new_session=True, env=environment, **quiet)


def measure(
    kind: str, checkpoint: str, image: bytes, loads: tuple[int, ...], seconds: float
) -> list[dict[str, Any]]:
    """Start a server, wait until it answers, put every load on it, and end it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = start(kind, checkpoint, port)
    try:
        request = form(image, port)
        _wait(port, request)
        asyncio.run(press(port, request, 8, 1.0))  # warm both ends
        rows = []
        for clients in loads:
            load = asyncio.run(press(port, request, clients, seconds))
            rows.append({"name": kind, "clients": clients, **load.row()})
        return rows
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def median(rows: list[dict[str, Any]], kind: str, clients: int) -> dict[str, Any]:
    """Return the round of a server and a load whose throughput is the median."""
    some = [row for row in rows if row["name"] == kind and row["clients"] == clients]
    return sorted(some, key=lambda row: row["requests_per_second"])[len(some) // 2]


def _wait(port: int, request: bytes, limit: float = 120.0) -> None:
    until = time.monotonic() + limit
    while time.monotonic() < until:
        try:
            if asyncio.run(press(port, request, 1, 0.05)).latencies:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"no server answered on port {port} within {limit:.0f} s")


def prepare(folder: Path, model: str) -> tuple[str, bytes]:
    """Write the checkpoint and return it with one encoded image: a digit, or a photograph for ViT-Ti/16."""
    import io

    import torch
    from PIL import Image

    from vitreous.config import Preprocessing
    from vitreous.data import open_data
    from vitreous.data.augment import evaluation_transform
    from vitreous.models.zoo import create_model
    from vitreous.predict import Classifier

    torch.manual_seed(0)
    held = io.BytesIO()
    if model == "digits":
        shape = {"image_size": 8, "patch_size": 2, "width": 64, "depth": 4, "heads": 4, "mlp_width": 128}
        net = create_model("ViT-B/16", **shape, in_channels=1, num_classes=10)
        transform = evaluation_transform(Preprocessing(image_size=(8, 8), mean=(0.5,), std=(0.5,)), 2)
        open_data("digits").splits["test"].read(0, 1).save(held, "PNG")
    else:
        from sklearn.datasets import load_sample_image

        net = create_model("ViT-Ti/16", num_classes=10)
        transform = evaluation_transform(Preprocessing(resize_size=(256, 256)))
        Image.fromarray(load_sample_image("flower.jpg")).save(held, "JPEG")
    with torch.no_grad():
        net.head.weight.normal_()  # type: ignore[union-attr]
    classifier = Classifier(net.eval(), transform, [str(row) for row in range(10)])
    return str(classifier.save(folder / "model.safetensors")), held.getvalue()


def main() -> None:
    """Measure both servers and print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=["digits", "tiny"], default="digits")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    kinds = ["vitreous"]
    if find_spec("litserve") is None:
        console.warn("litserve is not installed: vitreous is measured alone, no ratio is given")
    else:
        kinds += LITSERVE
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        checkpoint, image = prepare(Path(name), given.model)
        for turn in range(given.rounds):  # turn by turn, so that a busy minute of the machine hits everybody
            for kind in kinds:
                console.note(f"round {turn + 1} of {given.rounds}: {kind}")
                rows += measure(kind, checkpoint, image, (*CLIENTS, OVERLOAD), given.seconds)
    rows = [median(rows, kind, clients) for kind in kinds for clients in (*CLIENTS, OVERLOAD)]
    for row in rows:
        peers = [each for each in rows if each["name"] != "vitreous" and each["clients"] == row["clients"]]
        best = max((each["requests_per_second"] for each in peers), default=None)
        row["ratio"] = row["requests_per_second"] / best if best and row["name"] == "vitreous" else None
    if given.json:
        console.document(rows)
    else:
        console.table(list(rows[0]), [list(row.values()) for row in rows], title=f"{given.model}, 2 cores")


if __name__ == "__main__":
    main()
