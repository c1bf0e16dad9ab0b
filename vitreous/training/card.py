"""The model card: what a model is, what it was trained on, how good it is, what it is not for."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vitreous import console
from vitreous.config import Augment
from vitreous.evals import calibration
from vitreous.models import cost
from vitreous.training import portability

if TYPE_CHECKING:
    from vitreous.training.loop import Training
    from vitreous.training.schedule import Stage


def write(training: "Training", results: dict[str, Any], about: Mapping[str, Any]) -> str:
    """Return the card as Markdown; `about` is what the sealed file says of the best model."""
    plan, objective, dataset = training.plan, training.objective, training.dataset
    splits = ", ".join(f"{len(split):,} {name}" for name, split in dataset.splits.items())
    carved = f" Carved from the training images: {', '.join(dataset.carved)}." if dataset.carved else ""
    purpose, limits = objective.card(dataset, plan.preprocessing)
    recipe = "\n".join(f"- {name.replace('_', ' ')}: {text}" for name, text in _recipe(plan.recipe()))
    ranks = f", {results['ranks']} ranks" if results["ranks"] > 1 else ""
    taken = f"{results['device']}{ranks}, in {console.duration(results['seconds'])}"
    return f"""# Model card

{purpose}
It has {cost.parameters(plan.architecture):,} parameters. It converts to {portability.describe(plan)}.

## Data

{splits} images; fingerprint `{dataset.fingerprint}`.{carved}

## Results

{_table(objective.headline, results)}

Taken on {taken}. The best step was chosen on `val`.{_extended(training)}

{calibration.section(about)}## Recipe

{recipe}

## Limits

{limits}
"""


def _extended(training: "Training") -> str:
    """Return how the run was extended after its plan had ended."""
    said = [f"from step {each.start:,} by {_length(each)}" for each in training.stages[1:]]
    return f" After its recipe the run was extended {', then '.join(said)}." if said else ""


def _length(stage: "Stage") -> str:
    return f"{stage.epochs:,} epochs" if stage.epochs else console.duration(stage.seconds or 0.0)


def _table(headline: str, results: dict[str, Any]) -> str:
    """Return a row for each split: the task's first figure, its loss, the number of images."""
    names = dict.fromkeys((headline, "loss", "count"))
    rows = [f"| split | {' | '.join(_words(name) for name in names)} |", "|---" * (len(names) + 1) + "|"]
    for split in ("val", "test"):
        if figures := results.get(split):
            rows.append(f"| {split} | {' | '.join(_figure(name, figures.get(name)) for name in names)} |")
    return "\n".join(rows)


def _recipe(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the recipe's entries as people read them; what is not used is left out."""
    for name, value in values.items():
        if name == "augment":
            nothing = asdict(Augment(crop_scale=None, flip=0.0))
            value = {key: each for key, each in value.items() if each != nothing[key] and each is not None}
        elif name == "time_budget" and value is not None:
            value = console.duration(value)
        if value not in (None, "", {}) and value is not False:
            yield name, _value(value)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        parts = ((name.replace("_", " "), each) for name, each in value.items() if each is not None)
        return ", ".join(f"{name} {_value(each)}" for name, each in parts)
    if isinstance(value, list | tuple):
        return " to ".join(map(_value, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _words(name: str) -> str:
    return {"count": "images"}.get(name, name.replace("_", " "))


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name == "count":
        return f"{value:,.0f}"
    return f"{value:.4f}" if name == "loss" else f"{value:.2%}"
