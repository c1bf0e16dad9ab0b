"""Training on some of the patches: which ones, what the model then sees, what it costs, what refuses it."""

import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import randomize
from vitreous import objectives
from vitreous.config import DistillConfig, Preprocessing, PretrainConfig, TrainConfig
from vitreous.data import open_data
from vitreous.errors import ModelError, OptionError
from vitreous.models import cost, zoo
from vitreous.models.architecture import ViTConfig
from vitreous.models.vit import VisionTransformer
from vitreous.objectives.mae import MaskedAutoencoder
from vitreous.training import defaults, distill, pretrain, setup
from vitreous.training.defaults import choose
from vitreous.training.facts import Facts, Pretrained
from vitreous.training.plan import Plan, Task

SHAPE: dict[str, Any] = {
    **{"image_size": (32, 32), "patch_size": (8, 8), "width": 32, "depth": 2, "heads": 4, "mlp_width": 64},
    "num_classes": 5,
}
SEALED = "tests/fixtures/sealed_v1.safetensors"
SMALL = Facts(
    images=47_500, classes=10, multilabel=False, size=(32, 32), channels=3, device="cuda", bf16=True, cores=8
)


def model(**changes: Any) -> VisionTransformer:
    made = VisionTransformer(ViTConfig(**{**SHAPE, **changes}))
    randomize(made)
    return made


