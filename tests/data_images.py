"""Small images and folders for the data tests; made here, never downloaded."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what vitreous remembers away from the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("VITREOUS_CACHE", str(folder))
    return folder


def picture(seed: int = 0, size: tuple[int, int] = (48, 36), mode: str = "RGB") -> Image.Image:
    """Return a picture with smooth areas and edges, as photographs have; another one for each seed."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (5, 6, 3), np.uint8)
    image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    pixels = np.array(image)
    pixels[: size[1] // 3, : size[0] // 3] = random.integers(0, 256, 3)
    return Image.fromarray(pixels).convert(mode)


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    """Return the image as a file's bytes."""
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def make_folder(root: Path, classes: dict[str, int], *, format: str = "png", first: int = 0) -> Path:
    """Write a folder of class folders, every image with its own content."""
    seed = first
    for name, count in classes.items():
        for i in range(count):
            path = root / name / f"{i:03d}.{format}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(picture(seed), {"png": "PNG", "jpg": "JPEG"}[format]))
            seed += 1
    return root
