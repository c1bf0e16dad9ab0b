"""Images to try the page with: from data that the operator names, else those that were sealed with the model,
else scikit-learn's photographs, or digits for small models."""

import io
from functools import cache
from importlib import resources

from PIL import Image

from vitreous.data import open_data, thumbnails
from vitreous.errors import DataError
from vitreous.predict import Classifier

DIGIT_SIZE = 32
LONGEST = 640
LONGEST_NAME = 60
MOST = 8
"""Images taken from data that the operator names."""


Examples = dict[str, tuple[str, bytes]]
"""Media type and bytes, by name."""


def examples(classifier: Classifier) -> Examples:
    """Return example images: the model's own, if some were sealed with it."""
    own = thumbnails.read(classifier.about)
    if own:
        return _named(own)
    preprocessing = classifier.preprocess.preprocessing
    return bundled(preprocessing.channels, preprocessing.image_size)


def of_data(data: str, classifier: Classifier) -> Examples:
    """Return images of a data set's test split, or else of another, from each class in turn."""
    dataset = open_data(data)
    _, split = dataset.part(None)
    channels = classifier.preprocess.preprocessing.channels
    chosen = thumbnails.choose(split, dataset.labels, MOST, channels, LONGEST)
    if not chosen:
        raise DataError(f"--examples {data}: no image of it can be read")
    return _named(chosen)


def _named(images: list[tuple[str, str, bytes]]) -> Examples:
    return {
        f"{number}-{label[:LONGEST_NAME]}.{form.lower()}": (f"image/{form.lower()}", data)
        for number, (label, form, data) in enumerate(images, start=1)
    }


@cache
def bundled(channels: int, image_size: tuple[int, int]) -> Examples:
    """Return example images that come with the program: digits for models of small images."""
    if channels == 1 or max(image_size) <= DIGIT_SIZE:
        return _digits(image_size)
    return _photographs()


def _photographs() -> Examples:
    found = {}
    for name in ("flower.jpg", "china.jpg"):
        data = resources.files("sklearn.datasets.images").joinpath(name).read_bytes()
        image = Image.open(io.BytesIO(data))
        image.thumbnail((LONGEST, LONGEST))
        found[name] = ("image/jpeg", _encoded(image, "JPEG"))
    return found


def _digits(image_size: tuple[int, int]) -> Examples:
    split = open_data("digits").splits["test"]
    found: Examples = {}
    for digit in range(10):
        row = int((split.targets == digit).argmax())
        image = split.read(row, 1)
        if image.size != (image_size[1], image_size[0]):
            image = image.resize((image_size[1], image_size[0]), Image.Resampling.BICUBIC)
        found[f"digit-{digit}.png"] = ("image/png", _encoded(image, "PNG"))
    return found


def _encoded(image: Image.Image, form: str) -> bytes:
    held = io.BytesIO()
    image.save(held, form)
    return held.getvalue()
