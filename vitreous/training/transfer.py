"""How much of a trained model learns, and at which size, given the time there is. No torch.

The head is fitted first, which costs one pass over the images; larger images gain more than a few epochs of
smaller ones, so they come next; the time that is left decides how much of the body can follow. The
measurements are in docs/transfer.md.
"""

from dataclasses import dataclass, replace

from vitreous.models import cost
from vitreous.models.architecture import Architecture

SIZES = (96, 128, 160, 192, 224)
"""Sides that are considered: those that patches of 16 fill."""
PASS = 0.6
"""Part of the time that one pass over all images may take."""
EFFICIENCY = 0.85
"""Share of the measured rate that is left when images are read and decoded as well."""
ASIDE = 15.0
"""Seconds that go into start and report."""
USUAL = 600.0
"""Seconds to plan for where the user gave neither a time nor a number of epochs."""
EPOCHS = {"full": 3.0, "half": 1.0}
"""Epochs from which it pays to let all blocks learn, or their second half."""
MOST_EPOCHS = 30


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why."""

    architecture: Architecture
    tune: str
    epochs: int
    """As many as fit into the time."""
    reasons: dict[str, str]
    pass_seconds: float
    """What one pass over all images takes."""
    too_short: bool
    """Whether the time is too short even for that pass."""


def choose(
    model: Architecture,
    *,
    images: int,
    evaluated: int,
    side: int | None,
    budget: float | None,
    rate: float,
    reading: float,
) -> Choice:
    """Choose for `images` training images with a shorter side of `side`, and `evaluated` others.

    Without a side the model keeps its image size. `rate`: operations a second that its forward pass reaches
    on the device; `reading`: seconds that it takes to read an image.
    """
    time = USUAL if budget is None else budget

    def seconds(config: Architecture, passes: float = 1.0) -> float:
        return passes * 2 * cost.flops(config) / (EFFICIENCY * rate) + reading  # of one image

    sized = [
        model if size is None else replace(model, image_size=(size, size)) for size in _sizes(model, side)
    ]
    fitting = [each for each in sized if (images + evaluated) * seconds(each) <= PASS * time]
    chosen = fitting[-1] if fitting else sized[0]
    once = images * seconds(chosen)
    left = max(0.0, time - ASIDE - once - 2 * evaluated * seconds(chosen))
    shares = {"full": 3.0, f"last:{max(1, _depth(model) // 2)}": 2.0, "head": 1.0}
    if not model.has_attention:
        shares = {"full": 3.0, "head": 1.0}
    epochs = {tune: left / (images * seconds(chosen, passes)) for tune, passes in shares.items()}
    least = {"full": EPOCHS["full"], "head": 0.0}
    tune = next(name for name, many in epochs.items() if many >= least.get(name, EPOCHS["half"]))
    spent = f"{_minutes(time)} for {images:,} images"
    reasons = {
        "image_size": f"one pass takes about {_minutes(once)} of {spent}",
        "tune": f"about {epochs[tune]:.1f} epochs fit into {spent}",
    }
    many = min(MOST_EPOCHS, max(1, round(epochs[tune])))
    once += evaluated * seconds(chosen)
    return Choice(chosen, tune, many, reasons, once, too_short=once > time - ASIDE)


def _sizes(model: Architecture, side: int | None) -> list[int | None]:
    """Return the sides to choose among, not much larger than the images; None: the model's own."""
    if side is None or model.kind != "vit" or model.image_size[0] != model.image_size[1]:
        return [None]
    return [size for size in SIZES if size <= 1.3 * side and size % model.step[0] == 0] or [None]


def _depth(model: Architecture) -> int:
    return model.depth if model.kind == "vit" else 0


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} s"
