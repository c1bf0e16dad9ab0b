"""From any folder of images to batches in a known order: sources, decoding, augmentation, cache, loader."""

from vitreous.data.loader import Batch, Loader
from vitreous.data.opening import limit_training, open_data
from vitreous.data.order import class_weights
from vitreous.data.split import Dataset, Split

__all__ = ["Batch", "Dataset", "Loader", "Split", "class_weights", "limit_training", "open_data"]
