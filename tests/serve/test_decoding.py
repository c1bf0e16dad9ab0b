"""Decoding that costs itself only: pictures that take for ever hold up no other, and are ended."""

import asyncio
import io
import json
import threading
import time
from collections.abc import MutableMapping
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from tests.hostile import pictures, requests
from tests.serve_client import client, post, wait_until_ready
from vitreous.data.guarded import Workers
from vitreous.predict import Classifier
from vitreous.serve import service
from vitreous.serve.app import create_app
from vitreous.serve.costs import CHEAP_BYTES, CHEAP_WORK, MAX_CHUNKS, cost
from vitreous.serve.settings import Settings

LIMIT = 25_000_000
DECODE = service.decode


def encoded(form: str, width: int, height: int, **how: Any) -> bytes:
    held = io.BytesIO()
    Image.new("RGB", (width, height), (200, 90, 10)).save(held, form, **how)
    return held.getvalue()


@pytest.mark.parametrize(
    ("form", "how", "units", "sure"),
    [
        ("JPEG", {}, 1.1, True),
        ("JPEG", {"progressive": True}, 2.0, True),
        ("PNG", {}, 2.0, True),
        ("WEBP", {}, 2.5, False),
        ("WEBP", {"lossless": True}, 2.5, False),
        ("WEBP", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}, 2.5, False),
        ("GIF", {}, 1.5, False),
        ("BMP", {}, 1.0, False),
        ("AVIF", {}, 6.0, False),
    ],
)
def test_costs_are_known_from_the_header(form: str, how: dict[str, Any], units: float, sure: bool) -> None:
    found = cost(encoded(form, 300, 200, **how), LIMIT)
    assert found.work == pytest.approx(300 * 200 * units) and found.little and found.sure == sure
    assert not cost(encoded(form, 1800, 1700, **how), LIMIT).little


def test_what_may_be_dear_is_not_cheap() -> None:
    large = encoded("JPEG", 2500, 2000)
    assert cost(large, LIMIT).work > CHEAP_WORK and not cost(large, LIMIT).sure
    assert not cost(requests.many_scans(400, 4000), LIMIT).sure
    assert cost(requests.many_scans(5000, 4000), LIMIT).work > 400 * LIMIT
    small = encoded("PNG", 8, 8)
    assert not cost(small[:33] + b"\0\0\0\0tEXt\0\0\0\0" * MAX_CHUNKS + small[33:], LIMIT).sure
    comments = b"\xff\xfe\0\x02" * 100
    assert not cost(b"\xff\xd8" + comments + encoded("JPEG", 8, 8)[2:], LIMIT).sure
    assert not cost(encoded("TIFF", 8, 8), LIMIT).sure
    assert cost(pictures.run_length_bmp(100, 50), LIMIT) == (35 * 100 * 50, True, False), "decoded in Python"
    heavy = encoded("JPEG", 300, 200, progressive=True) + bytes(CHEAP_BYTES)
    assert cost(heavy, LIMIT) == (6 * 300 * 200, False, False), "its scans are not counted"
    tile = b"\0\0\0\x1cftypavif" + b"ispe" + bytes(4) + bytes.fromhex("00000040 00000040")
    whole = tile + b"ispe" + bytes(4) + bytes.fromhex("00000400 00000800")
    assert cost(whole, LIMIT).work == 6 * 1024 * 2048, "of the largest"
    assert cost(b"II*\0" + bytes(16 << 20), LIMIT).work == 1.5 * LIMIT, "of what is not known"


@given(
    data=st.binary(max_size=200), start=st.sampled_from([b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b""])
)
def test_any_bytes_have_a_cost(data: bytes, start: bytes) -> None:
    assert cost(start + data, LIMIT).work >= 0


def hostile(data: bytes, *given: Any, **named: Any) -> Any:
    """Decode, unless the bytes are those of a GIF or BMP: these take for ever, or all memory."""
    if data[:3] == b"GIF":
        time.sleep(120)
    if data[:2] == b"BM":
        np.ones(1 << 36, np.uint8)
    return DECODE(data, *given, **named)


