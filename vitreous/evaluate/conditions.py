"""The same images under other conditions: at other sizes, and corrupted as ImageNet-C is."""

from typing import Any

import numpy as np
import torch

from vitreous import parallel
from vitreous.config import EvaluateConfig
from vitreous.data import Dataset, Split
from vitreous.evals import corruptions
from vitreous.evaluate.measuring import Measured, compute, measure
from vitreous.predict import load

AT_ONCE = 64
"""Images that are held and computed together under corruptions."""


def at_resolutions(
    source: str, dataset: Dataset, split: Split, options: EvaluateConfig
) -> list[dict[str, Any]]:
    """Return the accuracy at each image size; positions are resampled."""
    rows = []
    for size in options.resolutions:
        classifier = load(source, image_size=size, device=options.device).merging(options.merge)
        measured = measure(classifier, dataset, split, options)
        rows.append({"image_size": size, "accuracy": float(measured.right.mean())})
    return rows


@torch.inference_mode()
def under_corruptions(measured: Measured, dataset: Dataset, options: EvaluateConfig) -> dict[str, Any]:
    """Return the error under each corruption and their mean; for ImageNet also relative to AlexNet.

    What is corrupted is the image as it is fitted to the model's size; padding comes afterwards.
    """
    classifier, found = measured.classifier, measured.answers
    answer, transform = compute(classifier, dataset, options), classifier.preprocess
    precision = parallel.precision(options.precision, classifier.device)
    seed, channels = options.seed or 0, transform.preprocessing.channels
    wrong = {name: [0] * 5 for name in corruptions.CORRUPTIONS}
    for start in range(0, len(found), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        images = [transform.fitted(measured.split.read(int(i), channels)) for i in found.indices[rows]]
        for name, counts in wrong.items():
            for severity in range(1, 6):
                some = [
                    classifier.pad(corruptions.corrupt(each, name, severity, seed, start + i))
                    for i, each in enumerate(images)
                ]
                batch = classifier.collate(some)
                with parallel.autocast(classifier.device, precision):
                    guess = answer(batch.images, batch.mask).argmax(1)
                counts[severity - 1] += int((guess.cpu().numpy() != found.targets[rows]).sum())
    table = {name: [count / len(found) for count in counts] for name, counts in wrong.items()}
    means = {name: float(np.mean(errors)) for name, errors in table.items()}
    document: dict[str, Any] = {"errors": table, "mean_error": float(np.mean(list(means.values())))}
    if len(classifier.labels) == 1000:
        document["mce"] = float(np.mean([means[name] / corruptions.ALEXNET[name] for name in means]))
    return document
