"""Every setting of `Augment` reaches the batches of the loader, from files and from arrays, and does what it
says; and so does padding."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from tests.data_images import make_folder, own_cache, picture
from vitreous.config import Augment, Preprocessing
from vitreous.data import Batch, Split, make_loader, open_data
from vitreous.errors import DataError

__all__ = ["own_cache"]

SIZE = Preprocessing(image_size=(36, 48))
STILL = Augment(crop_scale=None, flip=0.0)
COUNT = 32


@pytest.fixture(scope="module", params=["files", "arrays"])
def split(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Split:
    """The same 32 images of 36x48, all different, as files and as arrays."""
    folder = tmp_path_factory.mktemp("images")
    if request.param == "files":
        return open_data(make_folder(folder, {"a": 11, "b": 21}), carve=False).splits["train"]
    pixels = np.stack([np.asarray(picture(seed)) for seed in range(COUNT)])
    np.savez(folder / "x.npz", images=pixels, labels=np.arange(COUNT) // 11 > 0)
    return open_data(folder / "x.npz", carve=False).splits["train"]


def load(split: Split, augment: Augment, **options: Any) -> Batch:
    """Return all images as one batch."""
    settings: dict[str, Any] = {"preprocessing": SIZE, "batch_size": COUNT, "seed": 3, "cache": None}
    return next(make_loader(split, augment=augment, **(settings | options)).epoch(0))


def both(split: Split, **changes: Any) -> tuple[Batch, Batch]:
    """Return the images as they are, and with a setting changed; their order is the same."""
    plain, varied = load(split, STILL), load(split, replace(STILL, **changes))
    assert torch.equal(plain.indices, varied.indices)
    return plain, varied


def changed(plain: Tensor, varied: Tensor) -> Tensor:
    """Return which images differ, bool (B,)."""
    return (plain != varied).flatten(1).any(1)


def levels(images: Tensor) -> Tensor:
    """Return the 8-bit pixels that were normalised."""
    return (images * 127.5 + 127.5).round().to(torch.uint8)


def check_crop_scale(split: Split) -> None:
    """A crop of a hundredth of the area, enlarged, has hardly any contrast; nearly all of it has much."""
    spread = {
        scale: load(split, replace(STILL, crop_scale=(scale, scale))).images.flatten(2).std(2).mean()
        for scale in (0.01, 0.95)
    }
    assert spread[0.01] < 0.5 * spread[0.95]


def check_crop_ratio(split: Split) -> None:
    """A tall, narrow part stretched to a wide image changes little along a row."""

    def roughness(ratio: float) -> Tensor:
        setting = replace(STILL, crop_scale=(0.2, 0.2), crop_ratio=(ratio, ratio))
        images = load(split, setting).images
        return images.diff(dim=3).abs().mean() / images.diff(dim=2).abs().mean()

    assert roughness(0.3) < 0.5 * roughness(3.0)


def check_flip(split: Split) -> None:
    plain, always = both(split, flip=1.0)
    assert torch.equal(always.images, plain.images.flip(3))
    half = changed(*(batch.images for batch in both(split, flip=0.5)))
    assert 0.2 < half.float().mean() < 0.8


def check_randaugment(split: Split) -> None:
    plain, strong = both(split, randaugment=(2, 20))
    assert changed(plain.images, strong.images).float().mean() > 0.8
    weak = load(split, replace(STILL, randaugment=(2, 2))).images
    assert (weak - plain.images).abs().mean() < 0.7 * (strong.images - plain.images).abs().mean()
    once = load(split, replace(STILL, randaugment=(1, 20))).images
    assert 0.5 < changed(plain.images, once).float().mean() < 1.0  # Identity is one of fourteen


def check_three_augment(split: Split) -> None:
    """Each image is gray, solarized or blurred."""
    plain, varied = (levels(batch.images) for batch in both(split, three_augment=True))
    gray = (varied[:, :1] == varied).flatten(1).all(1)
    solarized = (varied == F.solarize(plain, 128)).flatten(1).all(1)
    rest = ~(gray | solarized)
    assert min(gray.sum(), solarized.sum(), rest.sum()) > COUNT / 10
    smoother = [float(x[rest].float().diff(dim=3).abs().mean()) for x in (plain, varied)]
    assert smoother[1] < 0.95 * smoother[0]


def check_color_jitter(split: Split) -> None:
    plain, varied = both(split, color_jitter=0.4)
    assert changed(plain.images, varied.images).float().mean() > 0.9
    bright, before = (levels(batch.images).flatten(1).float().mean(1) for batch in (varied, plain))
    brightness = bright / before
    assert brightness.min() < 0.85 and brightness.max() > 1.1 and brightness.min() > 0.5


def check_erase(split: Split) -> None:
    """A rectangle of 2 to 33 % of the area is noise; the rest is as it was."""
    plain, varied = both(split, erase=1.0)
    differ = (plain.images != varied.images).any(1)  # (B, H, W)
    for image in differ:
        rows, columns = image.any(1).nonzero(), image.any(0).nonzero()
        box = image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert box.all() and 0.01 < box.numel() / image.numel() < 0.4
    some = changed(*(batch.images for batch in both(split, erase=0.4)))
    assert 0.15 < some.float().mean() < 0.7


def check_mixup(split: Split) -> None:
    """Images and targets are mixed with the neighbour's in one proportion."""
    plain, varied = both(split, mixup=0.8)
    partner = torch.arange(COUNT) ^ 1
    shares = []
    for k in range(COUNT):
        own, other = plain.images[k], plain.images[partner[k]]
        share = float(((varied.images[k] - other) * (own - other)).sum() / ((own - other) ** 2).sum())
        torch.testing.assert_close(varied.images[k], other + share * (own - other), atol=1e-4, rtol=0)
        expected = torch.zeros(2)
        expected[plain.targets[k]] += share
        expected[plain.targets[partner[k]]] += 1 - share
        torch.testing.assert_close(varied.targets[k], expected, atol=1e-4, rtol=0)
        shares.append(share)
    assert min(shares) < 0.2 and max(shares) > 0.8


