"""From any folder of images to batches in a known order: sources, decoding, augmentation, cache, loader."""

from vitreous.data.augment import resolve
from vitreous.data.bad import require_readable
from vitreous.data.batch import Batch
from vitreous.data.loader import Loader, make_loader
from vitreous.data.opening import keep_classes, limit_training, open_data, open_pictures
from vitreous.data.order import class_weights
from vitreous.data.pipeline import SmallViews
from vitreous.data.sources.memory import InMemory
from vitreous.data.sources.named import is_at_hand
from vitreous.data.split import Dataset, Split, typical_size

__all__ = [
    "Batch",
    "Dataset",
    "InMemory",
    "Loader",
    "SmallViews",
    "Split",
    "class_weights",
    "is_at_hand",
    "keep_classes",
    "limit_training",
    "make_loader",
    "open_data",
    "open_pictures",
    "require_readable",
    "resolve",
    "typical_size",
]
