"""The training step that is timed: the loop's own, which moves the weights; peers start from the same."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bench.conftest import place_in, tiny_case
from vitreous.bench import train
from vitreous.errors import TrainingError
from vitreous.training.step import Step


@pytest.fixture
def ours(tmp_path: Path) -> Any:
    step = train.OurStep(tiny_case("train"), place_in(tmp_path))
    yield step
    step.close()


def test_it_is_the_step_of_the_loop_and_moves_weights_and_average(
    ours: train.OurStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    call = Step.__call__

    def spy(self: Step, batch: Any, step: int, *rest: Any) -> Any:
        taken.append(step)
        return call(self, batch, step, *rest)

    monkeypatch.setattr(Step, "__call__", spy)
    state = ours.training.state
    assert state.ema is not None
    head, mean = "model.head.weight", dict(state.ema.tensors)["model.head.weight"]
    weights = ours.training.objective.state_dict()[head]
    before = weights.clone(), mean.clone()
    ours()
    ours()
    assert taken == [0, 1]
    assert not torch.equal(weights, before[0]) and not torch.equal(mean, before[1])


def test_it_follows_the_plan_of_a_run(ours: train.OurStep) -> None:
    plan = ours.training.plan
    assert (plan.optimizer, plan.clip, plan.ema, plan.label_smoothing) == ("adamw", 1.0, 0.999, 0.1)
    assert plan.architecture.num_classes == 1000 and ours.training.step.clip == 1.0
    assert ours.batch.images.shape == (2, 3, 32, 32) and len(ours.batch.targets) == 2


def test_a_step_that_moved_nothing_is_not_timed(ours: train.OurStep) -> None:
    ours.batch.images.fill_(float("nan"))
    with pytest.raises(
        TrainingError, match="step 1 was not finite, and moved nothing: try --precision float32"
    ):
        ours()


def test_peers_take_the_same_batch_from_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours has taken steps by then; theirs start where ours did, and move."""
    models: list[tuple[torch.nn.Module, dict[str, torch.Tensor]]] = []
    make = train.peer_step

    def spy(model: torch.nn.Module, batch: Any, *rest: Any) -> Any:
        models.append((model, {name: value.clone() for name, value in model.state_dict().items()}))
        assert batch.images.shape == (2, 3, 32, 32)
        return make(model, batch, *rest)

    monkeypatch.setattr(train, "peer_step", spy)
    found = train.contenders(tiny_case("train"), place_in(tmp_path, "timm"))
    ours: Any = next(found)
    first = ours.work.training.objective.model.state_dict()
    first = {name: value.clone() for name, value in first.items()}
    ours.work()
    peer = next(found)
    ((model, start),) = models
    assert (ours.name, ours.images, ours.ours) == ("vitreous", 2, True)
    assert (peer.name, peer.images, peer.ours) == ("timm", 2, False)
    assert start.keys() == first.keys() and all(torch.equal(start[name], first[name]) for name in first)
    peer.work()
    assert not torch.equal(model.state_dict()["head.weight"], start["head.weight"])
    ours.close()


def test_precision_is_the_plans_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous import parallel

    world = place_in(tmp_path).world
    monkeypatch.setattr(parallel, "has_bf16", lambda _: True)
    case = tiny_case("train", precision=None, image_size=(64, 64))
    assert train.settled(case, world).precision == "bf16"
    monkeypatch.setattr(parallel, "has_bf16", lambda _: False)
    assert train.settled(case, world).precision == "float32"
    assert train.settled(tiny_case("train", precision="bf16"), world).precision == "bf16"


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_both_compute_in_the_precision_of_the_case(tmp_path: Path, precision: Any) -> None:
    seen: list[torch.dtype] = []

    def note(module: Any, inputs: Any, output: torch.Tensor) -> None:
        seen.append(output.dtype)

    ours, peer = train.contenders(tiny_case("train", precision=precision), place_in(tmp_path, "timm"))
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: (
            note(module, inputs, output)
            if isinstance(module, torch.nn.Linear) and module.out_features == 1000
            else None
        )
    )
    try:
        ours.work()
        peer.work()
    finally:
        handle.remove()
        ours.close()
    assert seen == [torch.bfloat16 if precision == "bf16" else torch.float32] * 2
