"""Arrays in memory go through the loader as files do: same order, same transform, same masks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data_batches import assert_same, digits_loader
from tests.data_images import own_cache
from vitreous.config import Augment, Preprocessing
from vitreous.data import make_loader, open_data
from vitreous.data.augment import evaluation_transform

__all__ = ["own_cache"]


def test_arrays_in_memory_follow_the_same_order() -> None:
    everything = Augment(crop_scale=(0.5, 1.0), randaugment=(2, 9), mixup=0.3, erase=0.2)
    whole = list(digits_loader(augment=everything).epoch(3))
    assert_same(list(digits_loader(augment=everything, workers=3).epoch(3)), whole)
    parts = [list(digits_loader(augment=everything, rank=r, world_size=3).epoch(3, 4)) for r in range(3)]
    for step, expected in enumerate(whole[4:]):
        assert torch.allclose(torch.cat([part[step].images for part in parts]), expected.images, atol=1e-6)


def test_arrays_without_augmentation_are_the_pixels() -> None:
    loader = digits_loader(augment="none")
    batch = next(loader.epoch(0))
    index = int(batch.indices[5])
    pixels = np.asarray(loader.split.read(index, channels=1)).astype(np.float32)
    assert np.allclose(batch.images[5, 0].numpy(), pixels / 255 / 0.5 - 1, atol=1e-6)


@pytest.mark.parametrize("resize", ["cover", "exact", "pad"])
def test_arrays_that_are_resized_match_the_transform(resize: str) -> None:
    settings = Preprocessing(image_size=(16, 12), mean=(0.5,), std=(0.5,), resize=resize)  # pyright: ignore[reportArgumentType]
    transform = evaluation_transform(settings, 4)
    held = next(digits_loader(preprocessing=settings, training=False, mask_step=4).epoch())
    trained = next(digits_loader(preprocessing=settings, augment="none", mask_step=4).epoch())
    split = open_data("digits").splits["train"]
    for batch, tolerance in (
        (held, 1e-6),
        (trained, 2.1 / 127.5),
    ):  # training's batched path may round otherwise
        for k in range(20):
            expected = transform(split.read(int(batch.indices[k]), channels=1))
            assert (batch.images[k] - expected).abs().max() <= tolerance


def test_padded_arrays_have_masks_in_training_too() -> None:
    settings = Preprocessing(image_size=(16, 8), mean=(0.5,), std=(0.5,), resize="pad")
    for options in ({"training": False}, {"augment": "light"}, {"augment": "light", "views": 2}):
        batch = next(digits_loader(preprocessing=settings, mask_step=(4, 8), **options).epoch())
        assert batch.mask is not None and len(batch.mask) == len(batch.images)
        assert (batch.mask == torch.tensor([True, True, False, False])).all()  # 8x8 in the upper half


@pytest.mark.parametrize("pixels", ["host", "device"])
@pytest.mark.parametrize("kind", ["array", "files"])
def test_a_mirrored_image_stays_where_its_mask_is(tmp_path: Path, kind: str, pixels: Any) -> None:
    """Padding is right of an upright image; it must not change sides when the image is mirrored."""
    images = np.random.default_rng(0).integers(1, 255, (6, 16, 8, 3), np.uint8)
    if kind == "array":
        np.savez(tmp_path / "upright.npz", train_images=images, train_labels=np.arange(6) % 2)
    else:
        for number, image in enumerate(images):
            path = tmp_path / "upright.npz" / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    split = open_data(tmp_path / "upright.npz", carve=False).splits["train"]
    settings = Preprocessing(image_size=(16, 16), mean=(0.0,) * 3, std=(1.0,) * 3, resize="pad")
    still = Augment(crop_scale=None, flip=0.0)
    plain, mirrored = (
        next(
            make_loader(
                split, preprocessing=settings, augment=augment, batch_size=6, mask_step=8, pixels=pixels
            ).epoch()
        )
        for augment in (still, replace(still, flip=1.0))
    )
    assert torch.equal(mirrored.images[..., :8], plain.images[..., :8].flip(3))
    assert not mirrored.images[..., 8:].any()
    for batch in (plain, mirrored):
        assert batch.mask is not None and (batch.mask == torch.tensor([True, False] * 2)).all()
