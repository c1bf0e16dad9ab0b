"""What follows an evaluation besides recording its figures: warn that a run can't succeed, and draw what the
model makes of some images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitreous import console, files, parallel
from vitreous.errors import TrainingError

if TYPE_CHECKING:
    from vitreous.training.loop import Training

SHOWN = 8
"""Images in a preview."""


@dataclass(frozen=True)
class Watch:
    """How a run is watched."""

    stop: bool = False
    """Whether a run that can't succeed is ended."""
    preview: bool = False
    """Whether pictures are drawn at each evaluation, into the run's folder `preview/`."""

    def __call__(self, training: "Training", figures: Mapping[str, float]) -> None:
        """Look at a run whose validation images gave these figures; every rank takes part."""
        if self.preview:
            draw(training)
        found = training.objective.trouble(figures)
        if found is None:
            return
        step = training.position.step
        if self.stop:
            training.save()
            training.checkpoints.wait()
            raise TrainingError(f"stopped at step {step:,}: {found}")
        if training.world.is_main:
            console.warn(f"step {step:,}: {found}")


def draw(training: "Training") -> None:
    """Draw what the model makes of some validation images into `preview/`, a column for each image."""
    found = pictures(training)
    if found is not None and training.world.is_main:
        folder = training.folder / "preview"
        folder.mkdir(exist_ok=True)
        files.write_bytes(folder / f"step-{training.position.step:08d}.png", found)


def pictures(training: "Training") -> bytes | None:
    """Return what the model makes of some validation images as a PNG, where the task has anything to show."""
    if training.validation is None:
        return None
    batch = next(training.validation.epoch(0))
    if not len(batch):
        return None  # fewer images than ranks, or none that can be read
    training.objective.eval()
    with training.state.averaged(), parallel.uncompiled():
        columns = training.objective.preview(batch.part(0, min(SHOWN, len(batch))))
    if not columns:
        return None
    from vitreous import plot  # takes half a second, so only here

    shown = [(images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy() for _, images in columns]
    rows = {title: list(images) for (title, _), images in zip(columns, shown, strict=True)}
    return plot.png(plot.sheet(rows), dpi=96)
