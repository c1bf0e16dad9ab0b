"""`vitreous evaluate`: every figure of a checkpoint on a data set, also compared with another checkpoint."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous import checkpoint, console, parallel
from vitreous.config import EvaluateConfig
from vitreous.data import Batch, Dataset, InMemory, Split, open_data
from vitreous.errors import CheckpointError, DataError, ModelError, OptionError
from vitreous.evals import accuracy, alignment, answers, calibration, corruptions, multilabel, outputs, real
from vitreous.evals.answers import Answers
from vitreous.evals.multilabel import Scores
from vitreous.predict import Classifier, load

AT_ONCE = 64
"""Images that are held and computed together under corruptions."""


@dataclass(frozen=True)
class Measured:
    """What a classifier answered to the images of a split, in terms of its own classes."""

    classifier: Classifier
    split: Split
    answers: Answers | Scores
    bad: dict[int, str]
    """Images that could not be read, and why."""

    @property
    def right(self) -> np.ndarray:
        """Return whether each image was classified correctly; if it has several labels, in all of them."""
        if isinstance(self.answers, Scores):
            return self.answers.right(self.classifier.limits)
        return self.answers.right

    @property
    def guesses(self) -> np.ndarray:
        """Return the class that each image was given, by a model with one label per image."""
        assert isinstance(self.answers, Answers)
        return self.answers.guesses


def evaluate(source: str, data: str | InMemory, options: EvaluateConfig) -> dict[str, Any]:
    """Return the JSON document of `vitreous evaluate`."""
    classifier = _load(source, options).merging(options.merge)
    other = _load(options.compare, options) if options.compare else None  # before anything is measured
    seed = classifier.seed if options.seed is None else options.seed
    options = replace(options, seed=seed)
    dataset = open_data(data, data_root=options.data_root, seed=seed)
    name, split = dataset.part(options.split)
    if dataset.multilabel and (options.corruptions or options.real_labels or options.restrict):
        raise DataError(
            "--corruptions, --real-labels and --restrict need one label per image: leave them out"
        )
    fitted = options.calibrate and "val" in dataset.carved
    if name in dataset.carved or fitted:
        _tell_other_parts(source, classifier, seed, calibrate=options.calibrate)
    if options.abstain is not None:
        classifier.about = {**classifier.about, "abstain": options.abstain}
    if options.calibrate and options.merge:
        raise OptionError(
            "--calibrate fits the model as it is sealed, which merges nothing: leave --merge out"
        )
    if options.calibrate and options.restrict:
        raise OptionError(
            "--calibrate fits the model as it is sealed, with all classes: leave --restrict out"
        )
    sealed = _sealed_file(source) if options.calibrate else None
    if sealed and ("val" not in dataset.splits or name in ("val", "all")):
        raise DataError("calibration needs a val split besides the one that is measured")
    measured, calibrated = measure(classifier, dataset, split, options), None
    if sealed:
        measured, calibrated = _calibrate(sealed, measured, dataset, name, options)
    document: dict[str, Any] = {"checkpoint": str(source), "data": str(data), "split": name, "seed": seed}
    if options.merge:
        document["merge"] = options.merge
    if options.precision != "float32":
        document["arithmetic"] = parallel.precision(options.precision, classifier.device)
    document |= figures(measured, options)
    if calibrated is not None:
        document["calibration"] = calibrated
    document["bad_files"] = {split.name(index): reason for index, reason in measured.bad.items()}
    if options.real_labels:
        files = [split.name(int(index)) for index in measured.answers.indices]
        document |= real.figures(measured.guesses, files, real.read(Path(options.real_labels)))
    if options.resolutions:
        document["resolutions"] = _at_resolutions(source, dataset, split, options)
    if options.corruptions:
        document["corruptions"] = _under_corruptions(measured, dataset, options)
    if other is not None:
        if name in dataset.carved:
            _tell_other_parts(str(options.compare), other, seed)
        second = measure(other, dataset, split, options)
        document["compare"] = compare(measured, second, options)
    return document


def _load(source: str, options: EvaluateConfig) -> Classifier:
    """Open a checkpoint; refuse one without classes."""
    classifier = load(source, device=options.device)
    if not classifier.labels:
        raise ModelError(f"{source} has no classes: fine-tune it first, or use `vitreous probe`")
    return classifier


def _tell_other_parts(source: str, classifier: Classifier, seed: int, *, calibrate: bool = False) -> None:
    """Warn that images held out here may have been trained on, if the model was trained on the same data."""
    if seed == classifier.seed or not classifier.about.get("recipe"):
        return
    told = (
        f"{source} held out other images when it was trained (--seed {classifier.seed}): if that was on this "
        "data, it has learned some of those that are measured here"
    )
    if calibrate:
        raise DataError(f"{told}, and --calibrate would seal that: use its seed")
    console.warn(told)


def measure(classifier: Classifier, dataset: Dataset, split: Split, options: EvaluateConfig) -> Measured:
    """Run the classifier over a split, with the data's classes fitted to its own."""
    _require_same_kind(classifier, dataset)
    rows = torch.from_numpy(alignment.rows_of(dataset.labels, classifier.labels))
    several = dataset.multilabel

    def aligned(batch: Batch) -> Batch:
        if not several:
            return replace(batch, targets=rows.to(batch.targets.device)[batch.targets])
        wide = batch.targets.new_zeros(len(batch.targets), len(classifier.labels))
        wide[:, rows.to(wide.device)] = batch.targets
        return replace(batch, targets=wide)

    loader, batches = outputs.shown(
        classifier.model,
        split,
        classifier.preprocess.preprocessing,
        _compute(classifier, dataset, options),
        batch_size=options.batch_size,
        workers=options.workers,
        precision=parallel.precision(options.precision, classifier.device),
    )
    collect = multilabel.collect if several else answers.collect
    found = collect((aligned(batch), logits) for batch, logits in batches)
    known = found.logits.sum(1) if isinstance(found, Scores) else found.losses
    wrong = ~np.isfinite(known)
    if wrong.any():
        raise ModelError(
            f"the model's answers to {wrong.sum():,} of {len(found):,} images are not numbers: its weights "
            "are damaged, or overflow in this --precision"
        )
    return Measured(classifier, split, found, dict(loader.bad))


