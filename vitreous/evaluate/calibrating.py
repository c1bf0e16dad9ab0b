"""A temperature or thresholds, fitted on the val split and sealed if they help on what is measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import checkpoint, console
from vitreous.config import EvaluateConfig
from vitreous.data import Dataset
from vitreous.errors import CheckpointError
from vitreous.evals import calibration, multilabel, outputs
from vitreous.evaluate import card
from vitreous.evaluate.measuring import Measured, figures, match, measure
from vitreous.evaluate.table import change
from vitreous.predict import Classifier


def sealed_file(source: str) -> Path:
    """Return the sealed file into which a calibration is written."""
    path = Path(source)
    for name in ("", "best.safetensors", "model.safetensors"):
        if (path / name).is_file() and checkpoint.is_sealed(path / name):
            return (path / name).resolve()  # if it is a link, the file is replaced, not the link
    raise CheckpointError(
        f"{source} is not a sealed file: `vitreous convert {source} NEW.safetensors --to vitreous`"
    )


def calibrate(
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
    helps = second["f1"] > first["f1"] if dataset.multilabel else _is_better(second, first)
    if not determined:
        helps = False
        images = len(dataset.splits["val"])
        console.warn(
            f"{images:,} val images don't determine a temperature: the model is right about all of them, "
            "or none: add images to val"
        )
    fitted_on, seen = len(dataset.splits["val"]), len(before.answers.indices)
    outcome = {"split": name, "before": first, "after": second}
    if helps:
        record = {"images": fitted_on, **fitted.get("calibration", {}), "measured": seen, **outcome}
        changed.about = {**changed.about, "calibration": record}
    kept = changed if helps else classifier
    weights = checkpoint.read(path)
    if weights.about != kept.about:
        weights.about = kept.about
        checkpoint.write(weights, path)  # the old file stays until the new one is whole
    card.update(path, kept.about)  # from what is sealed, so that a card that was cut short is made good
    found = fitted.get("calibration", {"thresholds": fitted.get("thresholds")})
    document = {**found, **outcome, "written": helps}
    what = f"temperature {found['temperature']:.3f}" if "temperature" in found else "thresholds"
    console.note(
        f"{what}, fitted on {fitted_on:,} val images; on {seen:,} {name} images, which had no part in it: "
        f"{change(first, second)}: {f'written into {path}' if helps else 'not written'}"
    )
    return (after if helps else before), document


def _fit(classifier: Classifier, dataset: Dataset) -> tuple[dict[str, Any], bool]:
    """Return what the val split asks for, a temperature or a threshold for each label, and whether its images
    determine it."""
    held_out = outputs.logits(classifier.model, dataset.splits["val"], classifier.preprocess.preprocessing)
    rows = match(classifier, dataset).rows
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
