"""RandAugment, 3-Augment and colour jitter on a whole batch, every image with its own operation and strength.

Operations and draws are those of `operations` (torchvision's kernels for tensors). The difference is that no
image is handled separately: geometric operations are one lookup of pixels, pointwise ones a table of 256
levels per image and channel, so a batch takes a fixed number of tensor operations, whatever was drawn.

B batch, C channels (1 or 3), H and W the size. Images are uint8 (B, C, H, W).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config import Augment
from vitreous.data.operations import NAMES, RANDAUGMENT, STEPS

BLUR_RADIUS = 4
"""Radius of the strongest blur: ceil(2 * sigma), sigma up to 2."""


def strengths(magnitude: int) -> Tensor:
    """Return float64 (operations, 2): each operation's strength at a magnitude, and 1 where it has a sign."""
    rows = [(RANDAUGMENT[name][0](magnitude), float(RANDAUGMENT[name][1])) for name in NAMES]
    return torch.tensor(rows, dtype=torch.float64)


def operate(images: Tensor, augment: Augment, draws: Tensor, table: Tensor) -> Tensor:
    """Apply each image's operations, in the order of `operations.choose`; `table` is that of `strengths`."""
    count, magnitude = augment.randaugment
    for k in range(count):
        number = (draws[:, 2 * k] * len(NAMES)).long()
        value, signed = table[number].unbind(1)
        value = torch.where((signed > 0) & (draws[:, 2 * k + 1] < 0.5), -value, value)
        images = _randaugment(images, number, value, still=magnitude == 0)
    rest = draws[:, 2 * count :]
    if augment.three_augment:
        images = _three_augment(images, (rest[:, 0] * 3).long(), 0.1 + 1.9 * _level(rest[:, 1]))
        rest = rest[:, 2:]
    if augment.color_jitter > 0:
        factors = 1 + augment.color_jitter * (2 * _level(rest) - 1)
        images = look_up(images, _blend(levels(images), torch.zeros((), device=images.device), factors[:, 0]))
        images = look_up(images, _blend(levels(images), _gray_mean(images), factors[:, 1]))
        images = saturate(images, factors[:, 2])
    return images


def _level(draws: Tensor) -> Tensor:
    return (draws * STEPS).floor() / (STEPS - 1)


def _randaugment(images: Tensor, number: Tensor, strength: Tensor, *, still: bool) -> Tensor:
    """Apply one operation to each image; `still`: the magnitude is 0, at which signed ones do nothing."""
    if not still:
        images = _move(images, _inverses(number, strength, images.shape[2], images.shape[3]))
    images = look_up(images, _tables(images, number, strength))
    if still:
        return images
    unchanged = torch.ones_like(strength)
    images = saturate(images, torch.where(_is(number, "Color"), 1 + strength, unchanged))
    return _sharpen(images, torch.where(_is(number, "Sharpness"), 1 + strength, unchanged))


def _is(number: Tensor, name: str) -> Tensor:
    return number == NAMES.index(name)


def _inverses(number: Tensor, s: Tensor, height: int, width: int) -> Tensor:
    """Return float32 (B, 2, 3): where in the source a target pixel comes from, measured from the centre in
    halves of the image; the identity where the operation moves nothing."""
    zero, one = torch.zeros_like(s), torch.ones_like(s)
    angle = torch.where(_is(number, "Rotate"), s * (math.pi / 180), zero)
    cos, sin = angle.cos(), angle.sin()
    shear_x = torch.where(_is(number, "ShearX"), s * (height / width), zero)
    shear_y = torch.where(_is(number, "ShearY"), s * (width / height), zero)
    shift_x = torch.where(_is(number, "TranslateX"), -2 * (s * width).trunc() / width, zero)
    shift_y = torch.where(_is(number, "TranslateY"), -2 * (s * height).trunc() / height, zero)
    turned = _is(number, "Rotate")
    rows = [
        torch.where(turned, cos, one), -sin * (height / width) + shear_x, shear_x + shift_x,
        sin * (width / height) + shear_y, torch.where(turned, cos, one), shear_y + shift_y,
    ]  # fmt: skip
    return torch.stack(rows, dim=1).float().unflatten(1, (2, 3))


