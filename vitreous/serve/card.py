"""The model's card, as the page and `/model` show it: what it is, what was measured, what it takes.

Of what a checkpoint records beside its weights, only known, harmless entries are shown: paths on the machine
that trained it stay private.
"""

from dataclasses import asdict
from typing import Any

from vitreous.evals import calibration
from vitreous.models import cost
from vitreous.models.architecture import Architecture, ViTConfig
from vitreous.predict import Classifier
from vitreous.serve.settings import Settings
from vitreous.version import __version__

SHOWN_ENTRIES = ("name", "description", "licence", "license", "results", "step")
SHOWN_OPTIONS = ("model", "epochs", "steps", "batch_size", "lr", "optimizer", "seed", "objective")


def card(classifier: Classifier, name: str, settings: Settings) -> dict[str, Any]:
    """Return the JSON document of `/model`."""
    config, about = classifier.model.config, classifier.about
    recipe = about.get("recipe")
    recipe = recipe if isinstance(recipe, dict) else {}
    return {
        "name": name,
        "vitreous": __version__,
        "kind": _kind(config),
        "parameters": cost.parameters(config),
        "gflops": round(cost.flops(config) / 1e9, 4),
        "labels": classifier.labels,
        "preprocessing": asdict(classifier.preprocess.preprocessing),
        "temperature": classifier.temperature,
        "calibration": _calibration(about),
        "abstain": classifier.abstain,
        "multilabel": classifier.multilabel,
        "attention": _attention(config) if config.kind == "vit" and config.frames is None else None,
        "about": {key: about[key] for key in SHOWN_ENTRIES if key in about},
        "recipe": {
            key: recipe[key] for key in SHOWN_OPTIONS if isinstance(recipe.get(key), str | int | float)
        },
        "device": str(classifier.device),
        "runtime": "torch" if classifier.engine is None else classifier.engine.name,
        "precision": "float32" if classifier.engine is None else classifier.engine.precision,
        "limits": {"bytes": settings.max_body, "pixels": settings.max_pixels, "images": settings.max_images},
    }


def _calibration(about: dict[str, Any]) -> str:
    """Return what was measured of a calibration; the measured results are from before it."""
    try:
        return calibration.told(about)
    except (KeyError, TypeError, ValueError, AttributeError):  # a record that another program wrote
        return ""


def _kind(config: Architecture) -> str:
    if config.kind == "resnet":
        return "resnet"
    return "hybrid" if config.stem else "transformer"


def _attention(config: ViTConfig) -> dict[str, Any]:
    return {
        "layers": config.depth,
        "heads": config.heads,
        "grid": config.grid,
        "patch": config.step,
        "prefix": config.prefix,
        "class_token": config.class_token,
        "positions": config.positions,
    }