def _require_same_kind(classifier: Classifier, dataset: Dataset) -> None:
    """Refuse data with one label per image for a model of several, and the reverse.

    Weights that were not trained here don't say which they are for: the data decides.
    """
    told = classifier.multilabel or "recipe" in classifier.about
    if told and classifier.multilabel != dataset.multilabel:
        model, data = ("several labels" if each.multilabel else "one label" for each in (classifier, dataset))
        raise DataError(
            f"the model was trained on images with {model} each, and the data's have {data}: measure it on "
            "data of its own kind, or fine-tune it on these"
        )


def _compute(classifier: Classifier, dataset: Dataset, options: EvaluateConfig) -> outputs.Compute:
    """Return what computes logits at the classifier's temperature; with --restrict, of the data's classes."""
    model, temperature = classifier.model, classifier.temperature
    others = None
    if options.restrict:
        others = torch.ones(len(classifier.labels), dtype=torch.bool)
        others[torch.from_numpy(alignment.rows_of(dataset.labels, classifier.labels))] = False
        others = others.to(classifier.device)

    def compute(images: Tensor, mask: Tensor | None) -> Tensor:
        logits = model(images, mask).float() / temperature
        return logits if others is None else logits.masked_fill(others, float("-inf"))

    return compute


def figures(measured: Measured, options: EvaluateConfig) -> dict[str, Any]:
    """Return every figure of a classifier on a split."""
    classifier, found = measured.classifier, measured.answers
    if isinstance(found, Scores):
        return multilabel.document(found, classifier.labels, classifier.limits)
    document = accuracy.document(found, classifier.labels, options.seed or 0)
    for row in document["worst"]:
        row["file"] = measured.split.name(row["index"])
    if threshold := classifier.abstain:
        answered = found.probabilities >= threshold
        share = float(found.right[answered].mean()) if answered.any() else None
        document["abstain"] = {"threshold": threshold, "coverage": float(answered.mean()), "accuracy": share}
    return document


