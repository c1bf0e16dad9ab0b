"""Which training images are held out where the source has no split: decided by content, one image at a time.

An image's side is a function of (seed, its bytes), so duplicates fall on one side, and images that are added
later move none of the others.
"""

import numpy as np

from vitreous.data.order import words

FRACTION = 0.1
LARGE, LARGE_FRACTION = 25_000, 0.05
"""From this many images on, less is held out: a few thousand suffice to choose with, the rest is to learn."""


def places(digests: np.ndarray, seed: int) -> np.ndarray:
    """Return a number in [0, 1) for each image, from its content and the seed alone."""
    halves = np.ascontiguousarray(digests).view("<u8").reshape(len(digests), -1).astype(np.int64)
    drawn = words(seed, *(halves[:, k] for k in range(halves.shape[1])))
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


def carve(
    digests: np.ndarray,
    targets: np.ndarray,
    parts: tuple[str, ...],
    seed: int,
    fraction: float | None = None,
) -> dict[str, np.ndarray]:
    """Return the images of each part ("val", "test") and of "train"; each class is split by the same rule.

    A class that by chance has no image in some part gets one there, if it has three different images or more:
    the nearest to that part. It goes back only if an image added later to its class falls there by itself.
    """
    if fraction is None:
        fraction = FRACTION if len(digests) < LARGE else LARGE_FRACTION
    place = places(digests, seed)
    side = np.full(len(digests), -1)
    for number in range(len(parts)):
        side[(place >= fraction * number) & (place < fraction * (number + 1))] = number
    _, content = np.unique(digests, axis=0, return_inverse=True)
    content = content.reshape(-1)
    for number in range(len(parts)):
        for members in _classes(targets):
            _ensure(side, place, content, members, number, fraction)
    chosen = {part: np.flatnonzero(side == number) for number, part in enumerate(parts)}
    return {"train": np.flatnonzero(side == -1), **chosen}


def _classes(targets: np.ndarray) -> list[np.ndarray]:
    if targets.ndim == 2:
        return [np.flatnonzero(column) for column in targets.T]
    order = np.argsort(targets, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(targets[order])) + 1) if len(targets) else []


def _ensure(
    side: np.ndarray,
    place: np.ndarray,
    content: np.ndarray,
    members: np.ndarray,
    number: int,
    fraction: float,
) -> None:
    """Give a part one image of a class that has none there, with all copies of it, if the class can spare
    it."""
    if (side[members] == number).any():
        return
    training = members[side[members] == -1]
    if len(np.unique(content[training])) < 3:  # at least two different ones stay for training
        return
    nearest = training[np.argmin(np.abs(place[training] - fraction * (number + 0.5)))]
    side[content == content[nearest]] = number


def exact_thirds(digests: np.ndarray, targets: np.ndarray, val: float, test: float) -> dict[str, np.ndarray]:
    """Split a set that never changes (the bundled digits) with exact proportions in every class."""
    parts: dict[str, list[np.ndarray]] = {"train": [], "val": [], "test": []}
    place = places(digests, 0)
    for members in _classes(targets):
        ranked = members[np.argsort(place[members], kind="stable")]
        first, second = round(len(ranked) * test), round(len(ranked) * (test + val))
        for part, chosen in zip(("test", "val", "train"), np.split(ranked, [first, second]), strict=True):
            parts[part].append(chosen)
    return {part: np.sort(np.concatenate(chosen)) for part, chosen in parts.items()}
