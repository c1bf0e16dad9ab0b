"""One affine map and one change of colours per image, so that small images look new for many epochs.

Written for a whole batch in a fixed number of tensor operations, and used on the host and on the device
alike, so that both make the same images. The draws come from `draws`.

B batch, C channels, H and W the size. Images are uint8 (B, C, H, W).
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config import Augment
from vitreous.data.device_operations import levels, look_up, pixel_grid, saturate, stretched
from vitreous.data.draws import COLOR, GEOMETRY, uniforms32

# At strength 1, of CIFAR's 32 pixels: shifts by up to 4, turns by up to 20 degrees, …
SHIFT, TURN, SHEAR, SCALE = 1 / 8, 20.0, 0.3, 0.25
# … the last three with these probabilities
TURNED, SHEARED, SCALED = 0.4, 0.25, 0.5
BRIGHTNESS, CONTRAST, SATURATION = 0.4, 0.4, 0.4
ADJUSTED = 0.4
"""Probability of each of the three."""
GEOMETRY_DRAWS, COLOR_DRAWS = 8, 12
SOLARIZED, POSTERIZED, STRETCHED, INVERTED = 0.05, 0.05, 0.1, 0.04


def draw(augment: Augment, after: Tensor) -> dict[int, Tensor]:
    """Return the draws for images whose keys have these words, float32 (B, count), by what they are for.

    Nothing is drawn where a strength is 0.
    """
    drawn = {}
    if augment.geometry > 0:
        drawn[GEOMETRY] = uniforms32(GEOMETRY_DRAWS, GEOMETRY, after=after)
    if augment.color > 0:
        drawn[COLOR] = uniforms32(COLOR_DRAWS, COLOR, after=after)
    return drawn


def vary(images: Tensor, augment: Augment, drawn: Mapping[int, Tensor]) -> Tensor:
    """Apply `Augment.geometry` and `Augment.color` to a batch; strengths of 0 leave it as it is."""
    if GEOMETRY in drawn:
        images = _moved(images, _maps(drawn[GEOMETRY], augment.geometry, *images.shape[2:]))
    if COLOR in drawn:
        images = _colored(images, drawn[COLOR], augment.color)
    return images


def _spread(draw: Tensor, largest: float) -> Tensor:
    """Turn a draw in [0, 1) into one in [-largest, largest)."""
    return (2 * draw - 1) * largest


def _where(draw: Tensor, probability: float, value: Tensor) -> Tensor:
    """Keep a value with some probability; else it is 0."""
    return torch.where(draw < probability, value, 0.0)


def _maps(draws: Tensor, strength: float, height: int, width: int) -> Tensor:
    """Return float32 (B, 2, 3): where in the source a target pixel comes from, in halves of the image.

    In pixels it is A = scale · rotation · shear, about the centre, and then the shift.
    """
    u = draws.unbind(1)
    shift_x, shift_y = _spread(u[0], 2 * strength * SHIFT), _spread(u[1], 2 * strength * SHIFT)
    angle = _where(u[2], TURNED, _spread(u[3], math.radians(strength * TURN)))
    shear = _where(u[4], SHEARED, _spread(u[5], strength * SHEAR))
    scale = _where(u[6], SCALED, _spread(u[7], strength * SCALE)) + 1
    cos, sin = scale * angle.cos(), scale * angle.sin()
    rows = [
        cos, (cos * shear - sin) * (height / width), shift_x,
        sin * (width / height), sin * shear + cos, shift_y,
    ]  # fmt: skip
    return torch.stack(rows, dim=1).unflatten(1, (2, 3))


def _moved(images: Tensor, maps: Tensor) -> Tensor:
    """Take every pixel from its place in the source, bilinearly; beyond its edge the image is mirrored."""
    grid = torch.stack(pixel_grid(maps, *images.shape[2:]), dim=3)
    moved = F.grid_sample(
        images.float(), grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )
    return moved.round().clamp(0, 255).to(torch.uint8)


def _colored(images: Tensor, draws: Tensor, strength: float) -> Tensor:
    """Stretch, invert, posterize, solarize, brightness and contrast as one table; then saturation."""
    u = [draw[:, None, None] for draw in draws.unbind(1)]
    table = levels(images).expand(len(images), images.shape[1], -1)
    table = torch.where(u[0] < strength * STRETCHED, stretched(images).float(), table)
    table = torch.where(u[1] < strength * INVERTED, 255 - table, table)
    step = 2.0 ** (2 + (u[3] * 3).floor())  # 6, 5 or 4 bits are kept
    table = torch.where(u[2] < strength * POSTERIZED, (table / step).floor() * step, table)
    solarized = torch.where(table >= 128 + 128 * u[5], 255 - table, table)
    table = torch.where(u[4] < strength * SOLARIZED, solarized, table)
    table = table * (1 + _where(u[6], ADJUSTED, _spread(u[7], strength * BRIGHTNESS)))
    # The pivot of contrast is the level that the image's mean was mapped to: no second look at the pixels.
    mean = images.float().mean((2, 3)).round().long()[:, :, None]
    pivot = table.gather(2, mean).mean(1, keepdim=True)
    contrast = 1 + _where(u[8], ADJUSTED, _spread(u[9], strength * CONTRAST))
    table = pivot + contrast * (table - pivot)
    images = look_up(images, table.round().clamp(0, 255).to(torch.uint8))
    saturation = 1 + _where(draws[:, 10], ADJUSTED, _spread(draws[:, 11], strength * SATURATION))
    return saturate(images, saturation)
