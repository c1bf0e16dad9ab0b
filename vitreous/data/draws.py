"""The draws of `order` as torch integer arithmetic: the same words and numbers bit for bit, on any device.

Keys may be tensors on the device (the epoch as a 0-dimensional one), so a captured CUDA graph draws anew when
they change. torch has no unsigned 64-bit arithmetic, but its int64 multiplication wraps, which gives the same
bits; only the right shift needs care, as it would repeat the sign.
"""

import math

import torch
from torch import Tensor

# Purposes that only batched augmentation draws for, after `augment.REPLACE`: streams never change numbers.
NOISE, GEOMETRY, COLOR = 6, 7, 8
# What tasks draw for: which patches are hidden, and which show another one.
MASK, EXCHANGE = 9, 10


def _signed(word: int) -> int:
    """Return the int64 with the bits of an unsigned 64-bit word."""
    return word - (1 << 64) if word >= 1 << 63 else word


GOLDEN = _signed(0x9E3779B97F4A7C15)
FIRST, SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift to the right and fill with zeros, where torch's own shift would repeat the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _scramble(x: Tensor) -> Tensor:
    """Return splitmix64's finaliser of each word, as in `order`."""
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    return x ^ _shifted(x, 31)


def words(*keys: int | Tensor, after: Tensor | None = None) -> Tensor:
    """Hash broadcast integer keys to 64-bit words, the bits of `order.words` in an int64.

    `after`: the words of the keys before these, if they were hashed already. At least one argument must be a
    tensor, which sets the device.
    """
    state = torch.zeros((), dtype=torch.int64, device=_device(keys)) if after is None else after
    for key in keys:
        state = _scramble(state * 3 + key + GOLDEN)
    return state


def _device(keys: tuple[int | Tensor, ...]) -> torch.device:
    return next(key.device for key in keys if isinstance(key, Tensor))


def uniforms(count: int, *keys: int | Tensor, after: Tensor | None = None) -> Tensor:
    """Return float64 (…, count) draws in [0, 1), equal to those of `order.uniforms`."""
    return as_uniforms(_numbered(count, keys, after))


def uniforms32(count: int, *keys: int | Tensor, after: Tensor | None = None) -> Tensor:
    """Return the same draws as float32: see `as_uniforms32`."""
    return as_uniforms32(_numbered(count, keys, after))


def as_uniforms(words: Tensor) -> Tensor:
    """Return the float64 draws in [0, 1) that words stand for."""
    return _shifted(words, 11).double() * 2.0**-53


def as_uniforms32(words: Tensor) -> Tensor:
    """Return the draws' first 24 bits as float32: at most 2**-24 lower than `as_uniforms`, and never 1.

    Enough for a strength or a probability; a box is drawn in float64, so that it is the host's box.
    """
    return _shifted(words, 40).float() * 2.0**-24


def normals(*keys: int | Tensor, after: Tensor | None = None) -> Tensor:
    """Return one float32 draw of the normal distribution per broadcast key, by Box and Muller's formula.

    Both uniform numbers of the formula come from one word: its upper 24 bits give the radius (5.8 deviations
    at most), its lower 24 the angle.
    """
    word = words(*keys, after=after)
    radius = (_shifted(word, 40) + 1).float() * 2.0**-24  # in (0, 1]: the logarithm exists
    angle = (word & 0xFFFFFF).float() * (2 * math.pi * 2.0**-24)
    return (-2.0 * radius.log()).sqrt() * angle.cos()


def noise(shape: tuple[int, ...] | torch.Size, after: Tensor) -> Tensor:
    """Return normal noise float32 (B, *shape), where `after` are the words of each image's keys and NOISE.

    It is a function of the position in the image, so any part of it can be drawn alone.
    """
    positions = torch.arange(torch.Size(shape).numel(), device=after.device)
    return normals(positions, after=after[:, None]).unflatten(1, shape)


def shuffled(count: int, purpose: int, after: Tensor) -> Tensor:
    """Return int64 (B, count): for each image a random order of `count` things, as the place of each."""
    return _numbered(count, (purpose,), after).argsort(dim=1).argsort(dim=1)


def _numbered(count: int, keys: tuple[int | Tensor, ...], after: Tensor | None) -> Tensor:
    """Return (…, count) words: each key's own, folded with the numbers from 0 on."""
    columns = [key[..., None] if isinstance(key, Tensor) else key for key in keys]
    before = None if after is None else after[..., None]
    numbers = torch.arange(count, device=_device(keys) if after is None else after.device)
    return words(*columns, numbers, after=before)
