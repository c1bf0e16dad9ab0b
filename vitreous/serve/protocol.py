"""One HTTP connection, bounded: the size of its headers, the time for each of its parts, a graceful end.

Extends uvicorn's protocol, which has none of these limits. Errors in HTTP itself are the same JSON as others.
"""

import http
import math
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vitreous.serve.crowd import Crowd, neighbourhood
from vitreous.serve.guard import error_parts
from vitreous.serve.logs import log
from vitreous.serve.settings import Refusal, Settings

LINGER_SECONDS = 2.0
"""How long a refused client may go on sending before it is cut off: a reset would destroy the answer."""
LINGER_BYTES = 1 << 20
BODY_GRACE = 2.0
"""Seconds beyond the deadline that a body has here: the request's own deadline gives a better answer."""
MAX_PIPELINE = 16
"""Requests that a client may send ahead of the answers."""
NOT_CARRIED_ON = (b"upgrade", b"http2-settings")

MALFORMED = Refusal(400, "malformed", "the request is not valid HTTP/1.1")
HEADERS_TOO_LARGE = Refusal(431, "headers_too_large", "the headers of the request are too large")
HEADERS_TOO_SLOW = Refusal(408, "headers_too_slow", "the headers of the request did not arrive in time")
TOO_MANY_CONNECTIONS = Refusal(
    503,
    "too_many_connections",
    "too many connections are open: close some, or try later",
    {"Retry-After": "1"},
)


