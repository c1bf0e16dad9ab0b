"""Recipes: a run is repeated from its folder or its sealed file, and other options change parts of it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.runs import assert_same_weights, plan_of, run, weights
from tests.training.test_defaults import DIGITS
from vitreous import parallel
from vitreous.config import FinetuneConfig, TrainConfig
from vitreous.errors import OptionError
from vitreous.training import Result, finetune, recipes, setup, train
from vitreous.training.defaults import choose
from vitreous.training.recipes import Recipe

EVERYTHING: dict[str, Any] = {
    **{"optimizer": "sgd", "lr": 0.03, "schedule": "linear", "warmup": 0.3, "weight_decay": 0.2},
    **{"layer_decay": 0.8, "clip": 0.5, "ema": 0.8, "loss": "sigmoid", "label_smoothing": 0.2},
    **{"binary_targets": True, "balance": "loss", "seed": 3, "fit": "stretch", "drop_path": 0.2},
    **{"augment": "none", "crop_scale": (0.4, 0.9), "flip": 0.4, "randaugment": (1, 7), "erase": 0.3},
    **{"three_augment": True, "color_jitter": 0.2, "mixup": 0.4, "cutmix": 0.5, "mix_probability": 0.8},
    **{"repeats": 2, "epochs": 2, "batch_size": 12, "patch_size": (2,), "initialization": "mimetic"},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed is not measured here."""
    monkeypatch.setattr(parallel, "matrix_rate", lambda *_, **__: 1e12)


@pytest.fixture(scope="module")
def first(data: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run in which no option has the value that would be chosen."""
    return run(data, tmp_path_factory.mktemp("first"), **EVERYTHING)


@pytest.mark.parametrize("name", ["", "best.safetensors", "last.safetensors"])
def test_a_run_is_repeated(data: str, first: Result, tmp_path: Path, name: str) -> None:
    options = TrainConfig(recipe=str(first.folder / name), out=str(tmp_path), device="cpu")
    train(data, options)
    assert plan_of(tmp_path) == plan_of(first.folder)
    assert_same_weights(weights(tmp_path), weights(first.folder))


def test_every_value_of_a_recipe_gives_way_to_its_option(first: Result) -> None:
    recipe, plan = recipes.read(str(first.folder)), plan_of(first.folder)
    found = choose(TrainConfig(lr=0.5, epochs=9, ema=0.0, mixup=0.0, fit="cover"), DIGITS, recipe=recipe)
    assert (found.lr, found.epochs, found.ema, found.augment.mixup) == (0.5, 9, 0.0, 0.0)
    assert found.preprocessing.resize == "cover"
    assert found.augment == replace(plan.augment, mixup=0.0)
    assert (found.optimizer, found.seed, found.balance) == ("sgd", 3, "loss")
    assert found.reasons["seed"] == f"recipe {first.folder}" and "lr" not in found.reasons


def test_a_time_budget_is_part_of_a_recipe() -> None:
    recipe = Recipe("earlier", {"time_budget": 60.0})
    plan = choose(TrainConfig(), DIGITS, recipe=recipe)
    assert (plan.time_budget, plan.epochs) == (60.0, None)
    plan = choose(TrainConfig(epochs=3), DIGITS, recipe=recipe)
    assert (plan.time_budget, plan.epochs) == (None, 3)
    plan = choose(TrainConfig(time_budget="2m"), DIGITS, recipe=Recipe("earlier", {"epochs": 7}))
    assert (plan.time_budget, plan.epochs) == (120.0, None)


def test_a_fine_tuning_is_repeated(digits_file: Path, tmp_path: Path) -> None:
    shared: dict[str, Any] = {"tune": "head", "device": "cpu"}
    given = FinetuneConfig(out=str(tmp_path / "a"), epochs=1, batch_size=256, fit="pad", lr=0.02, **shared)
    finetune(str(digits_file), "digits", given)
    again = FinetuneConfig(out=str(tmp_path / "b"), recipe=str(tmp_path / "a"), **shared)
    finetune(str(digits_file), "digits", again)
    assert plan_of(tmp_path / "b") == plan_of(tmp_path / "a")
    assert_same_weights(weights(tmp_path / "b"), weights(tmp_path / "a"))


def test_a_recipe_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no recipe 'modren': give a run folder .* did you mean modern"):
        recipes.read("modren")
    with pytest.raises(OptionError, match="holds no recipe: give a run folder, or a sealed file"):
        recipes.read(str(tmp_path))


@pytest.mark.parametrize(
    ("tune", "images", "gpu", "expected"),
    [
        ("full", 19_999, False, {"name": "modern", "batch_size": 128, "lr": 1e-3 * 0.5**0.5, "epochs": 10}),
        ("full", 20_000, True, {"name": "paper", "batch_size": 512, "lr": 0.01, "ema": 0.0, "epochs": 10}),
        ("full", 1_999, True, {"name": "modern", "batch_size": 64, "lr": 5e-4, "epochs": 100}),
        ("last:2", 2_000, True, {"name": "modern", "batch_size": 256, "lr": 1e-3, "epochs": 100}),
        ("lora:4", 9_999, False, {"name": "modern", "batch_size": 64, "lr": 1e-3, "layer_decay": 1.0}),
        ("head", 50_000, True, {"name": "modern", "batch_size": 256, "lr": 6e-3, "weight_decay": 0.0}),
        ("full", 1_000_000, True, {"name": "paper", "epochs": 5, "clip": 1.0, "weight_decay": 0.0}),
    ],
)
def test_the_recipe_for_a_fine_tuning(tune: str, images: int, gpu: bool, expected: dict[str, Any]) -> None:
    """The rules of docs/transfer.md: the paper's for many images, else the modern one at its rates."""
    found = recipes.for_finetuning(FinetuneConfig(tune=tune), images, gpu)
    values = {"name": found.source, **found.values}
    assert {name: values[name] for name in expected} == pytest.approx(expected)
    kept = {"optimizer": "sgd" if expected["name"] == "paper" else "adamw", "schedule": "cosine", "clip": 1.0}
    assert {name: values[name] for name in kept} == kept
    if expected["name"] == "modern" and tune in ("full", "last:2"):
        assert (values["layer_decay"], values["weight_decay"]) == (0.75, 0.05)


def test_what_a_recipe_of_an_earlier_version_does_not_say(first: Result, tmp_path: Path) -> None:
    shutil.copytree(first.folder, tmp_path / "old")
    path = tmp_path / "old" / "config.json"
    stored = json.loads(path.read_text())
    del stored["plan"]["seed"], stored["plan"]["initialization"]
    path.write_text(json.dumps(stored))
    assert setup.seed(TrainConfig(recipe=str(tmp_path / "old"))) == 0
    assert setup.seed(TrainConfig(recipe=str(tmp_path / "old"), seed=4)) == 4
    recipe = recipes.read(str(tmp_path / "old"))
    assert choose(TrainConfig(), DIGITS, recipe=recipe).initialization == "paper"
