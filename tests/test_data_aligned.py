"""Copies that were cropped, mirrored, brightened or encoded anew, and different pictures, told by pixels."""

import io

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from vitreous.data import near
from vitreous.data.aligned import LEAST, Gray, likeness


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return Image.fromarray(load_sample_image("china.jpg"))


def encoded(image: Image.Image, **options: int) -> Image.Image:
    held = io.BytesIO()
    image.save(held, "JPEG", **options)
    return Image.open(held)


CHANGES = {
    "encoded": lambda image: encoded(image.resize((200, 150)), quality=40),
    "cropped": lambda image: image.crop((40, 10, 600, 400)),
    "brightened": lambda image: image.point(lambda value: min(255, round(1.15 * value + 8))),
    "gray": lambda image: image.convert("L"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_copy_is_known_either_way_round(photo: Image.Image, change: str) -> None:
    copy = CHANGES[change](photo)
    assert likeness(Gray(photo), Gray(copy)) >= LEAST and likeness(Gray(copy), Gray(photo)) >= LEAST


def test_a_crop_is_what_the_whole_pictures_don_t_show(photo: Image.Image) -> None:
    copy = CHANGES["cropped"](photo)
    assert not near.alike(photo, copy) and Gray(photo).vector() @ Gray(copy).vector() < LEAST
    assert likeness(Gray(photo), Gray(photo.crop((200, 150, 640, 427)))) < LEAST  # a third is cut off


def test_a_mirrored_copy_counts_where_a_mirror_changes_nothing(photo: Image.Image) -> None:
    copy = Gray(photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    assert likeness(Gray(photo), copy) >= LEAST > likeness(Gray(photo), copy, mirror=False)


def test_different_pictures_are_different(photo: Image.Image) -> None:
    tiles = [photo.crop((x, y, x + 120, y + 120)) for x in range(0, 520, 130) for y in (0, 130, 260)]
    seen = [Gray(tile) for tile in tiles]
    found = [likeness(one, other) for row, one in enumerate(seen) for other in seen[:row]]
    assert max(found) < 0.97


def test_what_has_no_contrast_is_like_nothing() -> None:
    blank, faint = Image.new("RGB", (64, 64), "white"), np.full((64, 64), 200, np.uint8)
    faint[::7] = 201
    assert likeness(Gray(blank), Gray(blank)) == 0
    assert likeness(Gray(Image.fromarray(faint)), Gray(Image.fromarray(faint))) < LEAST


def test_small_pictures_are_compared_whole() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8), np.uint8)
    small = Image.fromarray(pixels)
    assert likeness(Gray(small), Gray(small)) >= LEAST
    assert not Gray(small).movable and Gray(small.resize((64, 64))).movable
    assert likeness(Gray(small), Gray(small.crop((1, 0, 8, 8)))) < LEAST
