"""What happens to an image between decoding and the model: evaluation's transform, and training's presets
and draws.

Draws come from `order`; pixels are moved by `resample` and `operations`. Nothing here keeps a random state.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.config import Augment, Preprocessing
from vitreous.data import order
from vitreous.data.decode import to_channels
from vitreous.data.operations import check_operations, draws_needed
from vitreous.errors import DataError, nearest

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

# AugReg's settings none, light1, medium1 and strong2 (arXiv 2106.10270), with torchvision's milder magnitude
# scale.
# Our `none` is stricter than theirs: it has no crop and no flip either.
PRESETS: dict[str, Augment] = {
    "none": Augment(crop_scale=None, flip=0.0),
    "mix": Augment(crop_scale=None, flip=0.0, mixup=0.8),  # for images too small to crop
    "light": Augment(randaugment=(2, 0)),
    "medium": Augment(randaugment=(2, 15), mixup=0.2),
    "strong": Augment(randaugment=(2, 20), mixup=0.8),
    # For small images that are seen hundreds of times: every view is new.
    "small": Augment(
        crop_scale=None,
        geometry=1.0,
        color=1.0,
        erase=0.25,
        mixup=0.8,
        cutmix=1.0,
        mix_probability=0.8,
        unmixed=0.125,
    ),
}
CUT_FROM = 16
"""A picture that would be scaled to more than this many times the model's area is cropped before that. Others
are scaled whole, bit for bit as in other libraries."""
SMALL = 1 << 15
TINY = 64
TINY_CROP = (0.5, 1.0)


def preset(name: str, *, mirror: bool = True, tiny: bool = False) -> Augment:
    """Return a named preset, fitted to the images: no flip where it changes the class, a gentler crop of
    tiny ones.

    An image of 32 pixels has no detail to zoom into: an eighth of it is nine pixels across.
    """
    if name not in PRESETS:
        raise DataError(f"unknown augmentation {name!r}: {', '.join(PRESETS)}{nearest(name, PRESETS)}")
    augment = PRESETS[name]
    if not mirror:
        augment = replace(augment, flip=0.0)
    if tiny and augment.crop_scale is not None:
        augment = replace(augment, crop_scale=TINY_CROP)
    return augment


def resolve(
    augment: str | Augment, *, mirror: bool, size: tuple[int, int], channels: int, resize: str
) -> Augment:
    """Return the augmentation of images in full: a preset fitted to them, or what was set, checked.

    Args:
        augment: A preset's name, or all settings.
        mirror: Whether a mirrored image still shows its class.
        size: Height and width that most of the images have before they are resized.
        channels: How many the model takes.
        resize: The preprocessing's rule; "pad" shows the whole image, so nothing is cropped.
    """
    if isinstance(augment, str):
        augment = preset(augment, mirror=mirror, tiny=min(size) < TINY)
        if channels not in (1, 3):  # a preset adapts; explicit settings are refused below
            augment = replace(augment, randaugment=(0, 0))
    if resize == "pad":
        augment = replace(augment, crop_scale=None)
    _check_ranges(augment)
    check_operations(augment, channels)
    return augment


def _check_ranges(augment: Augment) -> None:
    """Refuse probabilities and fractions outside 0 to 1, and strengths below 0."""
    for name in ("flip", "erase", "mix_probability", "unmixed", "color_jitter"):
        if not 0.0 <= getattr(augment, name) <= 1.0:
            raise DataError(f"{name} {getattr(augment, name)} is out of range: give a number from 0 to 1")
    if augment.repeats < 1:
        raise DataError(f"repeats {augment.repeats} is out of range: give 1 (none) or more")
    low, high = augment.crop_scale or (1.0, 1.0)
    if not 0.0 < low <= high <= 1.0:
        raise DataError(f"crop_scale {low} {high} is out of range: give 0 < from <= to <= 1")
    for name in ("mixup", "cutmix", "geometry", "color"):
        if not 0.0 <= getattr(augment, name) < math.inf:
            raise DataError(f"{name} {getattr(augment, name)} is out of range: give 0 (none) or more")


# The purposes that draws are made for: each its own stream, so that a new one never shifts the others.
CROP, FLIP, OPERATE, ERASE, MIX, REPLACE = range(6)
ATTEMPTS = 10


def crop_boxes(heights: np.ndarray, widths: np.ndarray, augment: Augment, draws: np.ndarray) -> np.ndarray:
    """Return each image's Inception crop (top, left, height, width) as torchvision's RandomResizedCrop
    chooses it.

    `draws` is (B, ATTEMPTS, 4). The first of ten attempts that fits is taken; if none does, the largest
    centred part with an allowed aspect.
    """
    assert augment.crop_scale is not None
    low, high = augment.crop_scale
    ratio = np.log(augment.crop_ratio)
    H, W = heights[:, None].astype(np.float64), widths[:, None].astype(np.float64)
    area = H * W * (low + (high - low) * draws[..., 0])
    aspect = np.exp(ratio[0] + (ratio[1] - ratio[0]) * draws[..., 1])
    w, h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))  # (B, ATTEMPTS)
    fits = (w > 0) & (w <= W) & (h > 0) & (h <= H)
    top, left = np.floor(draws[..., 2] * (H - h + 1)), np.floor(draws[..., 3] * (W - w + 1))
    rows, first = np.arange(len(heights)), fits.argmax(1)
    boxes = np.stack([x[rows, first] for x in (top, left, h, w)], axis=1)
    for i in np.flatnonzero(~fits.any(1)):
        boxes[i] = _centred_box(int(heights[i]), int(widths[i]), augment.crop_ratio)
    return boxes.astype(np.int64)


def _centred_box(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    h, w = height, width
    if width / height < ratio[0]:
        h = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w = max(1, round(height * ratio[1]))
    return (height - h) // 2, (width - w) // 2, h, w


class Draws:
    """The random numbers of some images: a function of (seed, epoch, image, copy) and of nothing else."""

    def __init__(
        self, augment: Augment, seed: int, epoch: int, indices: np.ndarray, copies: np.ndarray
    ) -> None:
        self.augment, self.keys = augment, (seed, epoch, indices, copies)
        self.flip = self.uniforms(FLIP, 1)[:, 0] < augment.flip
        self.operate = self.uniforms(OPERATE, draws_needed(augment))

    def uniforms(self, purpose: int, count: int) -> np.ndarray:
        """Return (B, count) draws for a purpose."""
        seed, epoch, indices, copies = self.keys
        return order.uniforms(count, seed, epoch, indices, copies, purpose)

    @property
    def hashed(self) -> Tensor:
        """The words of the images' keys, int64 (B,), from which draws on the device continue."""
        return torch.from_numpy(np.broadcast_to(order.words(*self.keys), len(self.keys[2])).astype(np.int64))

    def boxes(self, heights: np.ndarray, widths: np.ndarray) -> np.ndarray:
        """Return the crop of each image, whose size has to be known first."""
        draws = self.uniforms(CROP, ATTEMPTS * 4).reshape(-1, ATTEMPTS, 4)
        return crop_boxes(heights, widths, self.augment, draws)


