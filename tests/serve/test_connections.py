"""Connections that cost themselves only: heads without end, silence, crowds, upgrades, a parting in peace."""

import json
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.hostile import requests
from tests.serving import Running, running
from vitreous.serve.crowd import Crowd, neighbourhood, room_for

SOON = 20.0
"""Seconds after which a test gives up waiting."""


@pytest.fixture(scope="module")
def strict(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose limits are reached in moments."""
    limits = {"head_seconds": 1.0, "idle_seconds": 1.5, "connections": 24, "connections_each": 16}
    folder = tmp_path_factory.mktemp("strict")
    with running(checkpoint, folder, "--deadline", "2", **limits) as server:
        yield server


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=SOON)


def received(sock: socket.socket) -> bytes:
    """Read until the server closes."""
    held = b""
    try:
        while piece := sock.recv(65536):
            held += piece
    except ConnectionResetError:
        pass
    return held


def answer(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read until the server closes; return status, headers and body of the first answer."""
    first, _, body = received(sock).partition(b"\r\n\r\n")
    lines = first.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), headers, body


def status_of(sock: socket.socket) -> int:
    """Read one whole answer and leave the connection open; return its status."""
    held = b""
    while b"\r\n\r\n" not in held:
        held += sock.recv(65536)
    first, _, body = held.partition(b"\r\n\r\n")
    length = int(first.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(65536)
    return int(first[9:12])


def problem(sock: socket.socket) -> tuple[int, str]:
    status, headers, body = answer(sock)
    assert headers["content-type"] == "application/json" and headers["connection"] == "close"
    found = json.loads(body)
    assert set(found) == {"error", "message", "request_id"}
    return status, found["error"]


def send_all(sock: socket.socket, pieces: Iterable[bytes]) -> int:
    sent = 0
    try:
        for piece in pieces:
            sock.sendall(piece)
            sent += len(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass
    return sent


@pytest.mark.parametrize("one", [True, False])
def test_a_head_without_end_is_refused(strict: Running, one: bool) -> None:
    memory = psutil.Process(strict.pid).memory_info().rss
    with ExitStack() as stack:
        for _ in range(8):
            sent = send_all(stack.enter_context(connect(strict)), requests.endless_head(512, one=one))
            assert sent < 16 * 2**20, "32 MiB of headers were read"
        assert psutil.Process(strict.pid).memory_info().rss - memory < 32e6
    with connect(strict) as sock:
        send_all(sock, requests.endless_head(2, one=one))
        assert problem(sock) == (431, "headers_too_large")


def test_a_trailer_without_end_is_refused(strict: Running) -> None:
    with connect(strict) as sock:
        assert send_all(sock, requests.endless_trailer(512)) < 16 * 2**20


def test_long_headers_within_the_limit_are_read(strict: Running, image: bytes) -> None:
    with connect(strict) as sock:
        for _ in range(2):  # again on the same connection
            sock.sendall(requests.post(image, X_Long="x" * 30_000))
            assert status_of(sock) == 200
        sock.sendall(requests.post(image, X_Long="x" * 33_000))
        assert problem(sock) == (431, "headers_too_large")


def test_silence_and_slowness_are_cut_off(strict: Running, image: bytes) -> None:
    with connect(strict) as silent, connect(strict) as slow, connect(strict) as idle, connect(strict) as body:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127")
        idle.sendall(requests.head("/healthz", "GET"))
        assert status_of(idle) == 200
        # Answered (no such path) while most of the body is still to come, byte by byte
        body.sendall(requests.head("/nowhere", Content_Length=10_000))
        assert status_of(body) == 404
        assert problem(slow) == (408, "headers_too_slow")
        assert silent.recv(1) == b"" and idle.recv(1) == b""
        until = time.monotonic() + SOON
        try:
            while time.monotonic() < until:
                body.sendall(b"x")
                time.sleep(0.1)
            pytest.fail("a body may arrive for ever")
        except (BrokenPipeError, ConnectionResetError):
            pass


def test_a_crowd_does_not_shut_others_out(strict: Running) -> None:
    """Far more connections than the limit, silent or with half a request, and one that only asks."""
    with ExitStack() as stack:
        for number in range(60):
            sock = stack.enter_context(connect(strict))
            if number % 2:
                sock.sendall(b"POST /predict HTTP/1.1\r\n")
            if number % 20 == 0:
                assert httpx.get(f"{strict.url}/healthz", timeout=SOON).status_code == 200
        assert httpx.get(f"{strict.url}/healthz", timeout=SOON).status_code == 200
        assert psutil.Process(strict.pid).num_fds() < 24 + 200


class Someone:
    def __init__(self, address: str, unread: int = 0) -> None:
        self.address, self.unread, self.gone = address, unread, False

    def give_way(self) -> None:
        self.gone = True

    cut = give_way


def test_who_gives_way() -> None:
    crowd = Crowd(most=4, most_each=3, most_unread=100)
    first, second, busy, friend, late = (Someone(name) for name in "aaabb")
    for each in (first, second, busy):
        assert crowd.enter(each)
        crowd.waits(each)
    crowd.works(busy)
    fourth = Someone("a")
    assert crowd.enter(fourth) and first.gone and not second.gone  # the longest waiting of its own address
    crowd.leave(first)
    crowd.waits(fourth)
    assert crowd.enter(friend) and not second.gone
    crowd.works(friend)
    assert crowd.enter(late) and second.gone  # in all: whose address has most of those that wait
    crowd.leave(second)
    for each in (fourth, busy):
        crowd.works(each)
    assert not crowd.enter(Someone("c")), "everybody is being answered"


def test_answers_that_nobody_reads_are_limited_in_all() -> None:
    crowd = Crowd(most=8, most_each=8, most_unread=100)
    first, second, third, large = Someone("a", 60), Someone("b", 30), Someone("c", 20), Someone("d", 500)
    for each in (first, second, third, large):
        crowd.enter(each)
    crowd.stops_reading(first)
    crowd.stops_reading(second)
    assert not first.gone
    crowd.stops_reading(third)
    assert first.gone and not second.gone, (
        "the one that has not read for longest goes, and no more than needed"
    )
    crowd.reads(second)
    crowd.stops_reading(large)  # one answer of any size is sent
    assert third.gone and not second.gone and not large.gone
    crowd.leave(large)
    assert not crowd.stuck


def test_addresses_and_files() -> None:
    assert neighbourhood("10.0.0.1") == neighbourhood("::ffff:10.0.0.1") == "10.0.0.1"
    assert neighbourhood("2001:db8::1") == neighbourhood("2001:db8::2") != neighbourhood("2001:db8:0:1::1")
    assert room_for(16) == 16


def test_a_wish_for_http2_is_passed_over(strict: Running, image: bytes) -> None:
    with connect(strict) as sock:
        for _ in range(2):
            sock.sendall(requests.upgraded(image))
            assert status_of(sock) == 200
        whole = requests.upgraded(image)
        for start in range(0, len(whole), 50):  # piece by piece
            sock.sendall(whole[start : start + 50])
            time.sleep(0.002)
        assert status_of(sock) == 200


@pytest.mark.parametrize(
    "sent",
    [b"nonsense\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
     b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_http_gets_json_too(strict: Running, sent: bytes) -> None:
    with connect(strict) as sock:
        sock.sendall(sent)
        assert problem(sock) == (400, "malformed")


def test_requests_sent_ahead_are_answered_in_order_and_limited(strict: Running) -> None:
    with connect(strict) as sock:
        sock.sendall(requests.head("/healthz", "GET") + requests.head("/nowhere", "GET", Connection="close"))
        held = b""
        while piece := sock.recv(65536):
            held += piece
        assert held.index(b"HTTP/1.1 200") < held.index(b"HTTP/1.1 404")
    with connect(strict) as sock:
        sock.sendall(requests.head("/healthz", "GET") * 2000)
        assert received(sock).count(b"HTTP/1.1 200") < 100


def test_sigterm_parts_in_peace(checkpoint: Path, image: bytes, tmp_path: Path) -> None:
    """A client that keeps asking on one connection gets an answer that says that it is the last."""
    with running(checkpoint, tmp_path) as server, connect(server) as sock, connect(server) as idle:
        sock.sendall(requests.post(image))
        assert status_of(sock) == 200
        server.process.terminate()
        time.sleep(0.4)  # the server looks ten times a second whether it should end
        sock.sendall(requests.post(image))
        status, headers, _ = answer(sock)
        assert status == 200 and headers["connection"] == "close"
        assert idle.recv(1) == b""
        assert server.stop() == 0


def test_every_line_of_the_log_is_json(strict: Running) -> None:
    lines = strict.log.read_text().splitlines()
    found: list[dict[str, Any]] = [json.loads(line) for line in lines if not line.startswith("vitreous")]
    assert {"refused", "request"} <= {line["event"] for line in found}
    assert not any("traceback" in line for line in found)
