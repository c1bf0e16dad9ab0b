"""The server inside the test's own process: a client for it, waited for until the model is warm."""

import time
from typing import Any

from starlette.testclient import TestClient

from vitreous.predict import Classifier
from vitreous.serve.app import create_app
from vitreous.serve.settings import Settings


def client(classifier: Classifier, **changes: Any) -> TestClient:
    """Return a client of a new server; `changes` are settings."""
    app = create_app(classifier, "digits", Settings(**({"hosts": ("testserver",)} | changes)))
    return TestClient(app, raise_server_exceptions=False)


def wait_until_ready(server: TestClient) -> TestClient:
    """Wait until the model is warm."""
    until = time.monotonic() + 120
    while server.get("/readyz").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.02)
    return server


def post(
    server: TestClient, body: bytes, kind: str = "image/png", path: str = "/predict", **more: Any
) -> Any:
    """Send a body as it is."""
    return server.post(path, content=body, headers={"Content-Type": kind, **more})
