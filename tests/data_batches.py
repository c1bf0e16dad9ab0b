"""What the tests of the loader share: a small folder of images, and their batches."""

from typing import Any

import pytest
import torch

from tests.data_images import make_folder
from vitreous.config import Augment, Preprocessing
from vitreous.data import Batch, Loader, Split, make_loader, open_data

SIZE = Preprocessing(image_size=(24, 24))
EVERYTHING = Augment(
    crop_scale=(0.3, 1.0),
    randaugment=(2, 9),
    three_augment=True,
    color_jitter=0.2,
    erase=0.5,
    mixup=0.4,
    cutmix=1.0,
)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    root = make_folder(tmp_path_factory.mktemp("images"), {"a": 14, "b": 12, "c": 11}, format="jpg")
    return open_data(root, carve=False).splits["train"]


def batches(split: Split, epoch: int = 1, start: int = 0, **options: Any) -> list[Batch]:
    settings: dict[str, Any] = {
        "preprocessing": SIZE,
        "augment": EVERYTHING,
        "batch_size": 12,
        "seed": 5,
        "cache": None,
    }
    return list(make_loader(split, **(settings | options)).epoch(epoch, start))


def assert_same(ours: list[Batch], theirs: list[Batch]) -> None:
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.indices, b.indices)
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.targets, b.targets)


def digits_loader(**options: Any) -> Loader:
    """Return a loader of the bundled digits, which are arrays."""
    gray = Preprocessing(image_size=(8, 8), mean=(0.5,), std=(0.5,))
    train = open_data("digits").splits["train"]
    settings: dict[str, Any] = {"preprocessing": gray, "augment": "light", "batch_size": 128}
    return make_loader(train, **(settings | options))
