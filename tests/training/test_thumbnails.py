"""Small pictures that are sealed with a model: only if asked for, of every class, and read with limits."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.hostile import pictures
from tests.training.runs import run
from vitreous import checkpoint
from vitreous.data import open_data, thumbnails
from vitreous.data.decode import decode
from vitreous.predict import load
from vitreous.serve.examples import examples
from vitreous.training import Result


def test_training_seals_what_the_explorer_shows(data: str, tmp_path: Path, undisturbed: Result) -> None:
    run(data, tmp_path, epochs=1, thumbnails=4)
    classifier = load(tmp_path / "best.safetensors")
    found = examples(classifier)
    assert list(found) == ["1-rows.png", "2-columns.png", "3-flat.png", "4-rows.png"]
    dataset = open_data(data)
    split = dataset.splits["train"]
    index = int((split.targets == dataset.labels.index("columns")).argmax())
    kind, png = found["2-columns.png"]
    assert kind == "image/png" and np.array_equal(decode(png, 1), split.read(index, 1))
    assert classifier.predict(png)[0].label in classifier.labels
    assert thumbnails.ENTRY not in checkpoint.read(undisturbed.folder / "best.safetensors").about


def test_photographs_become_small(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for number in range(3):
            path = tmp_path / name / f"{number}.jpg"
            path.parent.mkdir(exist_ok=True)
            pictures.noise((400, 300), seed=ord(name) + number).save(path)
    (tmp_path / "a" / "0.jpg").write_bytes(b"no picture")
    dataset = open_data(tmp_path, carve=False)
    made = thumbnails.make(dataset.splits["train"], dataset.labels, 3, 3)
    assert [each["label"] for each in made] == ["b", "a", "b"], "in turn, without the one that can't be read"
    for label, form, data in thumbnails.read({thumbnails.ENTRY: made}):
        assert label in "ab" and form == "JPEG" and len(data) < thumbnails.MOST_BYTES
    assert len(thumbnails.read({thumbnails.ENTRY: made})) == 3


def encoded(size: tuple[int, int], form: str = "PNG") -> str:
    return base64.b64encode(pictures.encoded(Image.new("L", size), form)).decode()


@pytest.mark.parametrize(
    "entry",
    [
        None,
        "text",
        {"label": 3, "image": encoded((8, 8))},
        {"label": "a", "image": "no base64!"},
        {"label": "a", "image": base64.b64encode(b"<svg/>").decode()},
        {"label": "a", "image": encoded((97, 97))},
        {"label": "a", "image": encoded((8, 8), "GIF")},
        {"label": "a", "image": base64.b64encode(np.random.default_rng(0).bytes(40_000)).decode()},
    ],
)
def test_what_is_no_thumbnail_is_passed_over(entry: Any) -> None:
    good = {"label": "b", "image": encoded((8, 8))}
    assert [label for label, _, _ in thumbnails.read({thumbnails.ENTRY: [entry, good]})] == ["b"]
    assert thumbnails.read({thumbnails.ENTRY: entry}) == []
    assert len(thumbnails.read({thumbnails.ENTRY: [good] * 99})) == thumbnails.MOST
