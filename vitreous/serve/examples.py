"""Images to try the page with: those that were sealed with the model, else scikit-learn's photographs, or
digits for small models."""

import io
from functools import cache
from importlib import resources

from PIL import Image

from vitreous.data import thumbnails
from vitreous.predict import Classifier

DIGIT_SIZE = 32
LONGEST = 640
LONGEST_NAME = 60


def examples(classifier: Classifier) -> dict[str, tuple[str, bytes]]:
    """Return example images by name, each its media type and bytes: the model's own, if it has some."""
    own = thumbnails.read(classifier.about)
    if own:
        return {
            f"{number}-{label[:LONGEST_NAME]}.{form.lower()}": (f"image/{form.lower()}", data)
            for number, (label, form, data) in enumerate(own, start=1)
        }
    preprocessing = classifier.preprocess.preprocessing
    return bundled(preprocessing.channels, preprocessing.image_size)


@cache
def bundled(channels: int, image_size: tuple[int, int]) -> dict[str, tuple[str, bytes]]:
    """Return example images that come with the program: digits for models of small images."""
    if channels == 1 or max(image_size) <= DIGIT_SIZE:
        return _digits(image_size)
    return _photographs()


def _photographs() -> dict[str, tuple[str, bytes]]:
    found = {}
    for name in ("flower.jpg", "china.jpg"):
        data = resources.files("sklearn.datasets.images").joinpath(name).read_bytes()
        image = Image.open(io.BytesIO(data))
        image.thumbnail((LONGEST, LONGEST))
        found[name] = ("image/jpeg", _encoded(image, "JPEG"))
    return found


def _digits(image_size: tuple[int, int]) -> dict[str, tuple[str, bytes]]:
    from vitreous.data import open_data

    split = open_data("digits").splits["test"]
    found: dict[str, tuple[str, bytes]] = {}
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
