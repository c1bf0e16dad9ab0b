"""Requests that a server must survive, as bytes: heads without end, half-sent ones, forms of nothing."""

import io
import random
from collections.abc import Callable, Iterator

from PIL import Image

from tests.hostile import pictures

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


def _picture(chance: random.Random) -> bytes:
    return post(chance.choice(list(pictures.MAKERS.values()))(chance))


def _small() -> bytes:
    held = io.BytesIO()
    Image.new("L", (8, 8), 90).save(held, "PNG")
    return held.getvalue()


def _damaged(chance: random.Random) -> bytes:
    data = bytearray(post(_small(), chance.choice(["/predict", "/attention?head=1", "/predict?top=3"])))
    for _ in range(chance.randint(1, 12)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])


def _odd_headers(chance: random.Random) -> bytes:
    names = [
        "Origin",
        "Authorization",
        "Content_Type",
        "Transfer_Encoding",
        "Expect",
        "Accept",
        "Range",
        "Upgrade",
    ]
    values = [
        "http://[",
        "bearer",
        "Bearer \x7f",
        "chunked, chunked",
        "100-continue",
        "*/*;q=NaN",
        "bytes=9-1",
        "h2c",
    ]
    given = {name: chance.choice(values) for name in chance.sample(names, chance.randint(1, 4))}
    length = chance.choice([len(_small()), -1, 10**18, 0])
    return post(_small(), **{"Content_Length": length, **given})


def _form(chance: random.Random) -> bytes:
    kind = chance.choice(
        ["multipart/form-data; boundary=edge", "multipart/form-data; boundary=", "multipart/x"]
    )
    return post(form_of_fields(chance.randrange(1 << 21)), Content_Type=kind)


def _chunks(chance: random.Random) -> bytes:
    sizes = [b"1", b"-1", b"fffffffffffffffff", b"0;x=" + b"y" * 70_000, b"g", b""]
    parts = b"".join(chance.choice(sizes) + b"\r\nx\r\n" for _ in range(chance.randint(1, 50)))
    return head(Content_Type="image/png", Transfer_Encoding="chunked") + parts


MAKERS: dict[str, Callable[[random.Random], bytes]] = {
    "hostile picture": _picture,
    "damaged request": _damaged,
    "odd headers": _odd_headers,
    "head without end": lambda chance: b"".join(
        endless_head(chance.randint(1, 40), one=chance.random() < 0.5)
    ),
    "trailer without end": lambda chance: b"".join(endless_trailer(chance.randint(1, 40))),
    "form": _form,
    "chunks": _chunks,
    "upgrade": lambda chance: upgraded(_small()[: chance.randrange(200)]),
    "noise": lambda chance: chance.randbytes(chance.randrange(1, 5000)),
}
