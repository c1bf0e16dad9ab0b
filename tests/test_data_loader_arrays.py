"""Arrays in memory go through the loader as files do: same order, same transform, same masks."""

import numpy as np
import pytest
import torch

from tests.data_batches import assert_same, digits_loader
from tests.data_images import own_cache
from vitreous.config import Augment, Preprocessing
from vitreous.data import open_data
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