def check_cutmix(split: Split) -> None:
    """Each pixel is the image's own or its neighbour's, and the target says how many are which."""
    plain, varied = both(split, cutmix=1.0)
    partner = torch.arange(COUNT) ^ 1
    before, after = levels(plain.images), levels(varied.images)
    own, other = (after == before).all(1), (after == before[partner]).all(1)
    assert (own | other).all() and changed(before, after).float().mean() > 0.5
    different = plain.targets != plain.targets[partner]
    share = varied.targets.gather(1, plain.targets[:, None])[:, 0]
    assert different.any()
    assert ((share - own.flatten(1).float().mean(1)).abs()[different] < 0.02).all()


def check_mix_probability(split: Split) -> None:
    plain, never = both(split, mixup=0.8, mix_probability=0.0)
    assert torch.equal(levels(never.images), levels(plain.images))
    assert (never.targets.max(1).values == 1).all()
    plain, some = (levels(batch.images) for batch in both(split, cutmix=1.0, mixup=0.8, mix_probability=0.5))
    assert 0.2 < changed(plain, some).float().mean() < 0.8


def check_unmixed(split: Split) -> None:
    """What the loop asks a loader for at the end of a run: see also test_meaning.py."""
    augment = replace(STILL, mixup=0.8, cutmix=1.0, unmixed=0.5)
    plain = load(split, STILL)
    for pixels in ("host", "device"):
        options: dict[str, Any] = {"preprocessing": SIZE, "batch_size": COUNT, "seed": 3, "pixels": pixels}
        loader = make_loader(split, augment=augment, cache=None, **options)
        unmixed = next(loader.epoch(0, mixed=False))
        assert torch.equal(levels(unmixed.images), levels(plain.images))
        assert (
            torch.equal(unmixed.targets.argmax(1), plain.targets) and (unmixed.targets.max(1)[0] == 1).all()
        )
        assert changed(plain.images, next(loader.epoch(0)).images).float().mean() > 0.5


def check_geometry(split: Split) -> None:
    plain, varied = both(split, geometry=1.0)
    assert changed(plain.images, varied.images).float().mean() > 0.9  # nearly all are shifted at least
    assert torch.equal(plain.targets, varied.targets)
    _, stronger = both(split, geometry=2.0)
    assert changed(varied.images, stronger.images).float().mean() > 0.9