class Connection(HttpToolsProtocol):
    """A client's connection; `due` is when it will be closed unless something happens first."""

    def __init__(self, crowd: Crowd, settings: Settings, **given: Any) -> None:
        super().__init__(**given)
        self.crowd, self.settings = crowd, settings
        self.address = ""
        self.due = self.flush_due = math.inf
        self.heading = self.arriving = self.closing = False
        self.head_bytes = self.fed = self.delivered = self.discarded = 0
        self.refused: Refusal | None = None

    def connection_made(self, transport: Any) -> None:
        """Let a client in, or refuse it because there are too many."""
        super().connection_made(transport)
        self.address = neighbourhood(self.client[0] if self.client else "")
        self.due = self.loop.time() + self.settings.head_seconds
        if self.crowd.enter(self):
            self.crowd.waits(self)
        else:
            self.refuse(TOO_MANY_CONNECTIONS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the client out."""
        self.crowd.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; until the headers are complete, in pieces of no more than they may have."""
        if self.refused is not None:
            self._discard(len(data))
            return
        self._unset_keepalive_if_required()
        rest = memoryview(data)
        while rest and self.refused is None and not self.transport.is_closing():
            in_body = self.arriving and not self.heading
            size = len(rest) if in_body else self.settings.max_head
            self._feed(rest[:size])
            rest = rest[size:]

    def _feed(self, data: memoryview) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            self._go_on_without_upgrade(bytes(data[stop.args[0] :]))
        except httptools.HttpParserError:
            self.refuse(MALFORMED if self.head_bytes <= self.settings.max_head else HEADERS_TOO_LARGE)
        else:
            self.fed += len(data)
            # A header, trailer or chunk extension that never ends is reported by the parser only at its end.
            if self.arriving and self.fed > 8 * self.delivered + 2 * self.settings.max_head:
                self.refuse(HEADERS_TOO_LARGE)

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """Parse a request again without its wish for another protocol: the parser would take that as granted
        and leave the body unread (uvicorn#2722)."""
        if self.scope["method"] == "CONNECT":
            self.refuse(MALFORMED)
            return
        version = self.parser.get_http_version().encode()
        lines = [self.scope["method"].encode() + b" " + self.url + b" HTTP/" + version]
        for name, value in self.headers:
            if name == b"connection":
                kept = [each for each in value.split(b",") if each.strip().lower() not in NOT_CARRIED_ON]
                value = b",".join(kept)
            if name not in NOT_CARRIED_ON:
                lines.append(name + b": " + value)
        self.parser = httptools.HttpRequestParser(self)
        if hasattr(self.parser, "set_dangerous_leniencies"):  # as uvicorn does, from httptools 0.6.3 on
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(memoryview(b"\r\n".join(lines) + b"\r\n\r\n" + rest))

    def on_message_begin(self) -> None:
        """Start the clock for a request's headers."""
        super().on_message_begin()
        self.heading = self.arriving = True
        self.head_bytes = self.fed = self.delivered = 0
        self.due = self.loop.time() + self.settings.head_seconds

    def on_url(self, url: bytes) -> None:
        """Count the bytes of a request's first line."""
        self.head_bytes += len(url)
        if self.head_bytes > self.settings.max_head:
            raise HEADERS_TOO_LARGE.fresh()
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes of a header, with `: ` and the end of its line."""
        self.head_bytes += len(name) + len(value) + 4
        if self.head_bytes > self.settings.max_head:
            raise HEADERS_TOO_LARGE.fresh()  # the parser stops
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start a request, and the clock for its body."""
        if self.parser.should_upgrade():
            self.scope["method"] = self.parser.get_method().decode("ascii")
            return
        self.heading = False
        self.due = self.loop.time() + self.settings.deadline + BODY_GRACE
        if len(self.pipeline) >= MAX_PIPELINE:
            raise MALFORMED.fresh()
        super().on_headers_complete()
        self.crowd.works(self)
        if self.closing:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Count the bytes of a body."""
        self.delivered += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the clock: from here on the request's own deadline counts."""
        if self.parser.should_upgrade():
            return
        self.arriving = False
        self.due = self._idle_due() if self.cycle.response_complete else math.inf
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.pipeline and (self.cycle is None or self.cycle.response_complete):
            self.crowd.waits(self)
            if not self.arriving:
                self.due = self._idle_due()

    def _idle_due(self) -> float:
        return self.loop.time() + self.settings.idle_seconds

    def pause_writing(self) -> None:
        """Start the clock for a client that does not read."""
        self.flush_due = self.loop.time() + self.settings.flush_seconds
        super().pause_writing()
        self.crowd.stops_reading(self)

    def resume_writing(self) -> None:
        """Stop that clock."""
        self.flush_due = math.inf
        super().resume_writing()
        self.crowd.reads(self)

    @property
    def unread(self) -> int:
        """Bytes that wait for the client to read; those that the system holds for it are not known."""
        return self.transport.get_write_buffer_size()

    def cut(self) -> None:
        """Close at once; what the client has not read is dropped."""
        log("info", "cut", client=self.address, unread=self.unread)
        self.transport.abort()

    def check(self, now: float) -> None:
        """Close the connection if its time is over."""
        if now < min(self.due, self.flush_due):
            return
        if now >= self.flush_due:
            self.cut()
        elif self.refused is not None or self.transport.is_closing():
            self.transport.abort()
        elif self.heading:
            self.refuse(HEADERS_TOO_SLOW)
        else:
            self.give_way()

    def give_way(self) -> None:
        """Close without an answer; what is on its way to the client has a moment to arrive."""
        self.due = self.loop.time() + LINGER_SECONDS
        self.transport.close()

    def finish(self) -> None:
        """Close after the answers in progress, or after the next one, which tells the client so."""
        self.closing = True
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """Refuse what can't be parsed."""
        self.refuse(MALFORMED)

    def refuse(self, refusal: Refusal) -> None:
        """Answer with a refusal unless another answer is in progress, and parse nothing more."""
        self.refused = refusal
        self.due = self.loop.time() + LINGER_SECONDS
        log("info", "refused", client=self.address, status=refusal.status, error=refusal.code)
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        self.transport.write(plain_answer(refusal))
        if self.transport.can_write_eof() and refusal is not TOO_MANY_CONNECTIONS:
            self.transport.write_eof()
        else:
            self.transport.close()

    def _discard(self, size: int) -> None:
        self.discarded += size
        if self.discarded > LINGER_BYTES:
            self.transport.abort()


def plain_answer(refusal: Refusal) -> bytes:
    """Return a refusal as the bytes of a whole HTTP answer, after which the connection ends."""
    headers, body = error_parts(refusal)
    phrase = http.HTTPStatus(refusal.status).phrase
    lines = [f"HTTP/1.1 {refusal.status} {phrase}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode() + body
