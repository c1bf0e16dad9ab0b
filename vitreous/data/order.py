"""Which image comes at which position, and every random draw, as pure functions of numbers; no state lives
here.

A draw is a hash of (seed, epoch, image, copy, purpose, number), so it does not matter which process asks for
it, in which order, or how often. numpy's generators are not used: their streams may change between versions.
"""

from dataclasses import dataclass, field

import numpy as np

from vitreous.config import Augment

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _scramble(x: np.ndarray) -> np.ndarray:
    """Return splitmix64's finaliser of each 64-bit word: every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def words(*keys: int | np.ndarray) -> np.ndarray:
    """Hash broadcast integer keys to 64-bit words; each key is folded in order, so (1, 2) is not (2, 1)."""
    state = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):  # wrapping around is intended
        for key in keys:
            word = np.asarray(key).astype(np.int64).astype(np.uint64)
            state = _scramble(state * np.uint64(3) + word + GOLDEN)
    return state


def uniforms(count: int, *keys: int | np.ndarray) -> np.ndarray:
    """Return (…, count) draws in [0, 1), the leading shape that of the broadcast keys."""
    columns = [np.asarray(key)[..., None] for key in keys]
    drawn = words(*columns, np.arange(count))
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass
class Order:
    """The positions of an epoch: `batch(epoch, step)` gives the images of one global batch."""

    count: int
    """Number of images."""
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    repeats: int = 1
    """Copies of an image in its global batch, each augmented differently (repeated augmentation)."""
    weights: np.ndarray | None = None
    """With weights, images are drawn with replacement in proportion to them."""
    _epoch: tuple[int, np.ndarray, np.ndarray] | None = field(default=None, repr=False, compare=False)
    """The last epoch that was asked for, its sequence and its occurrences: each is made once per epoch."""

    @property
    def steps(self) -> int:
        """Global batches in an epoch; training drops an incomplete last one, unless it is the only one."""
        if self.shuffle:
            return max(1, self.count // self.batch_size) if self.count else 0
        return -(-self.count // self.batch_size)

    def sequence(self, epoch: int) -> np.ndarray:
        """Return the image at each position of an epoch, before repeats."""
        return self._made(epoch)[0]

    def _made(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return an epoch's sequence, and how often each position's image came before it."""
        if self._epoch is None or self._epoch[0] != epoch:
            sequence = self._sequence(epoch)
            drawn_again = self.shuffle and self.weights is not None
            self._epoch = (
                epoch,
                sequence,
                _occurrences(sequence) if drawn_again else np.zeros_like(sequence),
            )
        return self._epoch[1:]

    def _sequence(self, epoch: int) -> np.ndarray:
        positions = np.arange(self.count)
        if not self.shuffle:
            return positions
        if self.weights is None:
            return np.argsort(words(self.seed, epoch, positions), kind="stable")
        edges = np.cumsum(self.weights / self.weights.sum())
        drawn = uniforms(1, self.seed, epoch, positions)[:, 0]
        return np.minimum(np.searchsorted(edges, drawn, side="right"), self.count - 1)

    def batch(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the images of global batch `step` and which copy of the image each one is."""
        sequence, occurrences = self._made(epoch)
        if self.repeats == 1 or not self.shuffle:
            part = slice(step * self.batch_size, (step + 1) * self.batch_size)
            return sequence[part], occurrences[part]
        # Copies stand `distinct` positions apart, so neighbours (which Mixup pairs) are different images.
        distinct = -(-min(self.batch_size, self.count) // self.repeats)
        slots = np.arange(min(self.batch_size, self.count))
        positions = (step * distinct + slots % distinct) % self.count
        return sequence[positions], occurrences[positions] * self.repeats + slots // distinct


def _occurrences(sequence: np.ndarray) -> np.ndarray:
    """Count, for each position of a sequence, how often its number occurs at earlier ones."""
    by_number = np.argsort(sequence, kind="stable")  # equal numbers in the order of their positions
    ordered = sequence[by_number]
    places = np.arange(len(sequence))
    first = np.searchsorted(ordered, ordered)  # where each run of equal numbers begins
    occurrences = np.empty_like(places)
    occurrences[by_number] = places - first
    return occurrences


def order_of(
    targets: np.ndarray, classes: int, batch_size: int, seed: int, augment: Augment | None, *, balanced: bool
) -> Order:
    """Return the order of a split's images: shuffled to train on, each once (`augment=None`) to evaluate."""
    if augment is None:
        return Order(len(targets), batch_size, seed, shuffle=False)
    weights = balanced_weights(targets, classes) if balanced else None
    return Order(len(targets), batch_size, seed, repeats=augment.repeats, weights=weights)


def share(count: int, rank: int, world_size: int) -> slice:
    """Return the part of a global batch of `count` that belongs to `rank`: contiguous, sizes differing by
    one at most."""
    return slice(count * rank // world_size, count * (rank + 1) // world_size)


def class_weights(targets: np.ndarray, classes: int) -> np.ndarray:
    """Return a weight for each class, inverse to its number of images, with mean 1 over the images (for a
    loss)."""
    counts = targets.sum(0) if targets.ndim == 2 else np.bincount(targets, minlength=classes)
    present = counts > 0
    weights = np.zeros(classes)
    weights[present] = counts.sum() / (present.sum() * counts[present])
    return weights


def balanced_weights(targets: np.ndarray, classes: int) -> np.ndarray:
    """Return a weight for each image, with which every class is drawn equally often; several labels: their
    mean."""
    weights = class_weights(targets, classes)
    if targets.ndim == 1:
        return weights[targets]
    labels = np.maximum(targets.sum(1), 1)
    each = (targets * weights).sum(1) / labels
    return np.where(targets.any(1), each, weights[weights > 0].min() if (weights > 0).any() else 1.0)
