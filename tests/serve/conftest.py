"""What the tests of the server share: a server in this process, one in its own, and real digits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.conftest import digits_files
from tests.serve_client import client, wait_until_ready
from tests.serving import Running, running
from vitreous.predict import Classifier


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


@pytest.fixture(scope="module")
def process(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("process")
    with running(checkpoint, folder, "--max-body-mib", "1", "--deadline", "2") as server:
        yield server
