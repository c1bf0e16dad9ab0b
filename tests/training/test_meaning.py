"""What options mean, in figures that can be derived by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.training.conftest import stripes
from tests.training.runs import OPTIONS, plan_of, records, watched, weights
from vitreous import parallel
from vitreous.data import Batch, open_data
from vitreous.data.order import Order
from vitreous.errors import ResumeError
from vitreous.models import zoo
from vitreous.objectives.supervised import Supervised
from vitreous.training import train
from vitreous.training.gradients import Gradients

PLAIN = replace(
    OPTIONS, augment="none", ema=0.0, drop_path=0.0, label_smoothing=0.0, clip=0.0, optimizer="sgd", epochs=1
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed is not measured here."""
    monkeypatch.setattr(parallel, "matrix_rate", lambda *_, **__: 1e12)


def moved(data: str, out: Path, **changes: Any) -> dict[str, Tensor]:
    """Return how one step of gradient descent on all images moves each tensor, over the learning rate."""
    train(data, replace(PLAIN, out=str(out), **{"batch_size": 96, "lr": 0.1, "warmup": 0.0, **changes}))
    torch.manual_seed(0)
    start = zoo.build(plan_of(out).architecture, plan_of(out).initialization).state_dict()
    return {name: (value - start[name]) / 0.1 for name, value in weights(out).items()}


def test_class_weights_make_rare_classes_count_as_much(tmp_path: Path) -> None:
    """At the start all classes are equally likely: the bias moves by how frequent each class is beyond that,
    and by nothing where every class has the same weight."""
    data = stripes(tmp_path / "data.npz", train=96, val=6, test=6, seed=4)
    shares = np.bincount(open_data(data).splits["train"].targets) / 96
    assert np.ptp(shares) > 0.02
    plain = moved(data, tmp_path / "plain")["head.bias"]
    np.testing.assert_allclose(plain.numpy(), shares - 1 / 3, atol=1e-6)
    balanced = moved(data, tmp_path / "balanced", balance="loss")["head.bias"]
    np.testing.assert_allclose(balanced.numpy(), 0.0, atol=1e-6)


def test_the_end_of_a_run_is_not_mixed(tmp_path: Path) -> None:
    data, seen = stripes(tmp_path / "data.npz", train=96, val=6, test=6), list[Batch]()
    options = replace(PLAIN, out=str(tmp_path / "run"), epochs=8, batch_size=32, mixup=0.8, unmixed=0.25)
    train(data, options, make_objective=watched(seen))
    mixed = [bool((batch.targets.max(1).values < 1).any()) for batch in seen]
    assert mixed == [True] * 18 + [False] * 6  # 3 steps an epoch, 2 of 8 epochs


@pytest.mark.parametrize("pixels", ["host", "device"])
def test_the_end_of_a_short_run_is_not_mixed_either(tmp_path: Path, pixels: str) -> None:
    """Less than an epoch, from its very step on; the order stays that of a run that mixes all."""
    data, order = stripes(tmp_path / "data.npz", train=96, val=6, test=6), list[list[int]]()
    for unmixed, expected in ((0.2, [True] * 10 + [False] * 2), (0.0, [True] * 12)):
        seen = list[Batch]()
        changes = {"epochs": 2, "batch_size": 16, "mixup": 0.8, "unmixed": unmixed, "pixels": pixels}
        train(data, replace(PLAIN, out=str(tmp_path / f"{unmixed}"), **changes), make_objective=watched(seen))
        several = [batch.targets for batch in seen if batch.targets.ndim == 2]
        assert len(several) == len(seen) == 12
        assert [bool((targets.max(1).values < 1).any()) for targets in several] == expected
        order.append([index for batch in seen for index in batch.indices.tolist()])
    assert order[0] == order[1]


def test_the_sampler_draws_rare_classes_as_often(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"train_labels": np.array([0] * 80 + [1] * 12 + [2] * 4), "val_labels": np.arange(3)}
    for name in ("train", "val"):
        arrays[f"{name}_images"] = rng.integers(0, 255, (len(arrays[f"{name}_labels"]), 8, 8, 1), np.uint8)
    np.savez(tmp_path / "rare.npz", **arrays)  # pyright: ignore[reportArgumentType]
    shares = {}
    for balance in ("none", "sampler"):
        seen: list[Batch] = []
        options = replace(PLAIN, out=str(tmp_path / balance), epochs=4, balance=balance)
        train(str(tmp_path / "rare.npz"), options, make_objective=watched(seen))
        targets = torch.cat([batch.targets for batch in seen])
        shares[balance] = np.bincount(targets.numpy(), minlength=3) / len(targets)
    assert shares["none"][2] < 0.06 and shares["none"][0] > 0.8
    np.testing.assert_allclose(shares["sampler"], 1 / 3, atol=0.08)


def rates(data: str, out: Path, **changes: Any) -> list[float]:
    """Return the learning rate of each of ten steps, over its peak."""
    train(data, replace(PLAIN, out=str(out), batch_size=96, epochs=10, lr=0.1, **changes))
    return [record["lr"] / 0.1 for record in records(out, "train")]


@pytest.mark.parametrize("warmup", [0.0, 0.5])
def test_the_learning_rate_rises_over_its_warmup(data: str, tmp_path: Path, warmup: float) -> None:
    first = round(10 * warmup)
    rise = [(step + 1) / first for step in range(first)]
    fall = [(1 + math.cos(math.pi * step / (10 - first))) / 2 for step in range(10 - first)]
    assert rates(data, tmp_path, warmup=warmup) == pytest.approx([*rise, *fall])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1.0] * 10),
        ("linear", [1 - step / 10 for step in range(10)]),
        ("rsqrt", [math.sqrt(1e4 / (1e4 + s)) * min(1.0, (10 - s) / 2) for s in range(10)]),  # a fifth to end
    ],
)
def test_the_learning_rate_falls_as_its_schedule_says(
    data: str, tmp_path: Path, schedule: str, expected: list[float]
) -> None:
    assert rates(data, tmp_path, warmup=0.0, schedule=schedule) == pytest.approx(expected)


