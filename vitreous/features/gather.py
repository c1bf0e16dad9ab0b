"""From DATA and a model to one vector for each picture that can be read; what `embed` and `clean` begin with.

Nothing is trained, and no file is changed.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vitreous import console
from vitreous.config import FeatureConfig
from vitreous.data import Dataset, InMemory, Split, open_pictures
from vitreous.data.bad import LISTED, without_name
from vitreous.data.opening import is_image, open_image
from vitreous.data.sources.folders import UNLABELLED
from vitreous.errors import ModelError
from vitreous.evals import features, neighbours
from vitreous.models.architecture import pair
from vitreous.predict import Classifier, load

SEVERAL = "|"
"""Separator between the labels of a picture that has several."""


@dataclass(frozen=True)
class Pictures:
    """The pictures of a data set that could be read, in its order."""

    features: np.ndarray  # float32 (N, D), of length 1
    rows: np.ndarray  # (N,) their numbers in `whole`
    whole: Split
    """All images of the data set, those of its splits one after the other."""
    dataset: Dataset
    bad: dict[str, str]
    """Files that could not be read, and why."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labelled(self) -> bool:
        """Whether the pictures have labels."""
        return self.dataset.labels != [UNLABELLED]

    @property
    def targets(self) -> np.ndarray:
        """Class numbers (N,), bool (N, K) where a picture has several labels."""
        return self.whole.targets[self.rows]

    @cached_property
    def splits(self) -> list[str]:
        """The split of each picture."""
        sizes = {name: len(split) for name, split in self.dataset.splits.items() if len(split)}
        names = np.repeat(list(sizes), list(sizes.values()))
        return [str(name) for name in names[self.rows]]

    @cached_property
    def files(self) -> list[str]:
        """The name of each picture, relative to the root of the data."""
        return [self.whole.name(int(row)) for row in self.rows]

    @cached_property
    def labels(self) -> list[str]:
        """What each picture is labelled: a class, several with | between them, or nothing."""
        names = self.dataset.labels
        if not self.labelled:
            return [""] * len(self)
        if self.dataset.multilabel:
            return [SEVERAL.join(names[number] for number in np.flatnonzero(row)) for row in self.targets]
        return [names[int(number)] for number in self.targets]


def open_any(data: str | InMemory, data_root: str | None) -> Dataset:
    """Open DATA with the splits that it has; a flat folder or an image file is opened without labels."""
    if isinstance(data, str) and is_image(data):
        return open_image(data)
    return open_pictures(data, data_root=data_root, carve=False)


def load_model(source: str, options: FeatureConfig) -> Classifier:
    """Load the model whose features are taken, for images of another size where asked."""
    size = pair(options.image_size, "--image-size") if options.image_size else None
    return load(source, image_size=size, device=options.device)


def gather(classifier: Classifier, dataset: Dataset, options: FeatureConfig) -> Pictures:
    """Compute a vector of length 1 for every picture of the data; name the files that can't be read."""
    _, whole = dataset.part("all")
    found = features.take(classifier.model, whole, classifier.preprocess.preprocessing, options)
    names = {index: whole.name(index) for index in sorted(found.bad)}
    bad = {name: without_name(found.bad[index], name) for index, name in names.items()}
    _name(bad)
    return Pictures(unit(found.values), found.indices, whole, dataset, bad)


def unit(values: np.ndarray) -> np.ndarray:
    """Return features with length 1; refuse what is not a number."""
    if not np.isfinite(values).all():
        raise ModelError(
            "the features are not numbers: the weights hold inf or NaN, or overflow; load others"
        )
    return neighbours.unit(values).numpy()


def _name(bad: dict[str, str]) -> None:
    """Report which files were left out."""
    for file, reason in list(bad.items())[:LISTED]:
        console.warn(f"{file}: {reason}")
    if bad:
        console.warn(f"{len(bad):,} files could not be read and were left out")
