"""What the server shows of attention and positions: the model's own, and no more at once than it can bear."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from tests.serve_client import post
from vitreous.inspection import attention_maps, gradient_rollout
from vitreous.predict import Classifier
from vitreous.serve import attention, service


def test_attention_is_the_models_own(server: TestClient, digits: Classifier, files: list[Path]) -> None:
    image = files[0].read_bytes()
    maps = attention_maps(digits.model, digits.collate([digits.prepare(image)]).images).detach()[
        0
    ]  # (L, H, N, N)
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
    third = post(server, image, path="/attention?layer=1&head=2&patch=all")
    assert third.headers["X-Shape"] == "1,17,17"
    np.testing.assert_allclose(np.frombuffer(third.content, "<f2").reshape(17, 17), maps[1, 2], atol=1e-3)
    links = [(layer.mean(0) + np.eye(17)) / 2 for layer in maps.numpy()]
    rolled = post(server, image, path="/attention?kind=rollout").json()
    np.testing.assert_allclose(np.ravel(rolled["maps"]), (links[1] @ links[0])[0, 1:], atol=2e-6)


def test_what_speaks_for_a_class_is_the_models_own(
    server: TestClient, digits: Classifier, files: list[Path]
) -> None:
    image = files[0].read_bytes()
    images = digits.collate([digits.prepare(image)]).images
    found = post(server, image, path="/relevance?label=3").json()
    assert (found["label"], found["grid"]) == ("3", [4, 4])
    own = gradient_rollout(digits.model, images, torch.tensor([3]))[0]
    np.testing.assert_allclose(found["map"], own, atol=2e-6)
    best = digits.predict(image)[0].label
    assert best is not None
    likeliest = post(server, image, path="/relevance").json()
    assert likeliest["label"] == best
    named = post(server, image, path=f"/relevance?label={digits.labels.index(best)}").json()
    assert likeliest["map"] == named["map"] != found["map"]
    for wrong in ("label=10", "label=-1", "label=three"):
        assert post(server, image, path=f"/relevance?{wrong}").status_code == 422


@pytest.mark.parametrize(
    "query",
    [
        "layer=2",
        "layer=x",
        "head=4",
        "head=-1",
        "patch=16",
        "kind=magic",
        "head=99&patch=all",
        "head=4&patch=all",
        "head=99&kind=rollout",
    ],
)
def test_attention_out_of_range(server: TestClient, image: bytes, query: str) -> None:
    assert post(server, image, path=f"/attention?{query}").status_code == 422


def test_only_some_may_ask_at_once(server: TestClient, image: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, links = threading.Event(), attention.links
    monkeypatch.setattr(attention, "links", lambda *given: (gate.wait(20), links(*given))[1])
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(post(server, image, path="/attention").status_code)

    threads = [threading.Thread(target=ask) for _ in range(service.MAX_INSPECTIONS + 3)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 20
    while len(statuses) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert statuses == [429, 429, 429]
    gate.set()
    for thread in threads:
        thread.join()
    assert statuses[3:] == [200] * service.MAX_INSPECTIONS


def test_positions_are_cosines_of_the_models_embedding(server: TestClient, digits: Classifier) -> None:
    places = digits.model.pos_embed[0, 1:].detach().numpy()
    places = places / np.linalg.norm(places, axis=1, keepdims=True)
    found = np.frombuffer(server.get("/positions").content, "<f2").reshape(16, 16)
    np.testing.assert_allclose(found, places @ places.T, atol=1e-3)
