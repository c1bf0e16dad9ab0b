"""Labels are learned and what is left out is painted: the error, what is looked at, what is kept."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import randomize
from tests.training.runs import OPTIONS, assert_same_run, kill_often, records, run, weights
from vitreous import checkpoint
from vitreous.config import FinetuneConfig, PretrainConfig, TrainConfig
from vitreous.data import Batch, open_data
from vitreous.errors import OptionError
from vitreous.models.architecture import ViTConfig
from vitreous.models.vit import VisionTransformer
from vitreous.objectives import painting
from vitreous.objectives.supervised import Supervised
from vitreous.report.curves import curves
from vitreous.training import Result, recipes, setup
from vitreous.training.defaults import choose
from vitreous.training.facts import Facts, Pretrained
from vitreous.training.initial import starting_point
from vitreous.training.plan import SUPERVISED

SHAPE: dict[str, Any] = {
    **{"image_size": (32, 32), "patch_size": (8, 8), "width": 32, "depth": 2, "heads": 4, "mlp_width": 64},
    **{"num_classes": 5, "patch_drop": 0.5},
}
SMALL = Facts(
    images=47_500, classes=10, multilabel=False, size=(32, 32), channels=3, device="cuda", bf16=True, cores=8
)
CHANGES: dict[str, Any] = {"patch_drop": 0.5, "reconstruct": 2.0}


def model(**changes: Any) -> VisionTransformer:
    made = VisionTransformer(ViTConfig(**{**SHAPE, **changes}))
    randomize(made)
    return made.train()


def batch(images: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(images, 3, 32, 32, generator=generator)
    return Batch(pixels, torch.arange(images) % 5, torch.arange(images), words=torch.arange(images) * 977)


def test_the_error_is_that_of_the_hidden_patches_by_hand() -> None:
    """A mean square over the pixels of each hidden patch, normalised by that patch's mean and deviation."""
    config, images = ViTConfig(**SHAPE), batch(3).images
    painted, places = torch.randn(3, 16, 192), torch.stack([torch.randperm(16) for _ in range(3)])
    for image, found in enumerate(painting.error(painted, images, places, 6, config, 0.25)):
        squares = []
        for patch in range(16):
            row, column = divmod(patch, 4)
            cell = images[image, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8].numpy().reshape(-1)
            wanted = (cell - cell.mean()) / np.sqrt(cell.var(ddof=1) + 0.25)
            if places[image, patch] >= 6:
                squares.append(np.mean((painted[image, patch].numpy() - wanted) ** 2))
        assert len(squares) == 10 and float(found) == pytest.approx(np.mean(squares), rel=1e-5)


def test_patches_that_are_looked_at_are_not_painted() -> None:
    painted = torch.zeros(4, 16, 192, requires_grad=True)
    places = torch.stack([torch.randperm(16) for _ in range(4)])
    painting.error(painted, batch().images, places, 8, ViTConfig(**SHAPE)).sum().backward()
    assert painted.grad is not None
    assert torch.equal(painted.grad.abs().sum(2) > 0, places >= 8)


@pytest.mark.parametrize("changes", [{}, {"pooling": "gap", "class_token": False}, {"registers": 2}])
def test_the_logits_are_those_of_the_visible_patches(changes: dict[str, Any]) -> None:
    """As if the others were hidden by a mask, which is another way to leave them out."""
    made, given = model(**changes), batch()
    objective = Supervised(made, reconstruct=1.0)
    assert objective.painter is not None
    logits, _ = objective.painter(made, given)
    _, places = painting.look(made, given, 8)
    torch.testing.assert_close(logits, made.eval()(given.images, places < 8), rtol=0, atol=1e-5)


