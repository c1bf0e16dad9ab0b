"""What a loader gives to a model: a batch, which can be cut into parts."""

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
    """V: how many differently augmented views there are of each image."""
    words: Tensor | None = None
    """int64 (V·B,), on the device: a word for each image and view, the hash of (seed, epoch, image, copy).
    A task takes its draws from these, so they are the same on any rank and in a resumed run."""
    small: Tensor | None = None
    """float32 (S·B, C, h, w), on the device: the small crops, if the task asks for such views."""
    counts: bool = True
    """False: these images are in another part already. They only keep a rank in step with the others, which
    have a part more: a task that notes something of the images it sees takes nothing from them."""

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that are on the device."""
        found = (self.images, self.targets, self.mask, self.words, self.small)
        return [each for each in found if each is not None]

    def __len__(self) -> int:
        """Return B: an image in several views counts once."""
        return len(self.indices)

    def part(self, start: int, stop: int) -> "Batch":
        """Return the images from `start` to before `stop`, in all their views."""
        images = self._rows(self.images, start, stop)
        assert images is not None
        return Batch(
            images,
            self.targets[start:stop],
            self.indices[start:stop],
            self._rows(self.mask, start, stop),
            self.views,
            self._rows(self.words, start, stop),
            self._rows(self.small, start, stop),
            self.counts,
        )

    def parts(self, size: int) -> "list[Batch]":
        """Return the batch in parts of at most `size` images; an empty one is one part."""
        if len(self) <= size:
            return [self]
        return [self.part(start, start + size) for start in range(0, len(self), size)]

    def _rows(self, rows: Tensor | None, start: int, stop: int) -> Tensor | None:
        """Cut (V·B, …) between images, in each view; a rank may have no image of a small batch."""
        if rows is None or not len(self):
            return rows
        return rows.unflatten(0, (-1, len(self)))[:, start:stop].flatten(0, 1)