def pixel_grid(matrices: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the source's x and y for each target pixel, (B, H, W) each, in halves of the image.

    Written out rather than by `affine_grid`, whose matrix product may run in TF32: a tenth of a pixel off.
    """
    x = (torch.arange(width, device=matrices.device) * 2 + 1) / width - 1
    y = ((torch.arange(height, device=matrices.device) * 2 + 1) / height - 1)[:, None]
    a, b, c, d, e, f = (matrices[:, i, j, None, None] for i in range(2) for j in range(3))
    return a * x + b * y + c, d * x + e * y + f


def _move(images: Tensor, matrices: Tensor) -> Tensor:
    """Take every target pixel from the nearest source pixel; what lies outside is black."""
    height, width = images.shape[2:]
    x, y = pixel_grid(matrices, height, width)
    column, row = (((x + 1) * width - 1) / 2).round().long(), (((y + 1) * height - 1) / 2).round().long()
    seen = (column >= 0) & (column < width) & (row >= 0) & (row < height)  # (B, H, W)
    place = torch.where(seen, row * width + column, 0).flatten(1)[:, None].expand(-1, images.shape[1], -1)
    moved = images.flatten(2).gather(2, place).unflatten(2, (height, width))
    return torch.where(seen[:, None], moved, 0)


def levels(images: Tensor) -> Tensor:
    """Return the 256 levels as float32 (1, 1, 256), what a table starts from."""
    return torch.arange(256, device=images.device, dtype=torch.float32)[None, None]


def look_up(images: Tensor, table: Tensor) -> Tensor:
    """Replace every pixel by its entry in its image's and channel's table, uint8 (B, C or 1, 256)."""
    table = table.expand(-1, images.shape[1], -1)
    return table.gather(2, images.flatten(2).long()).view(images.shape)


def _blend(original: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Return torchvision's blend as uint8: factor of the original, 1 - factor of the other, rounded down."""
    shape = (-1, *(1,) * (original.ndim - 1))
    ours, theirs = factor.float().view(shape), (1 - factor).float().view(shape)
    return (original * ours + other * theirs).clamp(0, 255).to(torch.uint8)


def gray(images: Tensor) -> Tensor:
    """Return the brightness of each pixel, float32 (B, 1, H, W), rounded down."""
    if images.shape[1] == 1:
        return images.float()
    red, green, blue = images.float().split(1, dim=1)
    return (red * 0.2989 + green * 0.587 + blue * 0.114).floor()


def _gray_mean(images: Tensor) -> Tensor:
    return gray(images).mean((2, 3))[:, :, None]


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    """Move the colours away from gray by a factor per image; other than RGB images stay as they are."""
    return images if images.shape[1] != 3 else _blend(images.float(), gray(images), factor)


def _tables(images: Tensor, number: Tensor, strength: Tensor) -> Tensor:
    """Return uint8 (B, C, 256): what each level becomes; itself where the operation is not pointwise."""
    line = levels(images)
    chosen = lambda name: _is(number, name)[:, None, None]  # noqa: E731
    factor = torch.where(chosen("Brightness") | chosen("Contrast"), 1 + strength[:, None, None], 1.0)
    pivot = torch.where(chosen("Contrast"), _gray_mean(images), 0.0)
    table = _blend(line, pivot, factor.flatten())  # (B, 1, 256)
    bits = torch.where(_is(number, "Posterize"), strength, 8.0)[:, None, None]
    kept = (2 ** (8 - bits)).to(torch.uint8)
    table = table // kept * kept
    threshold = torch.where(strength < 1, 255 * strength, 256.0)[:, None, None]
    threshold = torch.where(chosen("Solarize"), threshold, 256.0).float()  # compared as torchvision does
    table = torch.where(line >= threshold, 255 - table, table)
    table = torch.where(chosen("AutoContrast"), stretched(images), table)
    return torch.where(chosen("Equalize"), _equalized(images), table)


def stretched(images: Tensor) -> Tensor:
    """Return the tables uint8 (B, C, 256) that stretch each channel to the full range (autocontrast)."""
    flat = images.flatten(2).float()  # Inductor's minimum of uint8 is wrong on CPUs (torch 2.15)
    low, high = flat.amin(2, keepdim=True), flat.amax(2, keepdim=True)
    flat_line = high == low
    scale = torch.where(flat_line, 1.0, (high - low) * (1 / 255))
    return ((levels(images) - torch.where(flat_line, 0.0, low)) / scale).clamp(0, 255).to(torch.uint8)


def _equalized(images: Tensor) -> Tensor:
    """Return the tables uint8 (B, C, 256) that make each channel's levels equally frequent, as Pillow's."""
    flat = images.flatten(2).long()
    counts = torch.zeros((*flat.shape[:2], 256), dtype=torch.int32, device=images.device)
    counts = counts.scatter_add(
        2, flat, torch.ones((), dtype=torch.int32, device=images.device).expand_as(flat)
    )
    below = counts.cumsum(2) - counts  # int64: how many pixels are darker
    highest = flat.amax(2, keepdim=True)
    step = below.gather(2, highest) // 255
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table, levels(images).long()).to(torch.uint8)


def _sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Move each inner pixel away from the mean around it, itself counted five times, by a factor."""
    if min(images.shape[2:]) <= 2:
        return images
    x = images.float()
    across = x[..., :-2] + x[..., 1:-1] + x[..., 2:]
    around = across[..., :-2, :] + across[..., 1:-1, :] + across[..., 2:, :] + 4 * x[..., 1:-1, 1:-1]
    change = ((around / 13).round() - x[..., 1:-1, 1:-1]) * (1 - factor).float()[:, None, None, None]
    return (x + F.pad(change, (1, 1, 1, 1))).clamp(0, 255).to(torch.uint8)


def _three_augment(images: Tensor, kind: Tensor, sigma: Tensor) -> Tensor:
    """Make each image gray (kind 0), solarized at half (1) or blurred (2)."""
    kind = kind[:, None, None, None]
    solarized = torch.where(images >= 128, 255 - images, images)
    varied = torch.where(kind == 0, gray(images).to(torch.uint8), solarized)
    return torch.where(kind == 2, _blur(images, sigma), varied)


def _blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur each image by its own deviation, with the edge mirrored."""
    radius = min(BLUR_RADIUS, (min(images.shape[2:]) + 1) // 2 - 1)
    if radius < 1:
        return images
    offsets = torch.arange(-radius, radius + 1, device=images.device)
    exponent = -((offsets / sigma[:, None]) ** 2) / 2
    reach = (2 * sigma).ceil()[:, None]  # torchvision's kernel ends there
    weights = torch.where(offsets.abs() <= reach, exponent, -torch.inf).softmax(1).float()  # (B, taps)
    x = F.pad(images.float(), (radius,) * 4, mode="reflect")
    for dim, size in ((3, images.shape[3]), (2, images.shape[2])):
        taps = (x.narrow(dim, k, size) * weights[:, k, None, None, None] for k in range(2 * radius + 1))
        x = sum(taps, torch.zeros((), device=images.device))
    return x.round().clamp(0, 255).to(torch.uint8)