def test_the_loss_is_the_labels_and_so_many_times_the_painting() -> None:
    made, given = model(), batch()
    objective = Supervised(made, label_smoothing=0.1, reconstruct=3.0)
    loss, metrics = objective(given)
    assert objective.painter is not None
    logits, off = objective.painter(made, given)
    tokens, places = painting.look(made, given, 8)
    painted = objective.painter.decoder(made.fc_norm(tokens), places, 1)
    torch.testing.assert_close(
        off, painting.error(painted, given.images, places, 8, made.config, painting.FLAT)
    )
    alone = torch.nn.functional.cross_entropy(logits, given.targets, label_smoothing=0.1)
    torch.testing.assert_close(loss, alone + 3.0 * off.mean())
    torch.testing.assert_close(metrics["painting_loss"], off.mean())
    assert 0.0 <= float(metrics["accuracy"]) <= 1.0
    loss.backward()
    assert all(each.grad is not None and each.grad.any() for each in objective.painter.parameters())


def test_parts_of_a_batch_add_up() -> None:
    """What is looked at follows from each image's word, so ranks and micro-batches learn the same."""
    objective, given = Supervised(model(), reconstruct=2.0), batch(6)
    whole, _ = objective(given)
    parts = [objective(part)[0] * len(part) / 6 for part in given.parts(4)]
    torch.testing.assert_close(torch.stack(parts).sum(), whole)