def normalize(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Turn uint8 (…, C, H, W) into the model's float32: pixels in [0, 1], minus the mean, over the
    deviation."""
    scale, shift = _scale_and_shift(preprocessing.mean, preprocessing.std, images.device)
    scaled = torch.empty(images.shape, dtype=torch.float32, device=images.device)
    # Image by image on the CPU: one image stays in its cache over the three passes, a batch would not.
    large = images.device.type == "cpu" and images.shape[1:].numel() > SMALL
    for source, target in zip(images, scaled, strict=True) if large else [(images, scaled)]:
        target.copy_(source).mul_(scale).sub_(shift)
    return scaled


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the factor for pixels and what is subtracted afterwards, each (C, 1, 1)."""
    centre, spread = (torch.tensor(values, dtype=torch.float64) for values in (mean, std))
    scale, shift = (1 / (255 * spread)).float(), (centre / spread).float()
    return scale.to(device)[:, None, None], shift.to(device)[:, None, None]


class EvaluationTransform:
    """From a decoded image to the model's input, without any randomness.

    With Pillow, it equals timm's and torchvision's. It also equals Hugging Face's, except that its crop of an
    odd margin may lie one pixel further up or left (docs/weights.md).
    """

    def __init__(self, preprocessing: Preprocessing, patch_size: tuple[int, int] = (16, 16)) -> None:
        self.preprocessing, self.patch_size = preprocessing, patch_size

    def __call__(self, image: Image.Image | np.ndarray) -> Tensor:
        """Return float32 (C, H, W)."""
        return self.normalized(self.pixels(image))

    def normalized(self, pixels: np.ndarray) -> Tensor:
        """Return float32 (C, H, W) of the pixels that the model will see."""
        return normalize(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None], self.preprocessing)[0]

    def pixels(self, image: Image.Image | np.ndarray) -> np.ndarray:
        """Return the uint8 pixels that the model will see, (H, W, C), not yet normalised."""
        return self.padded(self.fitted(image))

    def fitted(self, image: Image.Image | np.ndarray) -> np.ndarray:
        """Return the image scaled and cropped, uint8 (h, w, C); smaller than the model's size only if it is
        still to be padded."""
        planes = [self._fit(plane) for plane in self._planes(image)]
        pixels = planes[0] if len(planes) == 1 else np.concatenate(planes, axis=2)
        # Pillow's arrays are read-only, and torch would warn about that
        return np.require(pixels, requirements=["C", "W"])

    def padded(self, pixels: np.ndarray) -> np.ndarray:
        """Return pixels on a canvas of the model's size, in its top left corner; the rest has the mean
        colour."""
        size = self.preprocessing.image_size
        if pixels.shape[:2] == size:
            return pixels
        fill = np.array([round(255 * mean) for mean in self.preprocessing.mean], np.uint8)
        canvas = np.broadcast_to(fill, (*size, pixels.shape[2])).copy()
        canvas[: pixels.shape[0], : pixels.shape[1]] = pixels
        return canvas

    def _planes(self, image: Image.Image | np.ndarray) -> list[Image.Image]:
        """Return the image in the model's channels: one Pillow image, or one for each channel where Pillow
        has no mode."""
        channels = self.preprocessing.channels
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8 or image.ndim not in (2, 3):
                raise DataError(f"an array of {image.dtype} {image.shape}: give uint8 (H, W) or (H, W, C)")
            image = image[..., None] if image.ndim == 2 else image
            if image.shape[2] == channels and channels not in (1, 3, 4):
                return [Image.fromarray(np.ascontiguousarray(image[..., c])) for c in range(channels)]
            if image.shape[2] not in (1, 3, 4):
                raise DataError(f"an array of {image.shape[2]} channels: the model takes {channels}")
            image = Image.fromarray(np.ascontiguousarray(image[..., 0] if image.shape[2] == 1 else image))
        if channels not in (1, 3, 4):
            raise DataError(f"a picture of mode {image.mode}: the model takes arrays of {channels} channels")
        return [to_channels(image, channels)]

    def _fit(self, image: Image.Image) -> np.ndarray:
        height, width = self.preprocessing.image_size
        scaled = self.scaled_size(image.height, image.width)
        method = RESAMPLING[self.preprocessing.interpolation]
        if self.cuts_first(scaled):
            image = _scaled_centre(image, scaled, (height, width), method)
        elif scaled != (image.height, image.width):
            image = image.resize((scaled[1], scaled[0]), method)
        pixels = np.array(image)  # a copy: torch wants writable memory
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        if self.preprocessing.resize == "pad":
            return pixels
        return _centre_crop(pixels, height, width)

    def cuts_first(self, scaled: tuple[int, int]) -> bool:
        """Tell whether to crop before scaling to this size, because it is so large that a few bytes could ask
        for gigabytes."""
        target = self.preprocessing.resize_size or self.preprocessing.image_size
        return scaled[0] * scaled[1] > CUT_FROM * max(
            math.prod(target), math.prod(self.preprocessing.image_size)
        )

    def scaled_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image is scaled to before it is cropped or padded."""
        settings = self.preprocessing
        target = settings.resize_size or settings.image_size
        if settings.resize == "exact":
            return target
        if settings.resize == "none":
            if (height, width) != settings.image_size:
                wanted = "x".join(map(str, settings.image_size))
                raise DataError(f"an image of {height}x{width}: the model takes {wanted} and does not resize")
            return height, width
        if settings.resize == "pad":
            scale = min(settings.image_size[0] / height, settings.image_size[1] / width)
            fit = (max(1, round(height * scale)), max(1, round(width * scale)))
            return min(fit[0], settings.image_size[0]), min(fit[1], settings.image_size[1])
        if target[0] == target[1]:  # torchvision's Resize(n): the shorter side, the other one rounded down
            short = min(height, width)
            return int(target[0] * height / short), int(target[0] * width / short)
        ratio = min(height / target[0], width / target[1])  # timm's ResizeKeepRatio
        return round(height / ratio), round(width / ratio)

    def mask(self, height: int, width: int) -> np.ndarray:
        """Return which patches hold any part of an image fitted to this size, bool (N,), row by row."""
        (H, W), (p, q), used = self.preprocessing.image_size, self.patch_size, (height, width)
        rows, columns = np.arange(H // p) * p < used[0], np.arange(W // q) * q < used[1]
        return (rows[:, None] & columns[None, :]).reshape(-1)


def evaluation_transform(
    preprocessing: Preprocessing, patch_size: int | tuple[int, int] = 16
) -> EvaluationTransform:
    """Return the transform that evaluation, prediction and serving use."""
    both = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    return EvaluationTransform(preprocessing, both)


def _scaled_centre(
    image: Image.Image, scaled: tuple[int, int], size: tuple[int, int], method: Image.Resampling
) -> Image.Image:
    """Return what the centre crop of a scaled image shows, without making the rest of it."""
    sides = zip((image.height, image.width), scaled, size, strict=True)
    (top, bottom, y), (left, right, x) = (_centre_part(*side) for side in sides)
    part = image.crop((left, top, right, bottom))
    shown = min(size[0], scaled[0]), min(size[1], scaled[1])
    ratio = image.height / scaled[0], image.width / scaled[1]
    box = (x, y, min(x + shown[1] * ratio[1], part.width), min(y + shown[0] * ratio[0], part.height))
    return part.resize((shown[1], shown[0]), method, box)


def _centre_part(side: int, scaled: int, shown: int) -> tuple[int, int, float]:
    """Return the source pixels (from, to) that the shown centre of a scaled side is made of, and where in
    them it begins; filters reach three pixels beyond, source or scaled ones, whichever are larger."""
    ratio = side / scaled
    start = max(0, round((scaled - shown) / 2.0)) * ratio
    margin = math.ceil(3 * max(1.0, ratio)) + 1
    first = max(0, math.floor(start) - margin)
    last = min(side, math.ceil(start + min(shown, scaled) * ratio) + margin)
    return first, last, start - first


def _centre_crop(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Crop the centre as torchvision does (its rounding; what is too small is padded with zeros)."""
    missing = max(0, height - pixels.shape[0]), max(0, width - pixels.shape[1])
    if any(missing):
        sides: Sequence[tuple[int, int]] = [(m // 2, (m + 1) // 2) for m in missing]
        pixels = np.pad(pixels, [*sides, (0, 0)])
    top, left = round((pixels.shape[0] - height) / 2.0), round((pixels.shape[1] - width) / 2.0)
    return pixels[top : top + height, left : left + width]
