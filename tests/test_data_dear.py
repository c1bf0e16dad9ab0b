"""Pictures that may take long to decode: in a process of their own, ended in time; the others pay nothing."""

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from tests.data_images import make_folder, own_cache
from tests.hostile import pictures
from vitreous import cli
from vitreous.config import Preprocessing
from vitreous.data import dear, make_loader, open_data
from vitreous.data.augment import EvaluationTransform
from vitreous.data.decode import decode
from vitreous.errors import DataError
from vitreous.models import zoo
from vitreous.predict import Classifier, Prediction
from vitreous.predict.inputs import find
from vitreous.predict.stream import Failure, predict_all

__all__ = ["own_cache"]

LOAD = ImageFile.ImageFile.load
SIZE = Preprocessing(image_size=(32, 32))


@pytest.fixture
def all_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every picture but the smallest is one that may take long."""
    monkeypatch.setattr(dear, "DEAR_WORK", 1000)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of 77 pixels' width, which alone are dear, are never decoded; the time for one is short."""

    def load(image: ImageFile.ImageFile) -> Any:
        if image.width == 77:
            time.sleep(600)
        return LOAD(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    monkeypatch.setattr(dear, "DEAR_WORK", 5000)
    monkeypatch.setattr(dear, "SECONDS", 0.3)


def header(data: bytes) -> bool:
    return dear.is_dear(Image.open(io.BytesIO(data)), data)


def test_what_is_dear_is_known_from_the_header() -> None:
    def flat(side: int, form: str, **how: Any) -> bytes:
        return pictures.encoded(Image.new("L", (side, side)), form, **how)

    assert not header(flat(5000, "JPEG")) and not header(pictures.flat_png(5000, 5000))
    assert header(flat(7200, "JPEG")) and header(pictures.flat_png(6000, 6000))
    assert not header(pictures.many_scans(10, (3000, 3000)))
    assert header(pictures.many_scans(100, (3000, 3000)))
    assert header(pictures.run_length_bmp(1400, 1300)) and not header(flat(1400, "BMP"))
    shades = Image.fromarray(np.zeros((4500, 4500), np.uint16))
    assert header(pictures.encoded(shades, "PNG")) and not header(flat(4500, "PNG"))


@pytest.mark.parametrize(
    ("mode", "form", "how", "channels"),
    [
        ("RGB", "PNG", {}, 3),
        ("RGBA", "PNG", {}, 4),
        ("RGBA", "PNG", {}, 3),
        ("L", "TIFF", {}, 1),
        ("RGB", "JPEG", {"exif": b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"}, 3),
    ],
)
@pytest.mark.usefixtures("all_dear")
def test_a_dear_picture_has_the_pixels_that_it_has_anyway(
    mode: str, form: str, how: dict[str, Any], channels: int
) -> None:
    data = pictures.encoded(pictures.noise((60, 40)).convert(mode), form, **how)
    apart, here = decode(data, channels), decode(data, channels, guarded=True)
    assert apart.mode == here.mode and np.array_equal(np.asarray(apart), np.asarray(here))
    small = decode(data, channels, shortest=20)
    assert np.array_equal(np.asarray(small), np.asarray(decode(data, channels, shortest=20, guarded=True)))


@pytest.mark.usefixtures("all_dear")
def test_what_is_wrong_with_a_dear_picture_is_said() -> None:
    data = pictures.encoded(pictures.noise((60, 40)), "JPEG")
    with pytest.raises(DataError, match=r"^cut\.jpg: image file is truncated"):
        decode(data[: len(data) // 2], name="cut.jpg")


def test_cheap_pictures_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a process was started"))
    decode(pictures.encoded(pictures.noise((640, 480)), "JPEG", progressive=True))


@pytest.mark.usefixtures("endless")
def test_predict_names_a_picture_that_takes_too_long_and_goes_on(tmp_path: Path) -> None:
    config = {"image_size": 32, "patch_size": 8, "width": 32, "depth": 1, "heads": 4, "mlp_width": 64}
    model = zoo.create_model("ViT-B/16", **config, num_classes=2)
    small = Classifier(model, EvaluationTransform(SIZE, (8, 8)), ["a", "b"])
    for number, width in enumerate((40, 77, 50)):
        Image.new("L", (width, 40), 90).save(tmp_path / f"{number}.png")
    first, bad, last = predict_all(small, find([str(tmp_path)]), workers=2)
    assert isinstance(first, Prediction) and isinstance(last, Prediction)
    assert bad == Failure(
        str(tmp_path / "1.png"), "decoding took longer than 0.3 s: save the image anew, or smaller"
    )


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("workers", [0, 1])
def test_the_loader_and_check_go_on_without_a_picture_that_takes_too_long(
    tmp_path: Path, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folder(tmp_path / "data", {"a": 5, "b": 5})
    Image.new("RGB", (77, 60), (9, 9, 9)).save(root / "a" / "slow.png")
    split = open_data(root, carve=False).splits["train"]
    loader = make_loader(
        split, preprocessing=SIZE, batch_size=11, cache=None, augment="light", workers=workers
    )
    assert sum(len(batch) for batch in loader.epoch()) in (10, 11)
    assert list(loader.bad) == [5] and "took longer than 0.3 s" in loader.bad[5]
    assert cli.main(["check", str(root), "--json"]) == 0
    (bad,) = json.loads(capsys.readouterr().out)["unreadable"]
    assert bad["file"] == "a/slow.png" and "took longer than 0.3 s" in bad["reason"]