@pytest.fixture(scope="module")
def painted(data: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run that nothing happened to."""
    torch.set_num_threads(1)
    return run(data, tmp_path_factory.mktemp("painted") / "run", **CHANGES)


def test_what_is_sealed_is_the_model_alone(painted: Result, data: str, tmp_path: Path) -> None:
    plain = run(data, tmp_path / "run", patch_drop=0.5)
    assert weights(painted.folder).keys() == weights(plain.folder).keys()
    assert checkpoint.read(painted.folder / "best.safetensors").about["recipe"]["reconstruct"] == 2.0
    rows = [row for row in records(painted.folder, "train") if "painting_loss" in row]
    assert rows and rows[-1]["painting_loss"] < rows[0]["painting_loss"]
    assert all(  # all three are rounded when they are written
        row["loss"] == pytest.approx(row["label_loss"] + 2.0 * row["painting_loss"], abs=1e-5) for row in rows
    )
    assert all("painting_loss" not in row for row in records(painted.folder, "val"))
    assert "Painting" in [picture.title for picture in curves(records(painted.folder))]
    assert "Painting" not in [picture.title for picture in curves(records(plain.folder))]


def test_a_killed_run_goes_on(painted: Result, data: str, tmp_path: Path) -> None:
    assert kill_often(data, tmp_path / "run", "step", 12, save_every=3, **CHANGES) >= 2
    assert_same_run(tmp_path / "run", painted)


def test_a_run_of_before_goes_on_with_none(data: str, tmp_path: Path) -> None:
    """A plan that does not tell of it had a weight of 0."""
    made = run(data, tmp_path / "run", epochs=1)
    config = json.loads((made.folder / "config.json").read_text())
    del config["plan"]["reconstruct"], config["options"]["reconstruct"]
    (made.folder / "config.json").write_text(json.dumps(config))
    assert run(data, made.folder, epochs=1, reconstruct=0.0).figures == made.figures


def test_a_recipe_paints_again(painted: Result, data: str, tmp_path: Path) -> None:
    plan = choose(TrainConfig(), SMALL, recipe=recipes.read(str(painted.folder)))
    assert plan.reconstruct == 2.0
    old = recipes.read("tests/fixtures/sealed_v1.safetensors")
    assert choose(TrainConfig(), SMALL, recipe=old).reconstruct == 0.0


def test_small_images_that_a_wide_model_sees_often_are_painted() -> None:
    """The rule of docs/train.md; options win."""
    plan = choose(TrainConfig(time_budget="10m"), SMALL)
    assert (plan.reconstruct, plan.augment.unmixed) == (10.0, 0.02)
    assert choose(TrainConfig(reconstruct=1.0, unmixed=0.1), SMALL).reconstruct == 1.0
    assert choose(TrainConfig(reconstruct=1.0, unmixed=0.1), SMALL).augment.unmixed == 0.1
    short = choose(TrainConfig(time_budget="2m"), SMALL)
    assert (short.reconstruct, short.augment.unmixed) == (0.0, 0.125)
    for other in ({"patch_drop": 0.0}, {"fit": "pad"}, {"optimizer": "adamw"}, {"model": "BiT-R50x1"}):
        assert choose(TrainConfig(**other), SMALL).reconstruct == 0.0
    first = choose(TrainConfig(), SMALL)
    trained = Pretrained(architecture=first.architecture, preprocessing=first.preprocessing)
    assert choose(TrainConfig(), SMALL, trained).reconstruct == 0.0
    again = recipes.Recipe("runs/before", {"reconstruct": 2.0})
    assert choose(TrainConfig(patch_drop=0.5), SMALL, trained, again).reconstruct == 0.0
    for task, weight in ((SUPERVISED, 2.0), (replace(SUPERVISED, objective="distill"), 0.0)):
        assert choose(TrainConfig(patch_drop=0.5), SMALL, recipe=again, task=task).reconstruct == weight


def test_what_can_not_be_painted_says_so() -> None:
    for options, line in (
        ({"reconstruct": 1.0, "patch_drop": 0.0}, "none are; add --patch-drop 0.5"),
        ({"reconstruct": 1.0, "fit": "pad"}, "with --fit pad none are"),
        ({"reconstruct": 1.0, "model": "BiT-R50x1"}, "is for a plain ViT"),
        ({"reconstruct": 1.0, "model": "R50+ViT-B/16", "patch_drop": 0.5}, "is for a plain ViT"),
        ({"reconstruct": 1.0, "patch_drop": 0.001}, "leaves out none of the 144 patches: give a larger one"),
        ({"patch_drop": 0.001}, "leaves out none of the 144 patches"),
    ):
        with pytest.raises(OptionError, match=line):
            choose(TrainConfig(**options), SMALL)
    gray = replace(SMALL, channels=1)
    with pytest.raises(OptionError, match="one gray pixel has no deviation"):
        choose(TrainConfig(reconstruct=1.0, patch_drop=0.5, patch_size=(1,), image_size=(8,)), gray)
    with pytest.raises(OptionError, match="--reconstruct -1.0 is out of range: give 0 or more"):
        setup.check_options(TrainConfig(reconstruct=-1.0))
    for config in (FinetuneConfig, PretrainConfig):
        with pytest.raises(OptionError, match="--reconstruct"):
            setup.check_options(config(reconstruct=1.0))
    with pytest.raises(OptionError, match="pools by attention"):
        Supervised(model(pooling="map"), reconstruct=1.0)


def test_the_width_that_counts_is_the_models_own() -> None:
    """A caller may give the model another shape than the rule's."""
    for width, images, weight, drop in ((192, 47_500, 0.0, 0.0), (384, 12_000, 10.0, 0.5)):
        shaped = replace(SUPERVISED, asked={"width": width, "heads": 6, "mlp_width": 4 * width})
        plan = choose(TrainConfig(), replace(SMALL, images=images), task=shaped)
        assert isinstance(plan.architecture, ViTConfig)
        assert (plan.reconstruct, plan.architecture.patch_drop) == (weight, drop)


def test_a_recipe_gives_way_to_padding() -> None:
    """Its dropped patches too: nobody asked for them."""
    first = choose(TrainConfig(), SMALL)
    recipe = recipes.Recipe("runs/before", {"reconstruct": 2.0}, first.architecture)
    plan = choose(TrainConfig(fit="pad"), SMALL, recipe=recipe)
    assert isinstance(plan.architecture, ViTConfig)
    assert (plan.architecture.patch_drop, plan.reconstruct) == (0.0, 0.0)


def test_asking_for_it_means_from_scratch(tmp_path: Path) -> None:
    dataset = open_data("tests/fixtures/fruits")
    assert starting_point(TrainConfig(), dataset)[0] == "tiny"
    assert starting_point(TrainConfig(reconstruct=1.0, patch_drop=0.5), dataset)[0] is None


def test_nothing_is_painted_unless_asked_for() -> None:
    made = Supervised(model())
    assert made.painter is None and set(dict(made.named_parameters())) == {
        f"model.{name}" for name, _ in made.model.named_parameters()
    }
    losses: Tensor = made(batch())[0]
    assert losses.requires_grad and OPTIONS.reconstruct is None
