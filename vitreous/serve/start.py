"""Running the server: its socket, its signals, and the one line that says where it is."""

import asyncio
import functools
import os
import signal
import socket
import sys
from pathlib import Path

import uvicorn

from vitreous import console
from vitreous.config import Inference, Runtime
from vitreous.errors import VitreousError
from vitreous.predict import Classifier
from vitreous.serve import logs
from vitreous.serve.app import create_app
from vitreous.serve.crowd import Crowd, room_for
from vitreous.serve.examples import of_data
from vitreous.serve.protocol import Connection
from vitreous.serve.settings import MEBIBYTE, Settings

SWITCH_SECONDS = 0.0005
"""How long a thread may keep the GIL: at the usual 5 ms the model would wait for the event loop."""
BACKLOG = 2048
PARTING_SECONDS = 1.0
"""How long open connections may still send requests after SIGTERM; each answer says that it is the last."""


class Server(uvicorn.Server):
    """uvicorn's server, which also enforces the time limits of every connection, and ends them gracefully."""

    async def on_tick(self, counter: int) -> bool:
        """Close the connections whose time is up; called ten times a second."""
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            connection.check(now)  # type: ignore[union-attr]
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, tell those that are open with their next answer, then end."""
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        until = loop.time() + PARTING_SECONDS
        for connection in self.server_state.connections:
            connection.finish()  # type: ignore[union-attr]
        while self.server_state.connections and loop.time() < until and not self.force_exit:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


def serve(
    classifier: Classifier, name: str, host: str, port: int, settings: Settings, data: str | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; then finish the requests in progress, and return.

    The page's examples are from `data` if it is given."""
    shown = of_data(data, classifier) if data is not None else None
    sys.setswitchinterval(SWITCH_SECONDS)
    listener = listen(host, port)
    failures: list[BaseException] = []

    def give_up(error: BaseException) -> None:
        failures.append(error)
        server.should_exit = True

    crowd = Crowd(room_for(settings.connections), settings.connections_each, settings.unread_bytes)
    config = uvicorn.Config(
        create_app(classifier, name, settings, give_up, shown),
        http=functools.partial(Connection, crowd, settings),  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=int(settings.idle_seconds) + 1,  # the connection's own clock is the exact one
        timeout_graceful_shutdown=int(settings.deadline) + 1,
        ws="none",
    )
    shown = f"[{host}]" if ":" in host else host
    console.note(
        f"vitreous serves {name} at http://{shown}:{listener.getsockname()[1]}/ (stop it with Ctrl-C)"
    )
    if host not in ("127.0.0.1", "localhost", "::1"):
        console.warn(
            f"others can reach this server; it answers to {', '.join(settings.hosts)} (--allow-host)"
        )
        if settings.token is None:
            console.warn("anybody who reaches it can use it: set a token with --token-file")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises it again when all is done: we exit with 0
    logs.take_over()
    server = Server(config)
    # asyncio's own loop: uvloop is a tenth faster, but of a thousand clients it served a hundred and kept the
    # others waiting for seconds, where they should be answered or refused.
    asyncio.run(server.serve(sockets=[listener]))
    if failures:
        raise failures[0]


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise a one-line error if the address is wrong."""
    if not 0 <= port <= 65535:
        raise VitreousError(f"port {port} does not exist: use 1 to 65535, or 0 for any free one")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise VitreousError(
            f"can't listen on {host} port {port}: {reason}; choose another with --port"
        ) from None
    # asyncio sets this only on sockets whose protocol is named; without it every answer waits 40 ms (Nagle).
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def settings(
    *,
    host: str = "127.0.0.1",
    allow_host: tuple[str, ...] = (),
    allow_origin: tuple[str, ...] = (),
    token_file: Path | None = None,
    deadline: float = Settings.deadline,
    queue: int = Settings.queue,
    max_batch: int = Settings.max_batch,
    max_body_mib: float = Settings.max_body / MEBIBYTE,
    max_pixels: int = Settings.max_pixels,
    runtime: Runtime = "torch",
    precision: Inference = "float32",
) -> Settings:
    """Return the settings that the command line names; raise a one-line error for one out of range."""
    given = {"--deadline": deadline, "--queue": queue, "--max-batch": max_batch}
    given |= {"--max-body-mib": max_body_mib, "--max-pixels": max_pixels}
    for flag, value in given.items():
        if not 0 < value < float("inf"):
            raise VitreousError(f"{flag} {value} is out of range: give a number above 0")
    for origin in allow_origin:
        if not origin.startswith(("http://", "https://")) or origin.endswith("/"):
            raise VitreousError(
                f"--allow-origin {origin!r} is not an origin: write it as https://example.org"
            )
    address = () if host in ("0.0.0.0", "::") else (f"[{host}]" if ":" in host else host,)
    return Settings(
        deadline=deadline,
        queue=queue,
        max_batch=max_batch,
        max_body=int(max_body_mib * MEBIBYTE),
        max_pixels=max_pixels,
        runtime=runtime,
        precision=precision,
        hosts=tuple(dict.fromkeys((*Settings.hosts, *address, *allow_host))),
        origins=tuple(origin.lower() for origin in allow_origin),
        token=read_token(token_file, os.environ.get("VITREOUS_TOKEN")),
    )


def read_token(path: Path | None, given: str | None) -> str | None:
    """Return the token from its file or the environment; never from the command line, which others see."""
    if path is not None:
        try:
            given = path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise VitreousError(f"token file {path}: {error.strerror or error}") from None
    if given is not None and not (len(given) >= 16 and given.isascii() and given.isprintable()):
        raise VitreousError("the token must have 16 or more printable ASCII characters: openssl rand -hex 32")
    return given
