"""Requests that a server must survive, as bytes: heads without end, half-sent ones, forms of nothing."""

import io
from collections.abc import Iterator

from PIL import Image

BOUNDARY = b"edge"


def head(
    path: str = "/predict", method: str = "POST", host: str = "127.0.0.1", **headers: str | int
) -> bytes:
    """Return the head of a request; underscores in the names of headers stand for dashes."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def post(body: bytes, path: str = "/predict", **headers: str | int) -> bytes:
    """Return a whole request."""
    given = {"Content_Type": "image/png", "Content_Length": len(body), **headers}
    return head(path, **given) + body


def endless_head(count: int, *, one: bool) -> Iterator[bytes]:
    """Yield a head that does not end, 64 KiB at a time: one header, or very many."""
    yield head()[:-2]
    if one:
        yield b"X-Long: "
    for _ in range(count):
        yield b"x" * 65536 if one else b"X-Many: some\r\n" * 4682


def endless_trailer(count: int) -> Iterator[bytes]:
    """Yield a chunked body of one byte whose trailer does not end."""
    yield head(Content_Type="image/png", Transfer_Encoding="chunked") + b"1\r\nx\r\n0\r\nX-Trailer: "
    for _ in range(count):
        yield b"x" * 65536


def form_of_fields(size: int) -> bytes:
    """Return a multipart form of about so many bytes: empty fields alone."""
    field = b"--edge\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n"
    return field * (size // len(field)) + b"--edge--\r\n"


def upgraded(body: bytes) -> bytes:
    """Return a request as `curl --http2` and Java's HttpClient send it: with a wish for HTTP/2."""
    wish = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": "AAMAAABkAAQAoAAA"}
    return post(body, **wish)


def many_scans(side: int, count: int) -> bytes:
    """Return a progressive JPEG of few bytes that passes over all its pixels so many times."""
    held = io.BytesIO()
    Image.new("L", (side, side), 90).save(held, "JPEG", progressive=True)
    data = held.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + data[-2:]
