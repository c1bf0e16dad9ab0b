"""The evaluation transform equals timm's, and Hugging Face's where no odd margin is cropped; crops and
presets follow their sources."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data_images import picture
from vitreous.config import Augment, Preprocessing
from vitreous.data import order
from vitreous.data.augment import ATTEMPTS, Draws, crop_boxes, evaluation_transform, preset, resolve
from vitreous.errors import DataError

SIZES = [(640, 427), (427, 640), (300, 300), (97, 213), (225, 224), (1001, 333), (50, 40)]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_cover_equals_timm(size: tuple[int, int], crop_pct: float, interpolation: str) -> None:
    from timm.data.transforms_factory import create_transform

    image = picture(1, size)
    transform: Any = create_transform(
        (3, 224, 224), is_training=False, interpolation=interpolation, mean=MEAN, std=STD, crop_pct=crop_pct
    )
    theirs = transform(image)
    side = math.floor(224 / crop_pct)
    ours = evaluation_transform(
        Preprocessing(resize_size=(side, side), interpolation=interpolation, mean=MEAN, std=STD)  # pyright: ignore[reportArgumentType]
    )(image)
    assert isinstance(theirs, torch.Tensor)
    assert ours.dtype == torch.float32 and ours.shape == (3, 224, 224)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_not_square_equals_timm(crop_mode: str) -> None:
    from timm.data.transforms_factory import create_transform

    image = picture(2, (500, 333))
    transform: Any = create_transform(
        (3, 192, 256),
        is_training=False,
        interpolation="bilinear",
        crop_pct=0.9,
        crop_mode=crop_mode,
        mean=MEAN,
        std=STD,
    )
    theirs = transform(image)
    settings = Preprocessing(
        image_size=(192, 256),
        resize="exact" if crop_mode == "squash" else "cover",
        resize_size=(math.floor(192 / 0.9), math.floor(256 / 0.9)),
        interpolation="bilinear",
        mean=MEAN,
        std=STD,
    )
    assert isinstance(theirs, torch.Tensor)
    torch.testing.assert_close(evaluation_transform(settings)(image), theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", SIZES)
def test_exact_equals_hugging_face(size: tuple[int, int]) -> None:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    image = picture(3, size)
    theirs = ViTImageProcessorPil()(image, return_tensors="pt")["pixel_values"][0]
    ours = evaluation_transform(Preprocessing(resize="exact", interpolation="bilinear"))(image)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_arrays_and_pictures_are_the_same() -> None:
    image = picture(4, (300, 200))
    transform = evaluation_transform(Preprocessing(image_size=(64, 64)))
    assert torch.equal(transform(image), transform(np.asarray(image)))
    gray = evaluation_transform(Preprocessing(image_size=(64, 64), mean=(0.5,), std=(0.5,)))
    assert gray(image).shape == (1, 64, 64)
    assert torch.equal(gray(image), gray(np.asarray(image.convert("L"))))


def test_many_channels_are_each_resized_as_gray() -> None:
    array = np.random.default_rng(0).integers(0, 256, (40, 30, 7), np.uint8)
    result = evaluation_transform(Preprocessing(image_size=(16, 16), mean=(0.5,) * 7, std=(0.5,) * 7))(array)
    gray = evaluation_transform(Preprocessing(image_size=(16, 16), mean=(0.5,), std=(0.5,)))
    assert torch.equal(result, torch.cat([gray(array[..., c]) for c in range(7)]))


@pytest.mark.parametrize(
    ("array", "channels", "message"),
    [
        (np.zeros((4, 4, 3), np.float32), 3, "float32"),
        (np.zeros((4, 4, 7), np.uint8), 3, "7 channels"),
        (np.zeros((4, 4, 3), np.uint8), 7, "arrays of 7 channels"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(array: np.ndarray, channels: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        evaluation_transform(Preprocessing(mean=(0.5,) * channels, std=(0.5,) * channels))(array)


def test_none_takes_the_right_size_only() -> None:
    transform = evaluation_transform(Preprocessing(image_size=(36, 48), resize="none"))
    assert transform(picture()).shape == (3, 36, 48)
    with pytest.raises(DataError, match="takes 36x48"):
        transform(picture(size=(36, 48)))


@pytest.mark.parametrize("size", [(640, 320), (320, 640), (64, 64), (1000, 10)])
def test_pad_keeps_the_aspect_and_masks_the_rest(size: tuple[int, int]) -> None:
    settings = Preprocessing(image_size=(64, 64), resize="pad", mean=MEAN, std=STD)
    image = picture(5, size)
    transform = evaluation_transform(settings, patch_size=16)
    result, mask = transform(image), torch.from_numpy(transform.mask(*transform.fitted(image).shape[:2]))
    scale = min(64 / size[0], 64 / size[1])
    width, height = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    patches = torch.zeros(4, 4, dtype=torch.bool)
    patches[: -(-height // 16), : -(-width // 16)] = True
    assert torch.equal(mask.view(4, 4), patches)
    assert (
        result[:, height:].abs().max() < 0.02 if height < 64 else True
    )  # the mean colour, as near as a byte comes
    assert result[:, :, width:].abs().max() < 0.02 if width < 64 else True
    resized = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    seen = result[:, :height, :width] * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
    assert np.array_equal((seen * 255).round().byte().permute(1, 2, 0).numpy(), resized)


def test_crops_have_torchvisions_distribution() -> None:
    from torchvision.transforms.v2 import RandomResizedCrop

    size, count = (375, 500), 4000
    torch.manual_seed(0)
    crop = RandomResizedCrop(224)
    sample = torch.empty(3, *size)
    rows = [crop.make_params([sample]) for _ in range(count)]
    theirs = np.array([[row[key] for key in ("top", "left", "height", "width")] for row in rows])
    draws = order.uniforms(ATTEMPTS * 4, 0, 0, np.arange(count)).reshape(count, ATTEMPTS, 4)
    ours = crop_boxes(np.full(count, size[0]), np.full(count, size[1]), Augment(), draws)
    assert ((ours[:, :2] >= 0) & (ours[:, 2:] >= 1)).all()
    assert (ours[:, 0] + ours[:, 2] <= size[0]).all() and (ours[:, 1] + ours[:, 3] <= size[1]).all()
    from scipy.stats import ks_2samp

    for k in range(4):
        result: Any = ks_2samp(theirs[:, k], ours[:, k])
        assert result.pvalue > 0.001


@pytest.mark.parametrize(("size", "box"), [((10, 400), (0, 194, 10, 13)), ((400, 10), (194, 0, 13, 10))])
def test_crops_of_extreme_images_fall_back_to_the_centre(size: tuple[int, int], box: tuple[int, ...]) -> None:
    draws = np.full((1, ATTEMPTS, 4), 0.999)
    result = crop_boxes(np.array([size[0]]), np.array([size[1]]), Augment(crop_scale=(0.9, 1.0)), draws)
    assert np.abs(result[0] - box).max() <= 1


def test_presets() -> None:
    assert preset("none") == Augment(crop_scale=None, flip=0.0)
    assert preset("light").randaugment == (2, 0) and preset("light").mixup == 0
    assert preset("medium").randaugment == (2, 15) and preset("medium").mixup == 0.2
    assert preset("strong").randaugment == (2, 20) and preset("strong").mixup == 0.8
    assert preset("light", mirror=False).flip == 0
    assert (
        preset("light", tiny=True).crop_scale == (0.5, 1.0) and preset("none", tiny=True).crop_scale is None
    )
    with pytest.raises(DataError, match="did you mean light"):
        preset("ligth")


def test_presets_are_fitted_to_the_images() -> None:
    photos: dict[str, Any] = {"mirror": True, "size": (375, 500), "channels": 3, "resize": "cover"}
    assert resolve("medium", **photos) == Augment(randaugment=(2, 15), mixup=0.2)
    assert resolve("light", **(photos | {"mirror": False})).flip == 0
    assert resolve("light", **(photos | {"size": (500, 63)})).crop_scale == (0.5, 1.0)
    assert resolve("light", **(photos | {"size": (64, 64)})).crop_scale == (0.08, 1.0)
    assert resolve("light", **(photos | {"channels": 13})).randaugment == (0, 0)
    assert resolve("light", **(photos | {"resize": "pad"})).crop_scale is None


def test_what_is_set_in_full_is_kept_or_refused() -> None:
    tiny: dict[str, Any] = {"mirror": False, "size": (8, 8), "channels": 1, "resize": "cover"}
    wish = Augment(randaugment=(2, 9), cutmix=1.0)
    assert resolve(wish, **tiny) == wish
    assert resolve(resolve("strong", **tiny), **tiny) == resolve("strong", **tiny)
    with pytest.raises(DataError, match="need 1 or 3 channels, not 13"):
        resolve(wish, **(tiny | {"channels": 13}))
    with pytest.raises(DataError, match="did you mean light"):
        resolve("ligth", **tiny)


def test_flips_come_as_often_as_asked() -> None:
    draws = Draws(Augment(flip=0.3), 0, 0, np.arange(5000), np.zeros(5000, np.int64))
    assert abs(draws.flip.mean() - 0.3) < 0.03
