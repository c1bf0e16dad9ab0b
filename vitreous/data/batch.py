"""What a loader gives to a model: a batch, which knows how to take a part of itself."""

from dataclasses import dataclass

from torch import Tensor


@dataclass
class Batch:
    """One rank's part of a global batch, ready for the model: B images, each in V views (mostly one)."""

    images: Tensor
    """float32 (V·B, C, H, W), normalised, on the device: the first view of all images, then the second, …
    `images.unflatten(0, (batch.views, -1))` is (V, B, C, H, W)."""
    targets: Tensor
    """int64 (B,), or float32 (B, K): several labels, or mixed ones."""
    indices: Tensor
    """int64 (B,), on the CPU: the images' numbers in the split."""
    mask: Tensor | None = None
    """bool (V·B, N): patches that are not padding, where images keep their aspect."""
    views: int = 1
    """V: how often each image is there, differently augmented."""

    def __len__(self) -> int:
        """Return B: an image in several views counts once."""
        return len(self.indices)

    def part(self, start: int, stop: int) -> "Batch":
        """Return the images from `start` to before `stop`, in all their views."""
        return Batch(
            self._rows(self.images, start, stop),
            self.targets[start:stop],
            self.indices[start:stop],
            None if self.mask is None else self._rows(self.mask, start, stop),
            self.views,
        )

    def parts(self, size: int) -> "list[Batch]":
        """Return the batch in parts of at most `size` images; an empty one is one part."""
        if len(self) <= size:
            return [self]
        return [self.part(start, start + size) for start in range(0, len(self), size)]

    def _rows(self, rows: Tensor, start: int, stop: int) -> Tensor:
        """Cut (V·B, …) between images, in each view."""
        return rows.unflatten(0, (self.views, len(self)))[:, start:stop].flatten(0, 1)