def test_dear_pictures_hold_up_no_other(
    digits: Classifier, image: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """More pictures that never end than there are decoders; what is cheap is answered, they are not."""
    monkeypatch.setattr(service, "decode", hostile)
    found: list[tuple[int, str]] = []

    def send(server: TestClient) -> None:
        answer = post(server, encoded("GIF", 1500, 1500))
        found.append((answer.status_code, answer.json()["error"]))

    with client(digits, deadline=4.0) as made:
        wait_until_ready(made)
        threads = [threading.Thread(target=send, args=[made]) for _ in range(3)]
        for thread in threads:
            thread.start()
        while "images_inside 3.0" not in made.get("/metrics").text:
            time.sleep(0.01)
        assert post(made, image).status_code == 200
        assert post(made, encoded("JPEG", 8, 8)).status_code == 200
        assert post(made, encoded("WEBP", 8, 8)).status_code == 200
        assert not found, "the others were answered first"
        for thread in threads:
            thread.join()
        assert set(found) <= {(422, "too_costly"), (504, "too_late")} and (422, "too_costly") in found
        assert post(made, encoded("BMP", 8, 8)).json()["error"] == "too_costly"
        assert post(made, encoded("WEBP", 8, 8)).status_code == 200
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert any("took longer than 2.0 s" in line.get("message", "") for line in lines)


def test_the_end_does_not_wait_for_decoders(digits: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would take 120 s: the picture in it is refused, and the server has ended.

    On one event loop: starlette's TestClient may leave an answer unread at its end, and wait for it."""
    monkeypatch.setattr(service, "decode", hostile)
    app = create_app(digits, "digits", Settings(hosts=("testserver",), deadline=600.0))
    picture, begun, take = encoded("GIF", 900, 900), threading.Event(), Workers._take
    monkeypatch.setattr(Workers, "_take", lambda self: (take(self), begun.set())[0])

    async def serve() -> httpx.Response:
        sent: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        told: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        life = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, sent.get, told.put))
        await sent.put({"type": "lifespan.startup"})
        assert (await told.get())["type"] == "lifespan.startup.complete"
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as asking:
            while (await asking.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.02)
            header = {"Content-Type": "image/gif"}
            answer = asyncio.create_task(asking.post("/predict", content=picture, headers=header))
            while not begun.is_set():
                await asyncio.sleep(0.01)
            await sent.put({"type": "lifespan.shutdown"})
            assert (await told.get())["type"] == "lifespan.shutdown.complete"
            await life
            return await answer

    answer = asyncio.run(asyncio.wait_for(serve(), 60))
    assert (answer.status_code, answer.json()["error"]) == (422, "too_costly")


def test_thousands_of_scans_are_refused(digits: Classifier) -> None:
    with client(digits, deadline=2.0) as made:
        wait_until_ready(made)
        assert post(made, requests.many_scans(4000, 4000)).status_code == 422


def test_a_form_that_takes_too_long_is_refused_at_once(digits: Classifier, image: bytes) -> None:
    """Thirty-two pictures of 25 megapixels: known from their headers, none is decoded."""
    large = encoded("JPEG", 5000, 5000)
    with client(digits, deadline=4.0) as made:
        wait_until_ready(made)
        answer = made.post("/predict", files=[("image", (f"{n}.jpg", large)) for n in range(32)])
        assert (answer.status_code, answer.json()["error"]) == (413, "too_much")
        assert post(made, image).status_code == 200


def test_what_libtiff_says_is_logged_as_json(digits: Classifier, capfd: pytest.CaptureFixture[str]) -> None:
    whole = bytearray(encoded("TIFF", 64, 64, compression="tiff_lzw"))
    place = whole.index(b"\x11\x01")  # StripOffsets: far behind the end of the file
    whole[place + 8 : place + 12] = (1 << 30).to_bytes(4, "little")
    with client(digits) as made:
        wait_until_ready(made)
        assert post(made, bytes(whole)).json()["error"] == "unreadable_image"
    for line in capfd.readouterr().err.splitlines():
        json.loads(line)
