"""`vitreous evaluate`: one checkpoint, one data set, every figure; and beside another checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit, softmax

from vitreous import checkpoint, console
from vitreous.config import EvaluateConfig
from vitreous.data import Dataset, Split, open_data
from vitreous.data.augment import normalize
from vitreous.errors import CheckpointError, DataError, ModelError
from vitreous.evals import accuracy, alignment, calibration, corruptions, multilabel, outputs, real
from vitreous.predict import Classifier, load

WORST = 24


@dataclass(frozen=True)
class Measured:
    """Logits of a split under the checkpoint's classes, with the targets as its rows."""

    classifier: Classifier
    split: Split
    outputs: outputs.Outputs
    targets: np.ndarray
    logits: np.ndarray

    @property
    def right(self) -> np.ndarray:
        """Return whether each image was classified rightly; where it has several labels, in all of them."""
        if self.targets.ndim == 1:
            return self.logits.argmax(1) == self.targets
        given = expit(self.logits) >= np.array(self.classifier.thresholds)
        return (given == self.targets).all(1)


def evaluate(source: str, data: str, options: EvaluateConfig) -> dict[str, Any]:
    """Return the JSON document of `vitreous evaluate`."""
    dataset = open_data(data, data_root=options.data_root, seed=options.seed)
    classifier = load(source, device=options.device)
    if not classifier.labels:
        raise ModelError(f"{source} has no classes: fine-tune it first, or use `vitreous probe`")
    name, split = dataset.part(options.split)
    if dataset.multilabel and (options.corruptions or options.real_labels or options.restrict):
        raise DataError("--corruptions, --real-labels and --restrict need one label an image: leave them out")
    if options.abstain is not None:
        classifier.about = {**classifier.about, "abstain": options.abstain}
    if options.calibrate:
        _calibrate(source, classifier, dataset, name, options)
    measured = measure(classifier, dataset, split, options)
    document: dict[str, Any] = {"checkpoint": str(source), "data": str(data), "split": name}
    document |= figures(measured, options)
    document["bad_files"] = {split.name(index): reason for index, reason in measured.outputs.bad.items()}
    if options.real_labels:
        files = [split.name(int(index)) for index in measured.outputs.indices]
        document |= real.figures(measured.logits.argmax(1), files, real.read(Path(options.real_labels)))
    if options.resolutions:
        document["resolutions"] = _at_resolutions(source, dataset, split, options)
    if options.corruptions:
        document["corruptions"] = _under_corruptions(measured, options.seed)
    if options.compare:
        second = measure(load(options.compare, device=options.device), dataset, split, options)
        document["compare"] = compare(measured, second, options)
    return document


def measure(classifier: Classifier, dataset: Dataset, split: Split, options: EvaluateConfig) -> Measured:
    """Run the classifier over a split, with the data's classes fitted to its own."""
    rows = alignment.rows_of(dataset.labels, classifier.labels)
    found = outputs.logits(
        classifier.model,
        split,
        classifier.preprocess.preprocessing,
        batch_size=options.batch_size,
        workers=options.workers,
    )
    logits = found.values / classifier.temperature
    if dataset.multilabel:
        targets = np.zeros((len(found.targets), len(classifier.labels)), bool)
        targets[:, rows] = found.targets
        return Measured(classifier, split, found, targets, logits)
    if options.restrict:
        others = np.setdiff1d(np.arange(logits.shape[1]), rows)
        logits = logits.copy()
        logits[:, others] = -np.inf
    return Measured(classifier, split, found, rows[found.targets], logits)


def figures(measured: Measured, options: EvaluateConfig) -> dict[str, Any]:
    """Return every figure of a classifier on a split."""
    logits, targets = measured.logits, measured.targets
    if targets.ndim == 2:
        classifier = measured.classifier
        return multilabel.figures(logits, targets, classifier.labels, classifier.thresholds)
    worst = accuracy.worst_mistakes(logits, targets, measured.outputs.indices, WORST)
    labels = measured.classifier.labels
    for row in worst:
        row |= {
            "file": measured.split.name(row["index"]),
            "truth": labels[row["truth"]],
            "guess": labels[row["guess"]],
        }
    document = accuracy.figures(logits, targets, labels, options.seed)
    document |= calibration.figures(logits, targets)
    document["worst"] = worst
    if threshold := measured.classifier.abstain:
        answered = softmax(logits, axis=1).max(1) >= threshold
        share = float(measured.right[answered].mean()) if answered.any() else None
        document["abstain"] = {"threshold": threshold, "coverage": float(answered.mean()), "accuracy": share}
    return document


def compare(first: Measured, second: Measured, options: EvaluateConfig) -> dict[str, Any]:
    """Return the second checkpoint's figures, and a paired comparison on the images that both could read."""
    shared, a, b = np.intersect1d(first.outputs.indices, second.outputs.indices, return_indices=True)
    if not len(shared):
        raise DataError("the two checkpoints have no readable image in common")
    paired = accuracy.compare(first.right[a], second.right[b], options.seed)
    own = figures(second, options)
    kept = ("mean_average_precision", "accuracy", "accuracy_interval", "top5", "loss", "ece", "f1")
    return {"checkpoint": options.compare, **{name: own[name] for name in kept if name in own}, **paired}


