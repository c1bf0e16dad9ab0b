"""A server whose machine gets busy after it has measured its pace: what it lets in, and what comes too late.

    .venv/bin/python benchmarks/busy.py [--tree .] [--clients 200] [--cores 1]

The server (ViT-Ti/16, photographs, a deadline of 10 s) has so many cores, and the clients, which send again
as soon as they are answered, another. After a quiet time busy loops begin on the server's cores.
"""

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from serve import DEADLINE, form, prepare

from vitreous import console

PHASES = ("quiet", "busy", "quiet again")
BUSY_LOOP = "while True: pass"
REFUSED_WAIT = 0.25
"""Seconds that a refused client waits before it asks again."""


async def client(port: int, request: bytes, until: float, found: list[tuple[float, int, float]]) -> None:
    """Ask again and again; note when each request was sent, its status, and how long it took."""
    while (start := time.perf_counter()) < until:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while (start := time.perf_counter()) < until:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                found.append((start, int(head[9:12]), time.perf_counter() - start))
                if head[9:12] == b"429":
                    await asyncio.sleep(REFUSED_WAIT)
        except (OSError, asyncio.IncompleteReadError):
            found.append((start, 0, time.perf_counter() - start))
        finally:
            writer.close()


async def press(
    port: int, request: bytes, clients: int, loops: int, cores: str, seconds: tuple[float, ...]
) -> tuple[list[tuple[float, int, float]], list[float]]:
    """Put the load on the server while its machine is quiet, busy, and quiet again."""
    found: list[tuple[float, int, float]] = []
    begin = time.perf_counter()
    ends = [begin + sum(seconds[: number + 1]) for number in range(3)]
    tasks = [asyncio.create_task(client(port, request, ends[-1], found)) for _ in range(clients)]
    await asyncio.sleep(seconds[0])
    command = ["taskset", "-c", cores, sys.executable, "-c", BUSY_LOOP]
    neighbours = [subprocess.Popen(command) for _ in range(loops)]
    await asyncio.sleep(seconds[1])
    for each in neighbours:
        each.kill()
        each.wait()
    await asyncio.gather(*tasks)
    return found, ends


def start(tree: Path, checkpoint: str, port: int, cores: str) -> subprocess.Popen[bytes]:
    """Start the server of some checkout on some cores, and wait until it is ready."""
    command = ["taskset", "-c", cores, sys.executable, "-m", "vitreous", "serve", checkpoint]
    command += ["--port", str(port), "--deadline", str(DEADLINE)]
    server = subprocess.Popen(command, cwd=tree, stderr=subprocess.DEVNULL, start_new_session=True)
    ask = b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    for _ in range(600):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
                sock.sendall(ask)
                if sock.recv(64).startswith(b"HTTP/1.1 200"):
                    return server
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server did not get ready within a minute")


def main() -> None:
    """Run the three phases and print what became of the requests that were sent in each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=Path(), help="the checkout whose server is tried")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--cores", type=int, default=1, help="cores of the server")
    parser.add_argument("--loops", type=int, default=4, help="busy loops on these cores")
    parser.add_argument("--seconds", type=float, nargs=3, default=(10.0, 20.0, 10.0))
    given = parser.parse_args()
    every = sorted(os.sched_getaffinity(0))
    cores = ",".join(map(str, every[: given.cores]))
    os.sched_setaffinity(0, every[-1:])
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as free:
        checkpoint, image = prepare(Path(name), "tiny")
        port = free.getsockname()[1]
        free.close()
        server = start(given.tree, checkpoint, port, cores)
        try:
            load = press(port, form(image, port), given.clients, given.loops, cores, tuple(given.seconds))
            found, ends = asyncio.run(load)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(30)
    rows = []
    for number, phase in enumerate(PHASES):
        first = ends[number] - given.seconds[number]
        some = [(status, took) for sent, status, took in found if first <= sent < ends[number]]
        counts = Counter(status for status, _ in some)
        longest = max((took for status, took in some if status == 200), default=0.0)
        others = sum(count for status, count in counts.items() if status not in (200, 429, 504))
        rows.append([phase, counts[200] + counts[504], counts[504], counts[429], others, round(longest, 1)])
    console.table(["sent while", "let in", "too late", "refused", "other", "longest s"], rows)


if __name__ == "__main__":
    main()
