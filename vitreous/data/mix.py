"""Mixup, CutMix and random erasing on a normalised batch on its device; the draws come from outside.

Every image has its own draw. Partners are neighbours in the global batch, so a rank knows them without
communication."""

import numpy as np
import torch
from torch import Tensor

from vitreous.config import Augment
from vitreous.data.draws import NOISE, normals
from vitreous.data.moving import to_device

ERASE_DRAWS = 1 + 10 * 4
MIX_DRAWS = 5


def partners(count: int) -> np.ndarray:
    """Return each position's partner in a global batch: 0 and 1, 2 and 3, …; a last one alone takes its
    neighbour."""
    positions = np.arange(count)
    paired = positions ^ 1
    return np.where(paired < count, paired, np.maximum(positions - 1, 0))


def erase_boxes(draws: np.ndarray, probability: float, height: int, width: int) -> np.ndarray:
    """Return each image's rectangle (top, left, height, width), of height 0 where nothing is erased.

    As in timm's and torchvision's RandomErasing: 2 to 33 % of the area, aspect 0.3 to 3.3, ten attempts.
    """
    tries = draws[:, 1:].reshape(len(draws), -1, 4)
    area = height * width * (0.02 + (1 / 3 - 0.02) * tries[..., 0])
    aspect = np.exp(np.log(0.3) + (np.log(3.3) - np.log(0.3)) * tries[..., 1])
    h, w = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (h < height) & (w < width) & (h > 0) & (w > 0)
    top, left = np.floor(tries[..., 2] * (height - h + 1)), np.floor(tries[..., 3] * (width - w + 1))
    rows, first = np.arange(len(draws)), fits.argmax(1)
    boxes = np.stack([x[rows, first] for x in (top, left, h, w)], axis=1).astype(np.int64)
    boxes[(draws[:, 0] >= probability) | ~fits.any(1)] = 0
    return boxes


def erase(images: Tensor, boxes: np.ndarray, hashed: Tensor) -> Tensor:
    """Replace each image's rectangle, in place, with that part of the image's noise, drawn from `hashed` (its
    keys' words). The noise suits normalised pixels."""
    places = torch.arange(images[0].numel()).view(images.shape[1:])
    rectangles = {}
    for i in np.flatnonzero(boxes[:, 2]):
        top, left, height, width = (int(v) for v in boxes[i])
        rectangles[i] = (slice(None), slice(top, top + height), slice(left, left + width))
    if not rectangles:
        return images
    drawn = [normals(NOISE, places[where], after=hashed[i]) for i, where in rectangles.items()]
    arrived = to_device(torch.cat([each.flatten() for each in drawn]), images.device)  # all of it at once
    parts = arrived.split([each.numel() for each in drawn])
    for (i, where), part, each in zip(rectangles.items(), parts, drawn, strict=True):
        images[i][where] = part.view(each.shape)
    return images


def mix_shares(augment: Augment, draws: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each image's own share of itself, (B,), and its CutMix box (top, left, height, width), of height
    0 for Mixup."""
    from scipy.special import betaincinv  # a quarter of a second, which a prediction need not wait for

    use_cutmix = (augment.cutmix > 0) & (
        (draws[:, 0] < 0.5) if augment.mixup > 0 else np.ones(len(draws), bool)
    )
    mixed = draws[:, 1] < augment.mix_probability
    alpha = np.where(use_cutmix, augment.cutmix, augment.mixup)
    own = betaincinv(alpha, alpha, draws[:, 2])  # the inverse of Beta(alpha, alpha)'s distribution function
    side = np.sqrt(1 - own)
    h, w = (height * side).astype(np.int64), (width * side).astype(np.int64)
    centre_y, centre_x = (draws[:, 3] * height).astype(np.int64), (draws[:, 4] * width).astype(np.int64)
    top, left = np.clip(centre_y - h // 2, 0, height), np.clip(centre_x - w // 2, 0, width)
    bottom, right = np.clip(centre_y + h // 2, 0, height), np.clip(centre_x + w // 2, 0, width)
    boxes = np.stack([top, left, bottom - top, right - left], axis=1)
    boxes[~(use_cutmix & mixed)] = 0
    own = np.where(use_cutmix, 1 - boxes[:, 2] * boxes[:, 3] / (height * width), own)
    return np.where(mixed, own, 1.0), boxes


def mix(images: Tensor, partner: Tensor, own: np.ndarray, boxes: np.ndarray) -> Tensor:
    """Return each image mixed with its partner: a share of both, or a rectangle of the other."""
    blend = np.where(boxes[:, 2] * boxes[:, 3] > 0, 1.0, own).astype(np.float32)
    share = to_device(blend, images.device)[:, None, None, None]
    mixed = partner + share * (images - partner)
    for i in np.flatnonzero(boxes[:, 2] * boxes[:, 3]):
        top, left, height, width = (int(v) for v in boxes[i])
        mixed[i, :, top : top + height, left : left + width] = partner[
            i, :, top : top + height, left : left + width
        ]
    return mixed


def mix_targets(targets: Tensor, partner: Tensor, own: np.ndarray) -> Tensor:
    """Return soft targets (B, K) in the proportion that the pixels were mixed in."""
    share = to_device(own.astype(np.float32), targets.device)[:, None]
    return partner + share * (targets - partner)