def test_patches_are_dropped_as_timm_drops_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same draws, the same logits and gradients as timm's `patch_drop_rate`."""
    ours = model(patch_drop=0.5).train()
    peer = timm.models.VisionTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=32,
        depth=2,
        num_heads=4,
        mlp_ratio=2,
        num_classes=5,
        patch_drop_rate=0.5,
    ).train()
    peer.load_state_dict(ours.state_dict())
    drawn = torch.rand(3, 16)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: drawn)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: drawn)
    images = torch.linspace(-1, 1, 3 * 3 * 32 * 32).sin().view(3, 3, 32, 32)
    outputs = [each(images) for each in (ours, peer)]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)
    for output in outputs:
        output.square().sum().backward()
    gradients = [each.patch_embed.proj.weight.grad for each in (ours, peer)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", ["learned", "sincos2d", "learned2d", "rope", "none"])
@pytest.mark.parametrize("registers", [0, 2])
def test_a_dropped_patch_is_one_that_nobody_looks_at(positions: Any, registers: int) -> None:
    """The kept patches stay where they are: as if the others were hidden by a mask."""
    made = model(positions=positions, registers=registers).eval()
    images = torch.randn(3, 3, 32, 32)
    kept = torch.rand(3, 16).argsort(1)[:, :7]
    mask = torch.zeros(3, 16, dtype=torch.bool).scatter(1, kept, True)
    tokens = made.run_blocks(made.select_patches(made.embed(images), kept), made.geometry(kept=kept))
    torch.testing.assert_close(made.forward_head(tokens), made(images, mask), rtol=0, atol=1e-5)


def test_each_image_and_step_drops_others_and_evaluation_none() -> None:
    made = model(patch_drop=0.75, pooling="gap", class_token=False)
    seen: list[torch.Tensor] = []
    keep = made.select_patches
    made.select_patches = lambda x, kept: (seen.append(kept), keep(x, kept))[1]  # type: ignore[method-assign]
    images = torch.randn(64, 3, 32, 32)
    made.train()
    assert made.forward_features(images).shape == (64, 4, 32)
    made.forward_features(images)
    chosen = torch.zeros(16).scatter_add(0, torch.cat(seen).flatten(), torch.ones(2 * 64 * 4))
    assert chosen.sum() == 512 and chosen.min() > 10  # of 32 each: every patch is kept at times
    assert not torch.equal(*seen) and len(set(map(tuple, seen[0].sort(1).values.tolist()))) > 32
    assert all(len(set(row)) == 4 for row in seen[0].tolist())
    assert made.eval().forward_features(images).shape == (64, 16, 32) and len(seen) == 2


def test_a_step_costs_what_it_looks_at() -> None:
    config = ViTConfig(**{**SHAPE, "patch_drop": 0.5, "registers": 1})
    made = VisionTransformer(config).train()
    with FlopCounterMode(display=False) as counter:
        made(torch.zeros(1, 3, 32, 32))
    assert cost.training_flops(config) == counter.get_total_flops() // 2 < cost.flops(config)
    whole = ViTConfig(**SHAPE)
    assert cost.training_flops(whole) == cost.flops(whole)


def test_at_least_one_patch_is_seen() -> None:
    made = model(patch_drop=0.99).train()
    assert made.config.trained_patches == 1 and made.forward_features(torch.zeros(2, 3, 32, 32)).shape[1] == 2


def test_small_images_on_a_gpu_drop_half_where_there_is_time() -> None:
    """The rule of docs/train.md, for the wide model alone; options win."""
    assert choose(TrainConfig(time_budget="10m"), SMALL).architecture.patch_drop == 0.5  # type: ignore[union-attr]
    for options in ({"time_budget": "2m"}, {"patch_drop": 0.0}, {"fit": "pad"}, {"optimizer": "adamw"}):
        assert choose(TrainConfig(**options), SMALL).architecture.patch_drop == 0.0  # type: ignore[union-attr]


def test_another_task_begins_with_all_patches() -> None:
    """What a checkpoint was trained without is no property of the next task's images."""
    first = choose(TrainConfig(), SMALL)
    trained = Pretrained(architecture=first.architecture, preprocessing=first.preprocessing)
    assert choose(TrainConfig(), SMALL, trained).architecture.patch_drop == 0.0  # type: ignore[union-attr]
    asked = choose(TrainConfig(patch_drop=0.25, drop_path=0.1), SMALL, trained).architecture
    assert (asked.patch_drop, asked.drop_path) == (0.25, 0.1)  # type: ignore[union-attr]


def test_what_can_not_drop_patches_says_so() -> None:
    with pytest.raises(ModelError, match="relative positions"):
        model(patch_drop=0.5, positions="relative")
    with pytest.raises(ModelError, match="patch_drop 1.0 is not a probability"):
        model(patch_drop=1.0)
    with pytest.raises(ModelError, match="padded"):
        model(patch_drop=0.5).train()(torch.zeros(1, 3, 32, 32), torch.ones(1, 16, dtype=torch.bool))
    with pytest.raises(OptionError, match="--fit pad"):
        choose(TrainConfig(patch_drop=0.5, fit="pad"), SMALL)
    with pytest.raises(OptionError, match="is for learning from labels"):
        MaskedAutoencoder(model(patch_drop=0.5, num_classes=0), Preprocessing(image_size=(32, 32)))
    with pytest.raises(OptionError, match="--patch-drop is for ViTs"):
        choose(TrainConfig(model="BiT-R50x1", patch_drop=0.5), SMALL)
    first = choose(TrainConfig(model="BiT-R50x1"), SMALL)
    trained = Pretrained(architecture=first.architecture, preprocessing=first.preprocessing)
    with pytest.raises(OptionError, match="--drop-path is for ViTs"):
        choose(TrainConfig(drop_path=0.5), SMALL, trained)
    assert choose(TrainConfig(), SMALL, trained).architecture == first.architecture


@pytest.mark.parametrize("objective", ["masked", "mae", "dino"])
def test_without_labels_all_patches_are_there_also_on_a_gpu(objective: Any, tmp_path: Path) -> None:
    """The plan that a GPU would take for small images is one that the task accepts."""
    seen: list[Plan] = []

    def planned(options: Any, facts: Any, *others: Any) -> Plan:
        seen.append(choose(options, SMALL, *others))
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(defaults, "choose", planned)
        pretrain("digits", PretrainConfig(objective=objective, device="cpu", out=str(tmp_path / "run")))
    made = zoo.build(seen[0].architecture)
    assert seen[0].architecture.width == 384
    assert objectives.builder(objective)(made, seen[0], open_data("digits")).model is made


@pytest.mark.parametrize("rate", [1.0, 1.5, -0.1, math.nan])
def test_a_rate_out_of_range_is_told_by_its_flag(rate: float) -> None:
    for name in ("patch_drop", "drop_path"):
        flag = name.replace("_", "-")
        with pytest.raises(OptionError, match=rf"--{flag} {rate} is out of range: give 0 up to"):
            setup.check_options(TrainConfig(**{name: rate}))


def test_a_task_without_labels_refuses_it_before_there_is_a_folder(tmp_path: Path) -> None:
    for work in (
        lambda out: pretrain("digits", PretrainConfig(patch_drop=0.5, epochs=1, out=out)),
        lambda out: distill(SEALED, "digits", DistillConfig(match="features", patch_drop=0.5, out=out)),
    ):
        with pytest.raises(OptionError, match="--patch-drop is for learning from labels"):
            work(str(tmp_path / "run"))
        assert not (tmp_path / "run").exists()


def test_a_recipe_that_drops_patches_is_one_for_features_too() -> None:
    """`distill --match features` compares every patch: the student of the same size sees them all."""
    features = Task(objective="distill", shape={"num_classes": 0}, labels=False, verb="distill")
    assert choose(TrainConfig(), SMALL, task=features).architecture.patch_drop == 0.0  # type: ignore[union-attr]