def check_color(split: Split) -> None:
    plain, varied = both(split, color=1.0)
    share = changed(plain.images, varied.images).float().mean()
    assert 0.4 < share < 1.0  # each change has a probability of its own; some images get none
    _, weaker = both(split, color=0.2)
    assert (weaker.images - plain.images).abs().mean() < (varied.images - plain.images).abs().mean()


def check_repeats(split: Split) -> None:
    varied = load(split, replace(STILL, crop_scale=(0.2, 0.7), repeats=4))
    numbers, counts = varied.indices.unique(return_counts=True)
    assert len(numbers) == COUNT / 4 and (counts == 4).all()
    for number in numbers:
        copies = varied.images[varied.indices == number]
        assert len({image.numpy().tobytes() for image in copies}) == 4


CHECKS: dict[str, Callable[[Split], None]] = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")
}


def test_every_setting_has_a_check() -> None:
    assert set(CHECKS) == {field.name for field in fields(Augment)}


@pytest.mark.parametrize("name", CHECKS)
def test_a_setting_does_what_it_says(split: Split, name: str) -> None:
    CHECKS[name](split)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in ("flip", "erase", "mix_probability", "unmixed", "color_jitter")
        for value in (-0.1, 1.1)
    ]
    + [(name, value) for name in ("mixup", "cutmix", "geometry", "color") for value in (-0.1, float("inf"))],
)
def test_what_is_out_of_range_is_refused(split: Split, name: str, value: float) -> None:
    with pytest.raises(DataError, match=f"{name} {value} is out of range"):
        load(split, replace(STILL, **{name: value}))


@pytest.mark.parametrize("scale", [(0.9, 0.1), (0.0, 0.5), (0.5, 1.1), (-0.1, 0.5)])
def test_a_crop_is_a_part_of_an_image(split: Split, scale: tuple[float, float]) -> None:
    with pytest.raises(DataError, match="is out of range: give 0 < from <= to <= 1"):
        load(split, replace(STILL, crop_scale=scale))
    with pytest.raises(DataError, match="repeats 0 is out of range"):
        load(split, replace(STILL, repeats=0))


def test_nothing_is_random_when_all_is_off(split: Split) -> None:
    batch = load(split, STILL)
    for k in range(0, COUNT, 5):
        pixels = torch.from_numpy(np.array(split.read(int(batch.indices[k])))).permute(2, 0, 1)
        assert torch.equal(levels(batch.images[k]), pixels)


def test_padding_shows_the_whole_image_on_the_mean_colour(split: Split) -> None:
    settings = Preprocessing(image_size=(48, 48), resize="pad")
    batch = load(split, Augment(flip=0.0), preprocessing=settings, mask_step=12)  # its crop is left out
    for k in range(0, COUNT, 5):
        pixels = torch.from_numpy(np.array(split.read(int(batch.indices[k])))).permute(2, 0, 1)
        assert torch.equal(levels(batch.images[k, :, :36]), pixels)
    assert (levels(batch.images[:, :, 36:]) == 128).all()
    assert batch.mask is not None
    assert (batch.mask.view(-1, 4, 4)[:, :3]).all() and not batch.mask.view(-1, 4, 4)[:, 3].any()


def test_files_and_arrays_have_the_same_images(tmp_path: Path) -> None:
    """The two ways through the loader differ in resampling's rounding at most."""
    folder = open_data(make_folder(tmp_path / "x", {"a": 11, "b": 21}), carve=False).splits["train"]
    pixels = np.stack([np.asarray(picture(seed)) for seed in range(COUNT)])
    np.savez(tmp_path / "x.npz", images=pixels, labels=np.arange(COUNT) // 11 > 0)
    arrays = open_data(tmp_path / "x.npz", carve=False).splits["train"]
    for augment in (Augment(crop_scale=(0.3, 1.0), erase=0.5, cutmix=1.0), replace(STILL, mixup=0.8)):
        one, other = load(folder, augment), load(arrays, augment)
        assert torch.equal(one.indices, other.indices) and torch.equal(one.targets, other.targets)
        assert (one.images - other.images).abs().max() * 127.5 < 2.5
