"""One affine map and one change of colours per image: against torchvision, and by how often each happens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from tests.data_images import own_cache, picture
from vitreous.config import Augment, Preprocessing
from vitreous.data import make_loader, open_data, variation
from vitreous.data.augment import preset
from vitreous.data.draws import words

__all__ = ["own_cache"]

NEVER = 0.999  # a draw at which nothing with a probability happens
PLAIN = Augment(crop_scale=None, flip=0.0)


def pictures(count: int = 1, size: tuple[int, int] = (40, 30)) -> Tensor:
    pixels = np.stack([np.array(picture(seed, size)) for seed in range(count)])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def moved(images: Tensor, **draws: float) -> Tensor:
    """Move images with draws of one's own: shift_x, shift_y, turn, shear, scale, from 0 to 1."""
    values = dict.fromkeys(("shift_x", "shift_y"), 0.5)
    row = [draws.get("shift_x", values["shift_x"]), draws.get("shift_y", values["shift_y"])]
    for name in ("turn", "shear", "scale"):
        row += [0.0 if name in draws else NEVER, draws.get(name, 0.5)]
    maps = variation._maps(torch.tensor([row] * len(images)), 1.0, *images.shape[2:])
    return variation._moved(images, maps)


def inner(images: Tensor, margin: int = 9) -> Tensor:
    """Return the middle, which no mirrored edge reaches."""
    return images[..., margin:-margin, margin:-margin].float()


@pytest.mark.parametrize(
    ("draws", "expected"),
    [
        ({"turn": 0.75}, {"angle": -10.0}),
        ({"scale": 0.25}, {"scale": 1 / 0.875}),
        ({"shear": 0.75}, {"shear": [8.530766, 0.0]}),  # the arc tangent of 0.15
        ({"shift_x": 0.75, "shift_y": 0.3}, {"translate": [-2.5, 1.5]}),
    ],
)
def test_maps_are_torchvisions(draws: dict[str, float], expected: dict[str, Any]) -> None:
    images = pictures(4)
    settings = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]} | expected
    theirs = F.affine(images, **settings, interpolation=InterpolationMode.BILINEAR)
    ours = moved(images, **draws)
    assert (inner(ours) - inner(theirs)).abs().mean() < 0.6
    assert (inner(images) - inner(theirs)).abs().mean() > 3


def test_beyond_the_edge_lies_a_mirror() -> None:
    images = pictures(2, (40, 40))
    shifted = moved(images, shift_x=0.0)  # everything moves to the right by an eighth
    assert torch.equal(shifted[..., 5:], images[..., :-5])
    assert torch.equal(shifted[..., :5], images[..., :5].flip(3))
    assert torch.equal(moved(images), images)


def drawn(count: int, augment: Augment) -> Tensor:
    keys = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    images = pictures(1).expand(count, -1, -1, -1).contiguous()
    return variation.vary(images, augment, variation.draw(augment, words(3, 1, *keys)))


def test_a_strength_of_zero_changes_nothing_and_another_does() -> None:
    images = pictures(1)
    assert torch.equal(drawn(20, PLAIN), images.expand(20, -1, -1, -1))
    for field in ("geometry", "color"):
        mild, full = (
            (drawn(60, replace(PLAIN, **{field: x})).float() - images).abs().mean() for x in (0.3, 1.0)
        )
        assert 0 < mild < full
    assert torch.equal(drawn(5, PLAIN), drawn(9, PLAIN)[:5])


def test_maps_happen_as_often_as_they_should() -> None:
    torch.manual_seed(0)
    maps = variation._maps(torch.rand(20_000, 8), 1.0, 32, 32)
    shift, matrix = maps[:, :, 2], maps[:, :, :2]
    assert shift.abs().max() <= 0.25 and shift.abs().mean() == pytest.approx(0.125, abs=0.005)
    scale = torch.linalg.det(matrix).sqrt()
    assert 0.75 <= scale.min() and scale.max() <= 1.25
    assert (scale.sub(1).abs() > 1e-5).float().mean() == pytest.approx(0.5, abs=0.02)
    angle = torch.atan2(matrix[:, 1, 0], matrix[:, 0, 0]).rad2deg()
    assert angle.abs().max() <= 20.01
    assert (angle.abs() > 1e-4).float().mean() == pytest.approx(0.4, abs=0.02)


def colored(images: Tensor, **draws: float) -> Tensor:
    """Colour images with draws of one's own; what is not named does not happen."""
    names = ("stretch", "invert", "posterize", "bits", "solarize", "threshold")
    names += ("brightened", "brightness", "contrasted", "contrast", "saturated", "saturation")
    row = torch.tensor([draws.get(name, NEVER) for name in names])
    return variation._colored(images, row.expand(len(images), -1), 1.0)


def test_colors_are_torchvisions() -> None:
    images = pictures(4)
    assert torch.equal(colored(images), images)
    assert torch.equal(colored(images, invert=0.0), F.invert(images))
    assert torch.equal(colored(images, stretch=0.0), F.autocontrast(images))
    for draw, kept in ((0.0, 6), (0.5, 5), (0.9, 4)):
        assert torch.equal(colored(images, posterize=0.0, bits=draw), F.posterize(images, bits=kept))
    ours = colored(images, solarize=0.0, threshold=0.25)
    assert torch.equal(ours, F.solarize(images, threshold=160.0))
    ours = colored(images, brightened=0.0, brightness=0.75)
    assert (ours.int() - F.adjust_brightness(images, 1.2).int()).abs().max() <= 1
    ours = colored(images, saturated=0.0, saturation=0.25)
    assert (ours.int() - F.adjust_saturation(images, 0.8).int()).abs().max() <= 1
    ours = colored(images, contrasted=0.0, contrast=0.25).float()  # about the mean of the levels, not of gray
    assert (ours - F.adjust_contrast(images, 0.8).float()).abs().mean() < 4
    assert torch.allclose(ours.std((1, 2, 3)), 0.8 * images.float().std((1, 2, 3)), rtol=0.02)


def test_any_number_of_channels() -> None:
    images = torch.randint(0, 256, (6, 13, 8, 8), dtype=torch.uint8)
    keys = torch.arange(6), torch.zeros(6, dtype=torch.int64)
    for channels in (1, 13):
        part = images[:, :channels]
        augment = replace(PLAIN, geometry=1.0, color=1.0)
        varied = variation.vary(part, augment, variation.draw(augment, words(0, 0, *keys)))
        assert varied.shape == part.shape and not torch.equal(varied, part)


def test_host_and_device_make_the_same_images(tmp_path: Path) -> None:
    images = pictures(40, (16, 16)).permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(40) % 3)
    split = open_data(tmp_path / "x.npz", carve=False).splits["train"]
    augment = preset("small")
    assert augment.geometry == augment.color == 1.0
    options: dict[str, Any] = {
        "preprocessing": Preprocessing(image_size=(16, 16)),
        "augment": augment,
        "batch_size": 10,
        "seed": 2,
    }
    for ours, theirs in zip(
        make_loader(split, pixels="device", **options).epoch(1),
        make_loader(split, **options).epoch(1),
        strict=True,
    ):
        torch.testing.assert_close(ours.images, theirs.images, atol=1e-5, rtol=0)
        torch.testing.assert_close(ours.targets, theirs.targets, atol=1e-5, rtol=0)
    plain = next(
        make_loader(split, **(options | {"augment": replace(augment, geometry=0.0, color=0.0)})).epoch(1)
    )
    assert not torch.allclose(plain.images, next(make_loader(split, **options).epoch(1)).images, atol=0.1)
