"""What the server refuses: bodies that are no image, too large, too many, too slow, malformed."""

import io
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from tests.hostile import requests
from tests.serve_client import post
from tests.serving import Running, running
from vitreous.predict import Classifier
from vitreous.serve import bodies, guard, service
from vitreous.serve import settings as serve_settings
from vitreous.serve.bodies import is_small, looks_like_image

FIELD = b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--x--\r\n"
ALL_CHECKS = list(HealthCheck)


def png(width: int, height: int) -> bytes:
    held = io.BytesIO()
    Image.new("L", (width, height)).save(held, "PNG")
    return held.getvalue()


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b"hello, I am text", "image/png", 415, "not_an_image"),
        (b"{}", "application/json", 415, "wrong_type"),
        (b"", "image/png", 422, "no_image"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "image/png", 422, "unreadable_image"),
        (b"\xff\xd8\xff\xe0" + b"\0" * 50, "application/octet-stream", 422, "unreadable_image"),
        (b"nonsense", "multipart/form-data", 422, "bad_form"),
        (b"nonsense", "multipart/form-data; boundary=x", 422, "bad_form"),
        (FIELD, "multipart/form-data; boundary=x", 422, "no_image"),
        (png(1001, 1000), "image/png", 422, "unreadable_image"),  # over the pixel limit
        (b"\x89PNG" + b"x" * 100_000, "image/png", 413, "too_large"),
    ],
)  # fmt: skip
def test_what_is_refused(server: TestClient, body: bytes, kind: str, status: int, code: str) -> None:
    answer = post(server, body, kind)
    assert (answer.status_code, answer.json()["error"]) == (status, code)
    assert set(answer.json()) == {"error", "message", "request_id"}


def test_pixels_are_limited_before_decoding(server: TestClient, digits: Classifier) -> None:
    """The file is small, the image would take 10 GB: only its header may be looked at."""
    held = bytearray(png(8, 8))
    held[16:24] = (100_000).to_bytes(4) + (100_000).to_bytes(4)
    memory = psutil.Process().memory_info().rss
    assert post(server, bytes(held)).status_code == 422
    assert psutil.Process().memory_info().rss - memory < 50e6


def test_too_many_images(server: TestClient, image: bytes) -> None:
    answer = server.post("/predict", files=[("image", (f"{row}.png", image)) for row in range(5)])
    assert (answer.status_code, answer.json()["error"]) == (413, "too_many")


def test_a_form_of_fields_is_not_read_to_its_end(server: TestClient, image: bytes) -> None:
    kind = "multipart/form-data; boundary=edge"
    answer = post(server, requests.form_of_fields(90_000), kind)
    assert (answer.status_code, answer.json()["error"]) == (413, "too_many")
    few = requests.form_of_fields(1_000).removesuffix(b"--edge--\r\n")
    file = b'--edge\r\nContent-Disposition: form-data; name=i; filename="a.png"\r\n\r\n' + image
    assert post(server, few + file + b"\r\n--edge--\r\n", kind).status_code == 200


@pytest.fixture(scope="module")
def seeds() -> list[bytes]:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    made = []
    for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        held = io.BytesIO()
        Image.fromarray(pixels).save(held, form)
        made.append(held.getvalue())
    return made


@given(data=st.data())
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_images_never_crash_it(server: TestClient, seeds: list[bytes], data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from(seeds)))
    for _ in range(data.draw(st.integers(1, 8))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    whole = bytes(body[:cut]) if data.draw(st.booleans()) else bytes(body)
    assert post(server, whole).status_code in (200, 415, 422)


@given(head=st.binary(max_size=40), width=st.integers(0, 2**32 - 1), height=st.integers(0, 2**32 - 1))
def test_sniffing_never_fails(head: bytes, width: int, height: int) -> None:
    looks_like_image(head)
    made = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4)
    assert is_small(made) == (width * height <= 128 * 128)


@pytest.fixture
def patient(checkpoint: Path, tmp_path: Path) -> Iterator[Running]:
    """A server that on a busy machine too answers before its deadline."""
    with running(checkpoint, tmp_path, "--max-body-mib", "1", "--deadline", "60") as server:
        yield server


def test_the_schema_holds_for_whatever_is_sent(patient: Running) -> None:
    """Schemathesis makes requests from the OpenAPI document: no 5xx, and every answer as described."""
    schema = schemathesis.openapi.from_url(f"{patient.url}/openapi.json")
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.status_code_conformance,
        schemathesis.checks.content_type_conformance,
        schemathesis.checks.response_schema_conformance,
    ]
    seen: dict[str, list[int]] = {}
    for result in schema.get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy())
        @settings(max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=ALL_CHECKS)
        def check(case: Any) -> None:
            answer = case.call()
            seen.setdefault(case.operation.path, []).append(answer.status_code)
            case.validate_response(answer, checks=checks)

        check()
    assert set(seen) >= {"/predict", "/attention", "/preprocess", "/model", "/healthz", "/readyz", "/metrics"}
    assert {415, 422} & set(seen["/predict"]) and len(seen["/attention"]) >= 20
    assert max(status for statuses in seen.values() for status in statuses) < 500


def test_an_endless_chunked_body_is_cut_off(process: Running) -> None:
    """413 must come while the body is still arriving, and the server must not have kept it."""
    memory = psutil.Process(process.pid).memory_info().rss
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as sock:
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{process.port}\r\nContent-Type: image/png\r\n"
        sock.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        sent = 0
        try:
            while sent < 64 * len(chunk) * 16:  # 64 MiB, were it ever read
                sock.sendall(chunk)
                sent += len(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            pytest.fail("the server read 64 MiB of a body whose limit is 1 MiB")
    assert sent < 16 * 2**20
    assert '"status": 413' in process.log.read_text()
    assert psutil.Process(process.pid).memory_info().rss - memory < 16e6


def test_an_announced_body_is_refused_before_it_is_sent(process: Running) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as sock:
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{process.port}\r\nContent-Type: image/png\r\n"
        sock.sendall(head.encode() + b"Content-Length: 99999999\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 413")


def test_a_body_that_does_not_come_is_given_up(process: Running) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as sock:
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{process.port}\r\nContent-Type: image/png\r\n"
        sock.sendall(head.encode() + b"Content-Length: 1000\r\n\r\nabc")
        assert sock.recv(65536).startswith(b"HTTP/1.1 408")


def test_a_refusal_keeps_nothing_of_its_request(server: TestClient) -> None:
    """An exception that is raised again keeps the frames of every time, and the bodies in them."""
    for body, kind in ((b"hello", "image/png"), (b"\x89PNG\r\n\x1a\n??", "image/png"), (b"{}", "text/plain")):
        assert post(server, body, kind).status_code in (415, 422)
    for module in (bodies, guard, service, serve_settings):
        for name, value in vars(module).items():
            if isinstance(value, serve_settings.Refusal):
                assert value.__traceback__ is None and value.__context__ is None, name
