"""The server: the same answers as predict, every limit, every refusal, overload, and a quiet end."""

import asyncio
import io
import json
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

import vitreous
from tests.conftest import digits_files
from tests.serving import Running, running
from vitreous import cli
from vitreous.config import Preprocessing
from vitreous.data.augment import evaluation_transform
from vitreous.errors import VitreousError
from vitreous.inspection import attention_maps
from vitreous.models.architecture import ResNetConfig
from vitreous.models.resnet import ResNet
from vitreous.predict import Classifier
from vitreous.serve import looking, service, start
from vitreous.serve.app import create_app
from vitreous.serve.bodies import is_small, looks_like_image
from vitreous.serve.settings import Settings

FIELD = b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--x--\r\n"
ALL_CHECKS = list(HealthCheck)
TOKEN = "a-token-of-sufficient-length"


def client(classifier: Classifier, **changes: Any) -> TestClient:
    app = create_app(classifier, "digits", Settings(**({"hosts": ("testserver",)} | changes)))
    return TestClient(app, raise_server_exceptions=False)


def wait_until_ready(server: TestClient) -> TestClient:
    until = time.monotonic() + 30
    while server.get("/readyz").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.02)
    return server


@pytest.fixture(scope="module")
def server(digits: Classifier) -> Iterator[TestClient]:
    with client(digits, max_body=100_000, max_pixels=1_000_000, max_images=4) as made:
        yield wait_until_ready(made)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return digits_files(tmp_path_factory.mktemp("digits"), count=12)