def test_clipping_limits_the_whole_step(data: str, tmp_path: Path) -> None:
    free = moved(data, tmp_path / "free")
    norm = math.sqrt(sum(float(value.square().sum()) for value in free.values()))
    clipped = moved(data, tmp_path / "clipped", clip=norm / 4)
    for name, value in clipped.items():
        torch.testing.assert_close(value, free[name] / 4, rtol=1e-3, atol=1e-5, msg=name)


def test_layers_near_the_image_move_less(data: str, tmp_path: Path) -> None:
    """Four blocks: the patches are five layers below the head. The head starts at zero, so that the layers
    below it have no gradient in the first step, and one in the second."""
    options = {"batch_size": 96, "epochs": 2, "warmup": 0.0, "schedule": "constant", "lr": 0.1}
    even, decayed = (moved(data, tmp_path / str(decay), layer_decay=decay, **options) for decay in (1.0, 0.5))
    torch.testing.assert_close(decayed["blocks.3.mlp.fc2.weight"], even["blocks.3.mlp.fc2.weight"] * 0.5)
    torch.testing.assert_close(decayed["blocks.0.mlp.fc2.weight"], even["blocks.0.mlp.fc2.weight"] * 0.5**4)
    torch.testing.assert_close(decayed["patch_embed.proj.weight"], even["patch_embed.proj.weight"] * 0.5**5)


def test_repeats_put_copies_of_an_image_into_its_batch(data: str, tmp_path: Path) -> None:
    seen: list[Batch] = []
    options = replace(PLAIN, out=str(tmp_path), repeats=2, flip=0.5)
    train(data, options, make_objective=watched(seen))
    training = [batch for batch in seen if len(batch) == 16]
    assert training
    for batch in training:
        assert torch.equal(batch.indices.unique(return_counts=True)[1], torch.full((8,), 2))


def test_copies_of_an_image_are_numbered() -> None:
    """By their number each is varied in its own way; neighbours, which Mixup pairs, are different images."""
    indices, copies = Order(12, 6, repeats=3).batch(0, 1)
    assert copies.tolist() == [0, 0, 1, 1, 2, 2]
    assert indices.tolist() == indices[:2].tolist() * 3 and indices[0] != indices[1]
    again, _ = Order(12, 6, repeats=3).batch(0, 2)
    assert not set(again.tolist()) & set(indices.tolist())


def test_the_order_follows_the_seed(data: str, tmp_path: Path) -> None:
    orders = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        seen: list[Batch] = []
        options = replace(PLAIN, out=str(tmp_path / name), seed=seed)
        train(data, options, make_objective=watched(seen))
        orders.append(torch.cat([batch.indices for batch in seen]).tolist())
    assert orders[0] == orders[1] != orders[2]


def test_another_seed_is_refused_on_resume(data: str, tmp_path: Path) -> None:
    """Also the seed that is meant where none is given."""
    train(data, replace(PLAIN, out=str(tmp_path / "given"), seed=5))
    train(data, replace(PLAIN, out=str(tmp_path / "zero")))
    train(data, replace(PLAIN, out=str(tmp_path / "zero"), seed=0))  # the same, said aloud
    for folder, seed, text in (("given", 6, "5 and is now 6"), ("given", None, "5 and is now 0")):
        with pytest.raises(ResumeError, match=f"seed was {text}"):
            train(data, replace(PLAIN, out=str(tmp_path / folder), seed=seed))
    with pytest.raises(ResumeError, match="seed was 0 and is now 1"):
        train(data, replace(PLAIN, out=str(tmp_path / "zero"), seed=1))


# -- what is left out at random ------------------------------------------------------------------------------


class Noisy(nn.Module):
    """A classifier whose dropout shows in its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 3))

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.layers(images)


def test_what_is_dropped_follows_from_seed_step_and_rank() -> None:
    batch = Batch(torch.randn(8, 64), torch.arange(8) % 3, torch.arange(8))

    def loss(seed: int, step: int, rank: int) -> float:
        objective = Supervised(Noisy())  # type: ignore[arg-type]
        gradients = Gradients(
            objective,
            objective,
            parallel.World(device=torch.device("cpu"), rank=rank),
            images=8,
            micro_batch=8,
            precision="float32",
            seed=seed,
            note=print,
        )
        return gradients(batch, step)["loss"].item()

    assert loss(0, 0, 0) == loss(0, 0, 0)
    assert len({loss(0, 0, 0), loss(0, 1, 0), loss(0, 2, 0), loss(0, 0, 1), loss(1, 0, 0)}) == 5


def test_deeper_blocks_are_left_out_more_often() -> None:
    """Stochastic depth (arXiv 1603.09382): from 0 at the first block, evenly, to the rate at the last."""
    model = zoo.create_model("vit_tiny_patch16_224", depth=4, image_size=16, drop_path=0.6).train()
    torch.manual_seed(0)
    for number, block in enumerate(model.blocks):
        kept = block.drop_path(torch.ones(4000, 2, 1))
        rate = number / 3 * 0.6
        assert float((kept[:, 0, 0] == 0).float().mean()) == pytest.approx(rate, abs=0.03), number
        assert kept.max().item() == pytest.approx(1 / (1 - rate))  # so that the mean stays
        assert torch.equal(kept[:, 0], kept[:, 1])  # an image's whole branch
