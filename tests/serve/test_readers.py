"""Clients that ask for answers and do not read them: how long, how much; those that read get all."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from tests.hostile import requests
from vitreous.serve.crowd import Crowd
from vitreous.serve.protocol import Connection
from vitreous.serve.settings import Settings

PIECE = bytes(1 << 20)
PIECES = 16
"""Together more than the system holds for a client that does not read."""
ASK = requests.head("/large", "GET")
SETTINGS = Settings(flush_seconds=30.0, idle_seconds=1e6)
LONG = 20.0


class Large:
    """An application with one large answer, whole or piece by piece."""

    def __init__(self, piecewise: bool) -> None:
        self.bodies = [PIECE] * PIECES if piecewise else [PIECE * PIECES]
        self.running = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.running += 1
        length = str(len(PIECE) * PIECES).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        for number, body in enumerate(self.bodies, start=1):
            more = number < len(self.bodies)
            await send({"type": "http.response.body", "body": body, "more_body": more})
        self.running -= 1


@asynccontextmanager
async def listening(app: Large, crowd: Crowd) -> AsyncIterator[tuple[int, list[Connection]]]:
    """Let connections in; their clock is looked at by nobody but the test."""
    config = uvicorn.Config(app, log_config=None, access_log=False)  # type: ignore[arg-type]
    config.load()
    made: list[Connection] = []

    def connection() -> Connection:
        given = {"config": config, "server_state": ServerState(), "app_state": {}}
        made.append(Connection(crowd, SETTINGS, **given))
        return made[-1]

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], made
    finally:
        server.close()
        for each in made:
            each.transport.abort()
        await asyncio.sleep(0)


async def ask(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for the answer; no more of it is read than a few kilobytes until it is asked for."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(ASK)
    return reader, writer


async def until(condition: Any) -> None:
    async with asyncio.timeout(LONG):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("piecewise", [False, True])
def test_who_does_not_read_is_cut_off(piecewise: bool) -> None:
    app = Large(piecewise)

    async def run() -> None:
        crowd = Crowd(8, 8, SETTINGS.unread_bytes)
        async with listening(app, crowd) as (port, made):
            reader, writer = await ask(port)
            await until(lambda: made and made[0].flush_due < math.inf)
            assert app.running == piecewise and made[0].unread > 0
            made[0].check(made[0].flush_due - 0.1)
            assert not made[0].transport.is_closing()
            await reader.read(100_000)  # a little is not enough
            made[0].check(made[0].flush_due + 0.1)
            assert made[0].transport.is_closing()
            await until(lambda: not app.running and not crowd.count)
            assert made[0].unread == 0 and not crowd.stuck
            writer.close()

    asyncio.run(run())


def test_who_reads_gets_all() -> None:
    async def run() -> int:
        async with listening(Large(piecewise=True), Crowd(8, 8, 1)) as (port, made):
            reader, writer = await ask(port)
            await until(lambda: made and made[0].flush_due < math.inf)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            found = len(await reader.readexactly(PIECES * len(PIECE)))
            await until(lambda: made[0].flush_due == math.inf)
            made[0].check(asyncio.get_running_loop().time() + 1000)
            assert not made[0].transport.is_closing()
            writer.close()
            return found

    assert asyncio.run(run()) == PIECES * len(PIECE)


def test_unread_answers_have_a_limit_in_all() -> None:
    async def run() -> list[bool]:
        crowd = Crowd(8, 8, most_unread=20 << 20)
        async with listening(Large(piecewise=False), crowd) as (port, made):
            writers = []
            for _ in range(3):
                writers.append((await ask(port))[1])
                await until(lambda: len(made) == len(writers) and made[-1].flush_due < math.inf)
            found = [each.transport.is_closing() for each in made]
            assert sum(each.unread for each in made) <= 20 << 20
            for writer in writers:
                writer.close()
            return found

    assert asyncio.run(run()) == [True, True, False]
