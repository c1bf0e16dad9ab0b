"""What an operator can set on the server, and the refusals that requests can meet. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitreous.config import Inference, Runtime

MEBIBYTE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The server's limits and who may use it; the defaults are for one machine's own use."""

    max_body: int = 16 * MEBIBYTE
    """Bytes of one request."""
    max_pixels: int = 25_000_000
    """Pixels of one image, known from its header before it is decoded."""
    max_images: int = 32
    """Images of one request."""
    queue: int = 256
    """Images that are being received, waiting or computed at once; beyond that requests get 429."""
    queue_bytes: int = 256 * MEBIBYTE
    """Bytes of requests that are held at once; beyond that requests get 429."""
    max_batch: int = 64
    """Images computed at once, at most; the warm-up finds how many pay off on this device."""
    deadline: float = 10.0
    """Seconds from a request's first byte to its answer."""
    max_head: int = 32 * 1024
    """Bytes of a request's first line and headers together."""
    head_seconds: float = 10.0
    """Seconds from a connection, or the first byte of a request on it, to the end of the headers."""
    idle_seconds: float = 30.0
    """Seconds that a connection stays open between requests."""
    flush_seconds: float = 30.0
    """Seconds that a client may take to read an answer."""
    unread_bytes: int = 256 * MEBIBYTE
    """Bytes of answers that clients have not read; beyond that, the least recent readers are cut off."""
    decode_share: float = 0.5
    """Share of the deadline that one picture may take in its decoder, which is then ended."""
    connections: int = 2048
    """Connections that are open at once; beyond that, idle ones are closed."""
    connections_each: int = 1024
    """Connections that one address may have of these."""
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    """Values of the Host header that are answered, without port; `*` answers all."""
    origins: tuple[str, ...] = ()
    """Other sites whose pages may use the server (CORS)."""
    runtime: Runtime = "torch"
    """What computes predictions; the attention routes look into torch's model in any case."""
    precision: Inference = "float32"
    """What predictions are computed in."""
    token: str | None = field(default=None, repr=False)
    """If set, requests must carry `Authorization: Bearer TOKEN`."""

    @property
    def decode_seconds(self) -> float:
        """Seconds that decoding one picture may take."""
        return self.decode_share * self.deadline

    @property
    def decode_memory(self) -> int:
        """Bytes that decoding one picture may take: its pixels in several forms at once, and libraries."""
        return 256 * MEBIBYTE + 40 * self.max_pixels


class Refusal(Exception):
    """A request that is answered with an error: its status, a fixed word and a fixed sentence."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None, **extra: Any
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers, self.extra = dict(headers or {}), extra

    def fresh(self, **extra: Any) -> "Refusal":
        """Return a copy to raise: a constant that is raised again and again would keep the frames of every
        raise, and the request bodies in them."""
        return Refusal(self.status, self.code, self.message, self.headers, **{**self.extra, **extra})


def too_large(limit: int) -> Refusal:
    """Return the refusal of a body over the limit; the connection is closed, as the rest is not read."""
    message = f"the request is larger than {limit} bytes"
    return Refusal(413, "too_large", message, {"Connection": "close"})


def overloaded(seconds: float) -> Refusal:
    """Return the refusal of a request that could not be answered in time."""
    wait = str(max(1, min(60, round(seconds + 0.5))))
    return Refusal(429, "overloaded", "the server is busy: try again later", {"Retry-After": wait})


NOT_READY = Refusal(503, "not_ready", "the model is warming up: try again soon", {"Retry-After": "1"})
TOO_LATE = Refusal(504, "too_late", "the deadline passed before the answer was ready")
TOO_SLOW = Refusal(408, "too_slow", "the request did not arrive in time", {"Connection": "close"})
NO_CLASSES = Refusal(422, "no_classes", "this model has no classes: it can show its attention, not label")
NOT_AN_IMAGE = Refusal(
    415, "not_an_image", "no image of a known format was sent: JPEG, PNG, WebP, BMP, GIF, TIFF, AVIF"
)
TOO_COSTLY = Refusal(
    422, "too_costly", "decoding the image takes too much time or memory: save it again, or smaller"
)
TOO_MUCH = Refusal(
    413, "too_much", "the images of this request can't be decoded in time together: send fewer at once"
)
UNREADABLE = Refusal(
    422,
    "unreadable_image",
    "the image is damaged, has too many pixels, or a size that this model does not take",
)
