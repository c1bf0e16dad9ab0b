"""The outermost layer of every request: who may use the server, what is logged and counted, what errors say.

Error bodies have a fixed word, a fixed sentence and the request's id; what went wrong stays in the log.
"""

import hmac
import json
import re
import time
import traceback
import uuid
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitreous.serve.logs import log
from vitreous.serve.meters import Meters
from vitreous.serve.settings import Refusal, Settings

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
]
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
OPEN = ("/", "/healthz", "/readyz")
PAGE = "/web/"

WRONG_HOST = Refusal(400, "wrong_host", "this server does not answer to that host name")
WRONG_ORIGIN = Refusal(403, "wrong_origin", "pages of other sites may not use this server")
NO_TOKEN = Refusal(
    401, "no_token", "send Authorization: Bearer with the server's token", {"WWW-Authenticate": "Bearer"}
)
FAILED = Refusal(500, "internal", "the server failed on this request; its log has the reason")


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        meters: Meters,
        routes: Iterable[str],
        share: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    ) -> None:
        self.app, self.settings, self.meters = share(app), settings, meters
        self.share = share
        """Lets allowed pages of other sites see answers, including errors (CORS)."""
        self.routes = frozenset(routes)
        self.hosts = frozenset(host.lower() for host in settings.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        start = time.perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [*HEADERS, (b"x-request-id", request_id.encode())]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        problem = None
        try:
            refusal = self._refusal(scope, headers)
            await self._answering(refusal, request_id)(scope, receive, send_guarded)
        except ClientDisconnect:
            status = 499  # the client is gone; nginx's status for that
        except Exception:
            problem = traceback.format_exc()
            if not status:
                await error_response(FAILED, request_id)(scope, receive, send_guarded)
        seconds = time.perf_counter() - start
        path = scope["path"]
        self.meters.answered(path if path in self.routes else "other", status, seconds)
        self._log(scope, request_id, status, seconds, problem)

    def _answering(self, refusal: Refusal | None, request_id: str) -> ASGIApp:
        if refusal is None:
            return self.app
        response = error_response(refusal, request_id)
        return self.share(response) if refusal is NO_TOKEN else response

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> Refusal | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if "*" not in self.hosts and _without_port(host) not in self.hosts:
            return WRONG_HOST
        if [name for name, _ in scope["headers"]].count(b"host") > 1:
            return WRONG_HOST  # a proxy before this server may have checked the other one
        origin = headers.get(b"origin")
        if origin is not None and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            given = origin.decode("latin-1").lower()
            if (
                _host_of(given) != host
                and given not in self.settings.origins
                and "*" not in self.settings.origins
            ):
                return WRONG_ORIGIN
        token, path = self.settings.token, scope["path"]
        if token is None or path in OPEN or path.startswith(PAGE) or scope["method"] == "OPTIONS":
            return None
        scheme, _, shown = headers.get(b"authorization", b"").partition(b" ")
        known = hmac.compare_digest(shown.strip(b" "), token.encode())
        return None if known and scheme.lower() == b"bearer" else NO_TOKEN

    def _log(self, scope: Scope, request_id: str, status: int, seconds: float, problem: str | None) -> None:
        warming_up = scope["path"] == "/readyz" and status == 503  # an answer like others to who asks this
        failed = problem or (status >= 500 and not warming_up)
        log(
            "error" if failed else "info",
            "request",
            request_id=request_id,
            method=scope["method"],
            path=scope["path"][:200],
            status=status,
            milliseconds=round(1000 * seconds, 2),
            **({"traceback": problem} if problem else {}),
        )


def error_response(refusal: Refusal, request_id: str) -> Response:
    """Return a refusal as the JSON that every error has."""
    return Response(_error_body(refusal, request_id), refusal.status, refusal.headers, "application/json")


def error_parts(refusal: Refusal) -> tuple[list[tuple[str, str]], bytes]:
    """Return the headers and the body of a refusal that is sent before the application sees the request."""
    request_id = uuid.uuid4().hex
    body = _error_body(refusal, request_id).encode()
    headers = [(name.decode(), value.decode()) for name, value in HEADERS]
    headers += [("x-request-id", request_id), *refusal.headers.items()]
    return [*headers, ("content-type", "application/json"), ("content-length", str(len(body)))], body


def _error_body(refusal: Refusal, request_id: str) -> str:
    body = {"error": refusal.code, "message": refusal.message, "request_id": request_id, **refusal.extra}
    return json.dumps(body)


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"")
    return given.decode() if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
