"""Photographs with faults, and a model of another kind than the digits': untrained, in colour, padding."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from tests.conftest import randomize
from vitreous.config import Preprocessing
from vitreous.data.augment import evaluation_transform
from vitreous.models.architecture import ViTConfig
from vitreous.models.zoo import build
from vitreous.predict import Classifier

SIDE = 120


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path_factory.mktemp("cache")))


def tiles() -> Iterator[Image.Image]:
    """Yield parts of two photographs that don't overlap."""
    for name in ("china.jpg", "flower.jpg"):
        photo = Image.fromarray(load_sample_image(name))
        for left in range(0, photo.width - SIDE, SIDE):
            for top in range(0, photo.height - SIDE, SIDE):
                yield photo.crop((left, top, left + SIDE, top + SIDE))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty pictures of two classes, and copies of four: cropped, mirrored, exact, with another label."""
    root = tmp_path_factory.mktemp("photos")
    pictures = list(tiles())
    for number, picture in enumerate(pictures):
        folder = root / "train" / ("china" if number < len(pictures) // 2 else "flower")
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{number:02d}.png")
    (root / "test" / "china").mkdir(parents=True)
    pictures[1].crop((4, 3, 117, 113)).save(root / "test" / "china" / "cropped.jpg", quality=80)
    pictures[2].transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(root / "train" / "china" / "mirrored.png")
    pictures[3].save(root / "train" / "china" / "exact.png")
    pictures[4].save(root / "train" / "flower" / "relabelled.jpg", quality=70)
    return root


def padded(classes: int = 0) -> Classifier:
    """A model in colour that pads pictures that are not square, of random weights; 0 classes: no head."""
    config = ViTConfig(
        image_size=(32, 32), patch_size=(8, 8), width=32, depth=2, heads=4, mlp_width=64, num_classes=classes
    )
    preprocessing = Preprocessing(image_size=(32, 32), resize="pad")
    transform = evaluation_transform(preprocessing, config.step)
    return Classifier(randomize(build(config)), transform, [f"class {k}" for k in range(classes)], {})


@pytest.fixture(scope="session")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed file without head, whose model pads."""
    return padded().save(tmp_path_factory.mktemp("headless") / "headless.safetensors")
