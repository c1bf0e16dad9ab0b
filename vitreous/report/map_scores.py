"""How right the maps of some images are: deletion and insertion curves, means over the images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from vitreous.inspection import faithfulness
from vitreous.report.batches import ImageBatch


@dataclass(frozen=True)
class MapScores:
    """The model's answer as patches are removed in the order of a map, mean over images."""

    removed: np.ndarray
    """(S,) share of the patches that is removed."""
    curves: dict[str, tuple[np.ndarray, np.ndarray]]
    """For each map, the most relevant patches removed first (deletion) or last (insertion), each (S,)."""
    random: np.ndarray
    """(S,) patches removed in random order."""
    about: str
    images: int


def score(
    batch: ImageBatch, maps: Sequence[dict[str, np.ndarray]], classes: Sequence[int] | None
) -> MapScores:
    """Score the maps of the first images of a batch, for these classes (None: the model has none)."""
    count, model = len(maps), batch.classifier.model
    asked = None if classes is None else torch.tensor(classes)
    names = list(maps[0])
    stacked = [torch.from_numpy(np.stack([each[name] for each in maps])) for name in names]
    orders = [faithfulness.order_of(sign * each) for each in stacked for sign in (1, -1)]
    orders.append(faithfulness.random_order(model, count))
    curves = faithfulness.removal_curves(
        model,
        batch.images[:count],
        orders,
        asked,
        mask=None if batch.mask is None else batch.mask[:count],
        probabilities=batch.classifier.calibrated,
    )
    means = [each.mean(0).cpu().numpy() for each in curves]
    return MapScores(
        faithfulness.removed_shares(model).numpy(),
        {name: (means[2 * i], means[2 * i + 1]) for i, name in enumerate(names)},
        means[-1],
        faithfulness.meaning(asked),
        count,
    )


def combine(first: MapScores, second: MapScores) -> MapScores:
    """Return the means over the images of both."""
    count = first.images + second.images
    ours, theirs = first.images / count, second.images / count
    curves = {
        name: (
            ours * deletion + theirs * second.curves[name][0],
            ours * insertion + theirs * second.curves[name][1],
        )
        for name, (deletion, insertion) in first.curves.items()
    }
    return replace(first, curves=curves, random=ours * first.random + theirs * second.random, images=count)