def compare(first: Measured, second: Measured, options: EvaluateConfig) -> dict[str, Any]:
    """Return the second checkpoint's figures, and a paired comparison on the images that both could read."""
    shared, a, b = np.intersect1d(first.answers.indices, second.answers.indices, return_indices=True)
    if not len(shared):
        raise DataError("the two checkpoints have no readable image in common")
    paired = accuracy.compare(first.right[a], second.right[b], options.seed or 0)
    own = figures(second, options)
    kept = ("mean_average_precision", "accuracy", "accuracy_interval", "top5", "loss", "ece", "f1")
    return {"checkpoint": options.compare, **{name: own[name] for name in kept if name in own}, **paired}


def _sealed_file(source: str) -> Path:
    """Return the sealed file into which a calibration is written."""
    path = Path(source)
    for name in ("", "best.safetensors", "model.safetensors"):
        if (path / name).is_file() and checkpoint.is_sealed(path / name):
            return (path / name).resolve()  # if it is a link, the file is replaced, not the link
    raise CheckpointError(
        f"{source} is not a sealed file: `vitreous convert {source} NEW.safetensors --to vitreous`"
    )


def _calibrate(
    path: Path, before: Measured, dataset: Dataset, name: str, options: EvaluateConfig
) -> tuple[Measured, dict[str, Any]]:
    """Fit on the val split; compare on the one that is reported, which had no part in it; seal what helps.

    Return what was measured with the outcome, and the two sets of figures.
    """
    classifier = before.classifier
    fitted, determined = _fit(classifier, dataset)
    changed = replace(classifier, about={**classifier.about, **fitted})
    after = measure(changed, dataset, before.split, options)
    judged = ("f1",) if dataset.multilabel else ("loss", "ece")
    first, second = ({key: figures(each, options)[key] for key in judged} for each in (before, after))
    # The loss is what was fitted, the calibration error what people look at: neither may get worse
    found = fitted.get("calibration", {"thresholds": fitted.get("thresholds")})
    helps = second["f1"] > first["f1"] if dataset.multilabel else _is_better(second, first)
    if not determined:
        helps = False
        images = len(dataset.splits["val"])
        console.warn(
            f"{images:,} val images don't determine a temperature: the model is right about all of them, "
            "or none: add images to val"
        )
    kept = changed if helps else classifier
    weights = checkpoint.read(path)
    if weights.about != kept.about:
        weights.about = kept.about
        checkpoint.write(weights, path)  # the old file stays until the new one is whole
    document = {**found, "split": name, "before": first, "after": second, "written": helps}
    what = f"temperature {found['temperature']:.3f}" if "temperature" in found else "thresholds"
    fitted_on, seen = len(dataset.splits["val"]), len(before.answers.indices)
    console.note(
        f"{what}, fitted on {fitted_on:,} val images; on {seen:,} {name} images, which had no part in it: "
        f"{_change(first, second)}: {f'written into {path}' if helps else 'not written'}"
    )
    return (after if helps else before), document


def _fit(classifier: Classifier, dataset: Dataset) -> tuple[dict[str, Any], bool]:
    """Return what the val split asks for, a temperature or a threshold for each label, and whether its images
    determine it."""
    held_out = outputs.logits(classifier.model, dataset.splits["val"], classifier.preprocess.preprocessing)
    rows = alignment.rows_of(dataset.labels, classifier.labels)
    if not dataset.multilabel:
        targets = rows[held_out.targets]
        fitted = calibration.temperature(held_out.values, targets)
        found = {"calibration": {"temperature": fitted, "images": len(targets)}}
        return found, calibration.determines(held_out.values, targets)
    targets = np.zeros((len(held_out.targets), len(classifier.labels)), bool)
    targets[:, rows] = held_out.targets
    return {"thresholds": multilabel.thresholds(held_out.values, targets)}, True


