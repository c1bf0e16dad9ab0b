"""The average of the weights is what is judged and sealed; the best of them is kept."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.training.runs import OPTIONS, records, run, weights
from vitreous import checkpoint
from vitreous.config import EvaluateConfig
from vitreous.data import Dataset, Loader
from vitreous.evals.outputs import Inference
from vitreous.evaluate import evaluate
from vitreous.models.weights import Model
from vitreous.objectives import Evaluation, supervised
from vitreous.objectives.supervised import Supervised
from vitreous.training import Result, train
from vitreous.training.plan import Plan


def test_the_average_is_sealed(undisturbed: Result) -> None:
    """Of weights and average, which the last checkpoint both holds."""
    saved = load_file(next((undisturbed.folder / "resume" / "step-00000036").glob("*.safetensors")))
    sealed = weights(undisturbed.folder)
    for name, value in sealed.items():
        assert torch.equal(value, saved[f"ema.model.{name}"]), name
    assert any(not torch.equal(value, saved[f"weights.model.{name}"]) for name, value in sealed.items())


def test_the_average_is_judged(data: str, tmp_path: Path) -> None:
    """With a slow average the two differ much: the journal has the loss of what is sealed."""
    run(data, tmp_path, ema=0.98, epochs=2)
    options = EvaluateConfig(split="val", device="cpu")
    measured = evaluate(str(tmp_path / "last.safetensors"), data, options)
    assert records(tmp_path, "val")[-1]["loss"] == pytest.approx(measured["loss"], abs=2e-6)


def test_without_an_average_the_weights_are_sealed(data: str, tmp_path: Path) -> None:
    run(data, tmp_path, ema=0.0, epochs=1)
    saved = load_file(next((tmp_path / "resume" / "step-00000006").glob("*.safetensors")))
    assert not any(name.startswith("ema.") for name in saved)
    assert all(
        torch.equal(value, saved[f"weights.model.{name}"]) for name, value in weights(tmp_path).items()
    )


@dataclass(frozen=True)
class Decided:
    """An evaluation whose outcome was decided before."""

    figures: Mapping[str, float]

    def document(self) -> dict[str, Any]:
        """Return the figures alone."""
        return dict(self.figures)


SCORES = [(0.5, 1.0), (0.9, 0.8), (0.9, 0.5), (0.9, 0.7), (0.7, 0.1), (0.9, 0.5)]


def scripted(model: Model, plan: Plan, dataset: Dataset) -> Supervised:
    """Return the usual task, whose evaluations give the accuracies and losses above, in their order."""
    objective = supervised.build(model, plan, dataset)
    left = iter([*SCORES, (1.0, 0.0), (1.0, 0.0)])  # then test, and training images

    def evaluated(loader: Loader, inference: Inference) -> Evaluation:
        accuracy, loss = next(left)
        return Decided({"accuracy": accuracy, "loss": loss, "count": 30.0})

    objective.evaluate = evaluated  # type: ignore[method-assign]
    return objective


def test_the_best_is_kept_and_of_equals_the_one_with_less_loss(data: str, tmp_path: Path) -> None:
    """The third evaluation: as accurate as the second with less loss; the last is its equal, and later."""
    result = train(data, replace(OPTIONS, out=str(tmp_path)), make_objective=scripted)
    best = checkpoint.read(tmp_path / "best.safetensors")
    assert best.about["step"] == result.figures["step"] == 18
    assert best.about["results"]["val"] == {"accuracy": 0.9, "loss": 0.5, "count": 30.0}
    assert result.figures["steps"] == 36
    last = checkpoint.read(tmp_path / "last.safetensors")
    assert last.about["step"] == 36
    assert any(not torch.equal(value, last.tensors[name]) for name, value in best.tensors.items())