@pytest.fixture(scope="module")
def checkpoint(digits: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits.save(tmp_path_factory.mktemp("served") / "digits.safetensors")


@pytest.fixture
def image(files: list[Path]) -> bytes:
    return files[0].read_bytes()


def post(
    server: TestClient, body: bytes, kind: str = "image/png", path: str = "/predict", **more: Any
) -> Any:
    return server.post(path, content=body, headers={"Content-Type": kind, **more})


def test_raw_and_multipart_answer_as_predict_does(
    server: TestClient, digits: Classifier, files: list[Path]
) -> None:
    expected = digits.predict(files[:3])
    form = server.post("/predict", files=[("image", (path.name, path.read_bytes())) for path in files[:3]])
    answers = form.json()["predictions"]
    assert [answer["file"] for answer in answers] == [path.name for path in files[:3]]
    for answer, own, path in zip(answers, expected, files, strict=False):
        assert (answer["label"], answer["probability"]) == (
            own.label,
            pytest.approx(own.probability, abs=1e-6),
        )
        assert [row["label"] for row in answer["top"]] == [label for label, _ in own.top]
        raw = post(server, path.read_bytes()).json()["predictions"][0]
        assert raw["probability"] == pytest.approx(own.probability, abs=1e-6) and raw["file"] is None
    assert (
        len(post(server, files[0].read_bytes(), path="/predict?top=1").json()["predictions"][0]["top"]) == 1
    )


def test_one_bad_image_fails_alone(server: TestClient, image: bytes) -> None:
    parts = [
        ("image", ("good.png", image)),
        ("image", ("bad.png", b"\x89PNG\r\n\x1a\nbroken")),
        ("image", ("no.txt", b"hello")),
    ]
    answer = server.post("/predict", files=parts)
    assert answer.status_code == 200
    good, bad, text = answer.json()["predictions"]
    assert good["label"] and bad == {"file": "bad.png", "error": "unreadable_image"}
    assert text == {"file": "no.txt", "error": "not_an_image"}
    all_bad = server.post("/predict", files=parts[1:])
    assert all_bad.status_code == 422 and len(all_bad.json()["predictions"]) == 2


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
    memory, start_time = psutil.Process().memory_info().rss, time.monotonic()
    assert post(server, bytes(held)).status_code == 422
    assert time.monotonic() - start_time < 2 and psutil.Process().memory_info().rss - memory < 50e6


def test_too_many_images(server: TestClient, image: bytes) -> None:
    answer = server.post("/predict", files=[("image", (f"{row}.png", image)) for row in range(5)])
    assert (answer.status_code, answer.json()["error"]) == (413, "too_many")


def test_attention_is_the_models_own(server: TestClient, digits: Classifier, files: list[Path]) -> None:
    image = files[0].read_bytes()
    maps = attention_maps(digits.model, digits.read(image)[None]).detach()[0]  # (L, H, N, N)
    one = post(server, image, path="/attention?layer=0&head=2&patch=5").json()
    assert (one["layer"], one["grid"]) == (0, [4, 4])
    np.testing.assert_allclose(np.ravel(one["maps"][0]), maps[0, 2, 6, 1:], atol=2e-6)
    np.testing.assert_allclose(one["prefix"][0], maps[0, 2, 6, :1], atol=2e-6)
    mean = post(server, image, path="/attention").json()
    np.testing.assert_allclose(np.ravel(mean["maps"][0]), maps[-1].mean(0)[0, 1:], atol=2e-6)
    heads = post(server, image, path="/attention?head=all&patch=mean").json()["maps"]
    np.testing.assert_allclose(np.reshape(heads, (4, 16)), maps[-1][:, 1:, 1:].mean(1), atol=2e-6)
    whole = post(server, image, path="/attention?layer=1&head=all&patch=all")
    shape = tuple(map(int, whole.headers["X-Shape"].split(",")))
    np.testing.assert_allclose(np.frombuffer(whole.content, "<f2").reshape(shape), maps[1], atol=1e-3)
    links = [(layer.mean(0) + np.eye(17)) / 2 for layer in maps.numpy()]
    rolled = post(server, image, path="/attention?kind=rollout").json()
    np.testing.assert_allclose(np.ravel(rolled["maps"]), (links[1] @ links[0])[0, 1:], atol=2e-6)


@pytest.mark.parametrize("query", ["layer=2", "layer=x", "head=4", "head=-1", "patch=16", "kind=magic"])
def test_attention_out_of_range(server: TestClient, image: bytes, query: str) -> None:
    assert post(server, image, path=f"/attention?{query}").status_code == 422


def test_parameters_change_how_many_labels_and_nothing_else(server: TestClient, image: bytes) -> None:
    plain, five, one = (post(server, image, path=f"/predict{query}") for query in ("", "?top=5", "?top=1"))
    assert plain.json() == five.json()
    (whole,), (short,) = (answer.json()["predictions"] for answer in (plain, one))
    assert short == {**whole, "top": whole["top"][:1]}


def test_only_some_may_look_at_once(
    server: TestClient, image: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, links = threading.Event(), looking.links
    monkeypatch.setattr(looking, "links", lambda *given: (gate.wait(20), links(*given))[1])
    statuses: list[int] = []

    def look() -> None:
        statuses.append(post(server, image, path="/attention").status_code)

    threads = [threading.Thread(target=look) for _ in range(service.LOOKERS + 3)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 20
    while len(statuses) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert statuses == [429, 429, 429]
    gate.set()
    for thread in threads:
        thread.join()
    assert statuses[3:] == [200] * service.LOOKERS


def test_positions_are_cosines_of_the_models_embedding(server: TestClient, digits: Classifier) -> None:
    places = digits.model.pos_embed[0, 1:].detach().numpy()
    places = places / np.linalg.norm(places, axis=1, keepdims=True)
    found = np.frombuffer(server.get("/positions").content, "<f2").reshape(16, 16)
    np.testing.assert_allclose(found, places @ places.T, atol=1e-3)


def test_preprocess_returns_what_the_model_sees(
    server: TestClient, digits: Classifier, files: list[Path]
) -> None:
    seen = np.asarray(Image.open(io.BytesIO(post(server, files[0].read_bytes(), path="/preprocess").content)))
    np.testing.assert_array_equal(seen, np.asarray(Image.open(files[0])))


def test_a_model_without_attention_serves_predictions(files: list[Path]) -> None:
    config = ResNetConfig(layers=(1,), stem_width=32, num_classes=3, in_channels=1, image_size=(32, 32))
    transform = evaluation_transform(Preprocessing(image_size=(32, 32), mean=(0.5,), std=(0.5,)), 32)
    with client(Classifier(ResNet(config).eval(), transform, ["a", "b", "c"])) as made:
        wait_until_ready(made)
        assert post(made, files[0].read_bytes()).status_code == 200
        assert made.get("/model").json()["attention"] is None
        assert post(made, files[0].read_bytes(), path="/attention").status_code == 404


def test_not_ready_until_warm(digits: Classifier, image: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    original = Classifier.probabilities
    monkeypatch.setattr(Classifier, "probabilities", lambda self, x: (gate.wait(20), original(self, x))[1])
    with client(digits) as made:
        assert made.get("/healthz").status_code == 200
        for answer in (made.get("/readyz"), post(made, image)):
            assert (answer.status_code, answer.json()["error"]) == (503, "not_ready")
            assert answer.headers["Retry-After"] == "1"
        gate.set()
        wait_until_ready(made)
        assert post(made, image).status_code == 200


def test_hosts_origins_and_token(digits: Classifier, image: bytes) -> None:
    with client(digits, token=TOKEN, origins=("https://friend.example",)) as made:
        wait_until_ready(made)
        assert made.get("/model", headers={"Host": "evil.example"}).json()["error"] == "wrong_host"
        assert (
            made.get(
                "/model", headers={"Host": "testserver:8000", "Authorization": f"Bearer {TOKEN}"}
            ).status_code
            == 200
        )
        for path in ("/model", "/metrics", "/openapi.json", "/examples"):
            assert made.get(path).status_code == 401
            assert made.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
            assert made.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        for path in ("/", "/healthz", "/readyz", "/web/app.js"):
            assert made.get(path).status_code == 200
        known = {"Authorization": f"Bearer {TOKEN}"}
        assert post(made, image, Origin="https://evil.example", **known).json()["error"] == "wrong_origin"
        assert post(made, image, Origin="http://testserver", **known).status_code == 200
        friend = post(made, image, Origin="https://friend.example", **known)
        assert friend.headers["Access-Control-Allow-Origin"] == "https://friend.example"
    with client(digits) as made:
        answer = made.get("/healthz", headers={"Origin": "https://friend.example"})
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_headers_ids_and_errors_tell_nothing(
    digits: Classifier, image: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with client(digits) as made:
        wait_until_ready(made)
        page = made.get("/")
        assert "script-src 'self'" in page.headers["Content-Security-Policy"]
        assert "unsafe" not in page.headers["Content-Security-Policy"]
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert made.get("/healthz", headers={"X-Request-ID": "mine-1"}).headers["X-Request-ID"] == "mine-1"
        assert (
            made.get("/healthz", headers={"X-Request-ID": "<bad id>"}).headers["X-Request-ID"] != "<bad id>"
        )
        assert made.get("/../../etc/passwd").status_code == 404
        assert made.get("/web/%2e%2e/app.py").status_code == 404

        monkeypatch.setattr(Classifier, "abstain", property(broken_property))
        capsys.readouterr()
        answer = post(made, image, **{"X-Request-ID": "the-broken-one"})
    assert answer.status_code == 500 and "secret" not in answer.text
    assert answer.json()["request_id"] == "the-broken-one"
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    logged = next(line for line in lines if line.get("request_id") == "the-broken-one")
    assert logged["status"] == 500 and "secret" in logged["traceback"] and logged["path"] == "/predict"


def broken_property(self: Classifier) -> float:
    raise RuntimeError("a secret path /home/me/model")


def test_metrics_count_what_happened(digits: Classifier, image: bytes) -> None:
    with client(digits) as made:
        wait_until_ready(made)
        post(made, image)
        post(made, b"text")
        made.get("/nothing/like/this")
        text = made.get("/metrics").text
    assert 'vitreous_requests_total{route="/predict",status="200"} 1.0' in text
    assert 'vitreous_requests_total{route="/predict",status="415"} 1.0' in text
    assert 'vitreous_requests_total{route="other",status="404"} 1.0' in text
    assert 'vitreous_images_total{outcome="answered"} 1.0' in text
    assert "vitreous_images_inside 0.0" in text and "vitreous_ready 1.0" in text


def test_the_card_tells_no_paths(digits: Classifier) -> None:
    about = {
        "results": {"test": {"accuracy": 0.9}},
        "recipe": {"epochs": 3, "out": "/home/me"},
        "data": "/home/me",
    }
    told = Classifier(digits.model, digits.preprocess, digits.labels, about)
    with client(told) as made:
        card = made.get("/model")
    assert card.json()["about"]["results"]["test"]["accuracy"] == 0.9
    assert card.json()["recipe"] == {"epochs": 3} and "/home" not in card.text


def test_calibration_and_abstention_reach_the_answer(digits: Classifier, files: list[Path]) -> None:
    about = {"calibration": {"temperature": 5.0}, "abstain": 0.9}
    cautious = Classifier(digits.model, digits.preprocess, digits.labels, about)
    with client(cautious) as made:
        wait_until_ready(made)
        answer = post(made, files[0].read_bytes()).json()["predictions"][0]
    own = cautious.predict(files[0])[0]
    assert answer["label"] is None and own.label is None
    assert answer["probability"] == pytest.approx(own.probability, abs=1e-6)
    assert own.probability < digits.predict(files[0])[0].probability


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


@pytest.fixture(scope="module")
def process(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    command = ["-m", "vitreous", "serve", str(checkpoint), "--max-body-mib", "1", "--deadline", "2"]
    with running(command, tmp_path_factory.mktemp("process")) as server:
        yield server


def test_the_schema_holds_for_whatever_is_sent(process: Running) -> None:
    """Schemathesis makes requests from the OpenAPI document: no 5xx, and every answer as described."""
    schema = schemathesis.openapi.from_url(f"{process.url}/openapi.json")
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
    memory = psutil.Process(process.process.pid).memory_info().rss
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
    assert psutil.Process(process.process.pid).memory_info().rss - memory < 16e6


def test_an_announced_body_is_refused_before_it_is_sent(process: Running) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as sock:
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{process.port}\r\nContent-Type: image/png\r\n"
        sock.sendall(head.encode() + b"Content-Length: 99999999\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 413")


def test_a_body_that_does_not_come_is_given_up(process: Running) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as sock:
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{process.port}\r\nContent-Type: image/png\r\n"
        sock.sendall(head.encode() + b"Content-Length: 1000\r\n\r\nabc")
        start_time = time.monotonic()
        assert sock.recv(65536).startswith(b"HTTP/1.1 408")
        assert 1.5 < time.monotonic() - start_time < 5


def test_sigterm_lets_requests_finish(checkpoint: Path, image: bytes, tmp_path: Path) -> None:
    command = [str(Path(__file__).with_name("slow_server.py")), str(checkpoint), "0.8"]
    with running(command, tmp_path) as server:
        found: list[httpx.Response] = []
        header = {"Content-Type": "image/png"}

        def send() -> None:
            found.append(httpx.post(f"{server.url}/predict", content=image, headers=header, timeout=30))

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 10
        while httpx.get(f"{server.url}/metrics").text.find("vitreous_images_inside 3.0") < 0:
            assert time.monotonic() < until
        assert server.stop() == 0
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in found] == [200, 200, 200]


@pytest.mark.slow
def test_overload_keeps_deadlines_and_memory(checkpoint: Path, image: bytes, tmp_path: Path) -> None:
    """Ten times the capacity for 20 s: what is let in is answered in time, the rest is told so at once."""
    seconds, deadline, each = 20.0, 2.0, 0.02
    command = [str(Path(__file__).with_name("slow_server.py")), str(checkpoint), str(each)]
    with running([*command, "--deadline", str(deadline), "--queue", "32"], tmp_path) as server:
        memory = psutil.Process(server.process.pid)
        asyncio.run(_press(server, image, clients=10, rate=50, seconds=2.0))
        before = memory.memory_info().rss
        found = asyncio.run(_press(server, image, clients=100, rate=10 / each, seconds=seconds))
        growth = memory.memory_info().rss - before
    accepted = [took for status, took in found if status == 200]
    refused = sorted(took for status, took in found if status == 429)
    assert {status for status, _ in found} == {200, 429}
    assert len(found) > 0.5 * seconds * 10 / each, "the load was not put on the server"
    assert len(accepted) > 0.6 * seconds / each, "capacity was lost under overload"
    assert max(accepted) < deadline
    assert refused[int(0.95 * len(refused))] < 0.25
    assert growth < 30e6


async def _press(
    server: Running, image: bytes, clients: int, rate: float, seconds: float
) -> list[tuple[int, float]]:
    """Send at a rate that does not wait for answers; return each request's status and time."""
    head = "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
    head += f"Content-Length: {len(image)}\r\n\r\n"
    found: list[tuple[int, float]] = []
    end = time.perf_counter() + seconds

    async def one(index: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        due = time.perf_counter() + index / rate
        while (now := time.perf_counter()) < end:
            await asyncio.sleep(max(0, due - now))
            due += clients / rate
            start_time = time.perf_counter()
            writer.write(head.encode() + image)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            found.append((int(answer[9:12]), time.perf_counter() - start_time))
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(one(index) for index in range(clients)))
    return found


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match="--deadline 0 is out of range"):
        start.settings(deadline=0)
    with pytest.raises(VitreousError, match="is no origin"):
        start.settings(allow_origin=("example.org",))
    (tmp_path / "token").write_text("short")
    with pytest.raises(VitreousError, match="16 or more"):
        start.settings(token_file=tmp_path / "token")
    with pytest.raises(VitreousError, match="No such file"):
        start.settings(token_file=tmp_path / "missing")
    assert start.settings(host="10.0.0.5").hosts[-1] == "10.0.0.5"
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(VitreousError, match="Address already in use"),
    ):
        start.listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(VitreousError, match="port 99999 does not exist"):
        start.listen("127.0.0.1", 99999)


def test_a_missing_checkpoint_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["serve", str(tmp_path / "none.safetensors")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_answers_agree_with_a_loaded_checkpoint(
    process: Running, checkpoint: Path, files: list[Path]
) -> None:
    own = vitreous.load(checkpoint).predict(files)
    for path, prediction in zip(files, own, strict=True):
        answer = httpx.post(
            f"{process.url}/predict", content=path.read_bytes(), headers={"Content-Type": "image/png"}
        )
        assert answer.json()["predictions"][0]["label"] == prediction.label
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert httpx.get(f"{process.url}/model").json()["labels"] == [str(digit) for digit in range(10)]


def test_a_model_that_cannot_be_warmed_ends_the_server(
    digits: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Classifier, images: Any) -> Any:
        raise VitreousError("the device is gone")

    monkeypatch.setattr(Classifier, "probabilities", broken)
    failures: list[BaseException] = []
    app = create_app(digits, "digits", Settings(hosts=("testserver",)), failures.append)
    with TestClient(app) as made:
        until = time.monotonic() + 20
        while not failures:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert made.get("/readyz").status_code == 503
    assert str(failures[0]) == "the device is gone"