def _calibrate(
    source: str, classifier: Classifier, dataset: Dataset, measured: str, options: EvaluateConfig
) -> None:
    """Fit on the val split, never on the one that is reported, and seal the result."""
    path = Path(source) / "best.safetensors" if Path(source).is_dir() else Path(source)
    if not path.is_file() or not checkpoint.is_sealed(path):
        raise CheckpointError(
            f"{source} is not a sealed file: `vitreous convert {source} NEW.safetensors --to vitreous`"
        )
    if "val" not in dataset.splits or measured in ("val", "all"):
        raise DataError("calibration needs a val split besides the one that is measured")
    classifier.about = {
        name: each for name, each in classifier.about.items() if name not in ("calibration", "thresholds")
    }
    held_out = measure(classifier, dataset, dataset.splits["val"], options)
    if dataset.multilabel:
        classifier.about["thresholds"] = multilabel.thresholds(held_out.logits, held_out.targets)
    else:
        fitted = calibration.temperature(held_out.logits, held_out.targets)
        classifier.about["calibration"] = {"temperature": fitted, "images": len(held_out.targets)}
        console.note(f"temperature: {fitted:.3f}, fitted on {len(held_out.targets):,} val images and sealed")
    weights = checkpoint.read(path)
    weights.about = classifier.about
    checkpoint.write(weights, path)


def _at_resolutions(
    source: str, dataset: Dataset, split: Split, options: EvaluateConfig
) -> list[dict[str, Any]]:
    rows = []
    for size in options.resolutions:
        measured = measure(load(source, image_size=size, device=options.device), dataset, split, options)
        rows.append({"image_size": size, "accuracy": float(measured.right.mean())})
    return rows


@torch.inference_mode()
def _under_corruptions(measured: Measured, seed: int) -> dict[str, Any]:
    """Return the error under each corruption and their mean; for ImageNet also relative to AlexNet."""
    classifier, split, transform = measured.classifier, measured.split, measured.classifier.preprocess
    channels = transform.preprocessing.channels
    pixels = [transform.pixels(split.images.read(int(i), channels)) for i in measured.outputs.indices]
    table: dict[str, list[float]] = {}
    for name in corruptions.CORRUPTIONS:
        table[name] = []
        for severity in range(1, 6):
            wrong = 0
            for start in range(0, len(pixels), 64):
                some = [
                    corruptions.corrupt(each, name, severity, seed, start + i)
                    for i, each in enumerate(pixels[start : start + 64])
                ]
                batch = torch.from_numpy(np.stack(some)).permute(0, 3, 1, 2).to(classifier.device)
                guess = classifier.model(normalize(batch, transform.preprocessing)).argmax(1).cpu().numpy()
                wrong += int((guess != measured.targets[start : start + 64]).sum())
            table[name].append(wrong / len(pixels))
    means = {name: float(np.mean(errors)) for name, errors in table.items()}
    found: dict[str, Any] = {"errors": table, "mean_error": float(np.mean(list(means.values())))}
    if len(classifier.labels) == 1000:
        found["mce"] = float(np.mean([means[name] / corruptions.ALEXNET[name] for name in means]))
    return found


def summary(document: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the rows of the table that people see."""
    low, high = document.get("accuracy_interval", (None, None))
    rows: list[tuple[str, Any]] = [
        ("images", document["count"]),
        (
            "accuracy",
            percent(document["accuracy"])
            + (f" ({percent(low)} to {percent(high)})" if low is not None else ""),
        ),
        ("top-5", percent(document["top5"])),
        ("loss", f"{document['loss']:.4f}"),
        ("F1, mean of classes", percent(document["f1"])),
        ("calibration error", percent(document["ece"])),
    ]
    if "mean_average_precision" in document:
        rows.insert(1, ("mean average precision", percent(document["mean_average_precision"])))
    if "real_accuracy" in document:
        rows.append(("accuracy, ReaL", f"{percent(document['real_accuracy'])} of {document['real_count']:,}"))
    rows += [
        (f"accuracy at {row['image_size']}", percent(row["accuracy"]))
        for row in document.get("resolutions", [])
    ]
    if "abstain" in document:
        kept = document["abstain"]
        told = "none" if kept["accuracy"] is None else percent(kept["accuracy"])
        rows.append((f"accuracy from {kept['threshold']:g} on", f"{told} of {percent(kept['coverage'])}"))
    if "corruptions" in document:
        rows.append(("error under corruptions", percent(document["corruptions"]["mean_error"])))
    if other := document.get("compare"):
        rows += [
            (f"accuracy, {other['checkpoint']}", percent(other["accuracy"])),
            ("difference", f"{percent(other['difference'])} (p = {other['p_value']:.3g}, paired)"),
        ]
    if document["bad_files"]:
        rows.append(("unreadable files", len(document["bad_files"])))
    return rows


def percent(value: float) -> str:
    """Return a share as people read it."""
    return f"{100 * value:.2f} %"
