"""`vitreous evaluate`: every figure of a checkpoint on a data set, also compared with another checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous import console, parallel
from vitreous.config import EvaluateConfig
from vitreous.data import Dataset, InMemory, open_data
from vitreous.errors import DataError, ModelError, OptionError
from vitreous.evals import real
from vitreous.evaluate.calibrating import calibrate, sealed_file
from vitreous.evaluate.conditions import at_resolutions, under_corruptions
from vitreous.evaluate.measuring import Measured, compare, figures, match, measure
from vitreous.evaluate.table import further, percent, summary
from vitreous.predict import Classifier, load

__all__ = ["Measured", "compare", "evaluate", "figures", "further", "measure", "percent", "summary"]


def evaluate(source: str, data: str | InMemory, options: EvaluateConfig) -> dict[str, Any]:
    """Return the JSON document of `vitreous evaluate`."""
    classifier = _load(source, options).merging(options.merge)
    other = _load(options.compare, options) if options.compare else None  # before anything is measured
    seed = classifier.seed if options.seed is None else options.seed
    options = replace(options, seed=seed)
    dataset = open_data(data, data_root=options.data_root, seed=seed)
    matched = _matched(source, classifier, dataset)
    matched_other = _matched(str(options.compare), other, dataset) if other is not None else {}
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
    sealed = sealed_file(source) if options.calibrate else None
    if sealed and ("val" not in dataset.splits or name in ("val", "all")):
        raise DataError("calibration needs a val split besides the one that is measured")
    measured, calibrated = measure(classifier, dataset, split, options), None
    if sealed:
        measured, calibrated = calibrate(sealed, measured, dataset, name, options)
    document: dict[str, Any] = {"checkpoint": str(source), "data": str(data), "split": name, "seed": seed}
    if options.merge:
        document["merge"] = options.merge
    document |= matched
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
        document["resolutions"] = at_resolutions(source, dataset, split, options)
    if options.corruptions:
        document["corruptions"] = under_corruptions(measured, dataset, options)
    if other is not None:
        if name in dataset.carved:
            _tell_other_parts(str(options.compare), other, seed)
        second = measure(other, dataset, split, options)
        document["compare"] = {**compare(measured, second, options), **matched_other}
    return document


def _load(source: str, options: EvaluateConfig) -> Classifier:
    """Open a checkpoint; refuse one without classes."""
    classifier = load(source, device=options.device)
    if not classifier.labels:
        raise ModelError(f"{source} has no classes: fine-tune it first, or use `vitreous probe`")
    return classifier


def _matched(source: str, classifier: Classifier, dataset: Dataset) -> dict[str, str]:
    """Refuse classes that the checkpoint does not know; say if they are not matched by name."""
    found = match(classifier, dataset)
    if not found.doubt:
        return {}
    console.warn(f"{source}: {found.doubt}")
    return {"classes_matched_by": found.by}


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