def _is_better(after: dict[str, float], before: dict[str, float]) -> bool:
    return after["loss"] < before["loss"] and after["ece"] <= before["ece"]


def _change(before: dict[str, float], after: dict[str, float]) -> str:
    """Return the figures before and after, in words."""
    words = {"loss": "loss", "ece": "calibration error", "f1": "F1"}
    shown = {name: (lambda value: f"{value:.4f}") if name == "loss" else percent for name in before}
    return ", ".join(
        f"{words[name]} {shown[name](before[name])} → {shown[name](after[name])}" for name in before
    )


def _at_resolutions(
    source: str, dataset: Dataset, split: Split, options: EvaluateConfig
) -> list[dict[str, Any]]:
    rows = []
    for size in options.resolutions:
        classifier = load(source, image_size=size, device=options.device).merging(options.merge)
        measured = measure(classifier, dataset, split, options)
        rows.append({"image_size": size, "accuracy": float(measured.right.mean())})
    return rows


@torch.inference_mode()
def _under_corruptions(measured: Measured, dataset: Dataset, options: EvaluateConfig) -> dict[str, Any]:
    """Return the error under each corruption and their mean; for ImageNet also relative to AlexNet.

    What is corrupted is the image as it is fitted to the model's size; padding comes afterwards.
    """
    classifier, found = measured.classifier, measured.answers
    compute, transform = _compute(classifier, dataset, options), classifier.preprocess
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
                    guess = compute(batch.images, batch.mask).argmax(1)
                counts[severity - 1] += int((guess.cpu().numpy() != found.targets[rows]).sum())
    table = {name: [count / len(found) for count in counts] for name, counts in wrong.items()}
    means = {name: float(np.mean(errors)) for name, errors in table.items()}
    document: dict[str, Any] = {"errors": table, "mean_error": float(np.mean(list(means.values())))}
    if len(classifier.labels) == 1000:
        document["mce"] = float(np.mean([means[name] / corruptions.ALEXNET[name] for name in means]))
    return document


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
    if "merge" in document:
        rows.insert(1, ("patches merged in each block", document["merge"]))
    if "arithmetic" in document:
        rows.insert(1, ("computed in", document["arithmetic"]))
    if "mean_average_precision" in document:
        rows.insert(1, ("mean average precision", percent(document["mean_average_precision"])))
    if "real_accuracy" in document:
        rows.append(("accuracy, ReaL", f"{percent(document['real_accuracy'])} of {document['real_count']:,}"))
    rows += further(document)
    if document["bad_files"]:
        rows.append(("unreadable files", len(document["bad_files"])))
    return rows


def further(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of what was asked for beside the usual figures."""
    rows = [
        (f"accuracy at {row['image_size']}", percent(row["accuracy"]))
        for row in document.get("resolutions", [])
    ]
    if "abstain" in document:
        kept = document["abstain"]
        share = "none" if kept["accuracy"] is None else percent(kept["accuracy"])
        rows.append((f"accuracy from {kept['threshold']:g} on", f"{share} of {percent(kept['coverage'])}"))
    if "calibration" in document:
        fit = document["calibration"]
        outcome = "written" if fit["written"] else "not written: not all of it improves"
        rows.append(("calibration", f"{_change(fit['before'], fit['after'])} ({outcome})"))
    if "corruptions" in document:
        rows.append(("error under corruptions", percent(document["corruptions"]["mean_error"])))
    if other := document.get("compare"):
        rows += [
            (f"accuracy, {other['checkpoint']} (compared)", percent(other["accuracy"])),
            (
                "difference, compared less this",
                f"{percent(other['difference'])} (p = {other['p_value']:.3g}, paired)",
            ),
        ]
    return rows


def percent(value: float) -> str:
    """Return a share as people read it."""
    return f"{100 * value:.2f} %"
