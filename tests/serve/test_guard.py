"""Who may use the server, and what its headers and errors tell: hosts, origins, tokens, ids."""

import json

import pytest

from tests.serve_client import client, post, wait_until_ready
from vitreous.predict import Classifier

TOKEN = "a-token-of-sufficient-length"


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
        refused = post(made, image, Origin="https://friend.example")
        assert (refused.status_code, refused.json()["error"]) == (401, "no_token")
        assert refused.headers["Access-Control-Allow-Origin"] == "https://friend.example"
        assert refused.headers["WWW-Authenticate"] == "Bearer"
        whole = post(made, image, path="/attention?patch=all", Origin="https://friend.example", **known)
        assert "X-Shape" in whole.headers["Access-Control-Expose-Headers"]
        asked = {"Origin": "https://friend.example", "Access-Control-Request-Method": "POST"}
        assert made.options("/predict", headers=asked).status_code == 200
        assert made.options("/predict", headers={**asked, "Host": "evil.example"}).status_code == 400
        for scheme in ("bearer", "BEARER", "Bearer "):
            assert made.get("/model", headers={"Authorization": f"{scheme} {TOKEN}"}).status_code == 200
        for wrong in (f"Basic {TOKEN}", TOKEN, f"Bearer{TOKEN}", "Bearer", f"Bearer {TOKEN} more"):
            assert made.get("/model", headers={"Authorization": wrong}).status_code == 401
    with client(digits) as made:
        answer = made.get("/healthz", headers={"Origin": "https://friend.example"})
        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null", "", "//", "http://testserver.evil"])
def test_origins_that_are_none(digits: Classifier, image: bytes, origin: str) -> None:
    with client(digits) as made:
        wait_until_ready(made)
        assert post(made, image, Origin=origin).json()["error"] == "wrong_origin"


def test_two_hosts_are_none(digits: Classifier) -> None:
    with client(digits) as made:
        given = [("Host", "testserver"), ("Host", "testserver")]
        answer = made.get("/healthz", headers=given)
        assert (answer.status_code, answer.json()["error"]) == (400, "wrong_host")


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
