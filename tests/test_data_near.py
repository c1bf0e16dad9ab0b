"""Copies that differ in encoding and size are found among others, and different pictures are not."""

import numpy as np
import pytest
from sklearn.datasets import load_sample_images

from tests.data_images import encoded, picture
from vitreous.data import near, open_data
from vitreous.data.decode import decode


def looks(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 9, 3), np.uint8)


def test_the_search_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair that a search of all pairs finds, wherever the blocks end."""
    monkeypatch.setattr(near, "ROWS", 3)
    monkeypatch.setattr(near, "COLUMNS", 7)
    others, some = looks(40), looks(10, seed=1)
    some[4] = np.clip(others[33].astype(int) + 2, 0, 255)
    some[9] = others[0]
    some[2] = others[39] // 2  # darker: the same hash, another picture
    assert {row: found.tolist() for row, found in near.copies(some, others)} == {4: [33], 9: [0]}
    bits = np.bitwise_count(near.hashes(some)[:, None] ^ near.hashes(others))
    assert bits[2, 39] <= 3 and bits[4, 33] <= 3 and np.median(bits) > 25
    assert list(near.copies(some, others[:0])) == []


def test_blank_pictures_are_copies_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    blank = np.zeros((300, 8, 9, 3), np.uint8)
    found = dict(near.copies(blank[:2], blank))
    assert [len(each) for each in found.values()] == [near.MOST_CANDIDATES] * 2
    assert list(near.copies(blank[:1] + 40, blank)) == []  # a gray one


@pytest.mark.parametrize("quality", [95, 50])
@pytest.mark.parametrize("scale", [0.3, 1.0, 1.5])
def test_photographs_and_their_copies(quality: int, scale: float) -> None:
    from PIL import Image

    images = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    images += [image.crop((x, 100, x + 300, 350)) for image in images for x in (0, 150, 300)]
    copies = [
        decode(
            encoded(each.resize((int(each.width * scale), int(each.height * scale))), "JPEG", quality=quality)
        )
        for each in images
    ]
    found = near.copies(
        np.stack([near.small(each) for each in copies]), np.stack(list(map(near.small, images)))
    )
    assert {row: others.tolist() for row, others in found} == {row: [row] for row in range(len(images))}


def test_large_pictures_have_the_look_of_small_ones() -> None:
    large = picture(3, (4000, 3000))
    less = large.resize((400, 300))
    assert (
        np.abs(near.small(large).astype(int) - near.small(less)).mean() < 1
        and near.deviation(large, less) < 0.05
    )


def test_digits_of_one_class_are_not_taken_for_copies() -> None:
    data = open_data("digits")
    train, test = (
        np.stack([near.small(split.read(i)) for i in range(len(split))])
        for split in (data.splits["train"], data.splits["test"])
    )
    assert len(list(near.copies(test, train))) <= 2  # of 359, which are 8 x 8 pixels each


def test_strokes_on_an_empty_ground_are_told_apart() -> None:
    """Two thin strokes a pixel apart: near as small pictures, and not the same."""
    from PIL import Image

    ground = np.zeros((28, 28), np.uint8)
    ground[4:24, 13:15] = 255
    stroke, beside = Image.fromarray(ground), Image.fromarray(np.roll(ground, 1, axis=1))
    assert not near.alike(stroke, beside)
    assert near.alike(stroke, decode(encoded(stroke, "JPEG", quality=60)))
