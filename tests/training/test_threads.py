"""Threads of a run on a CPU: one where several don't help, and the same again after it was stopped."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.runs import run
from tests.training.test_defaults import DIGITS
from vitreous import parallel
from vitreous.config import Preprocessing, TrainConfig
from vitreous.data import open_data
from vitreous.evals import outputs
from vitreous.models import zoo
from vitreous.models.architecture import ViTConfig
from vitreous.parallel import threads
from vitreous.training import budget, head, pace, train
from vitreous.training.checkpoints import Checkpoints
from vitreous.training.defaults import choose

CPU = parallel.World(device=torch.device("cpu"))


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine of two cores on which nothing was set."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def measured(monkeypatch: pytest.MonkeyPatch, several: float, alone: float) -> None:
    """Let one thread and several take so many seconds."""

    def seconds(_: object, count: int) -> float:
        torch.set_num_threads(count)
        return alone if count == 1 else several

    monkeypatch.setattr(threads, "_seconds", seconds)


@pytest.mark.parametrize(("several", "count"), [(0.5, 2), (0.89, 2), (0.95, 1), (4.0, 1)])
def test_a_second_thread_must_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], several: float, count: int
) -> None:
    measured(monkeypatch, several, 1.0)
    plan = choose(TrainConfig(), DIGITS)
    parallel.settle(zoo.build(plan.architecture), plan.precision, CPU)
    assert torch.get_num_threads() == count
    assert (f"threads: 1 (2 would take {several:.1f} times as long" in capsys.readouterr().err) == (
        count == 1
    )


def test_threads_are_settled_before_anything_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What learns, the image size and the steps are planned by the speed that the run will have; the head is
    fitted at that speed."""
    counts: dict[str, int] = {}

    def noted(module: Any, name: str) -> None:
        whole = getattr(module, name)

        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] = torch.get_num_threads()
            return whole(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    for module, name in ((pace, "forward_rate"), (pace, "reading_seconds"), (head, "fit"), (budget, "plan")):
        noted(module, name)
    measured(monkeypatch, 9.0, 1.0)
    options = TrainConfig(time_budget="5s", image_size=(96,), out=str(tmp_path / "run"), device="cpu")
    train("tests/fixtures/fruits", options)  # from `tiny`
    assert counts == {"forward_rate": 1, "reading_seconds": 1, "fit": 1, "plan": 1}
    assert torch.get_num_threads() == 2  # the caller's again


@pytest.mark.parametrize(("few", "count"), [(1, 1), (1000, 2)])
def test_many_images_are_computed_on_as_many_threads_as_help(
    monkeypatch: pytest.MonkeyPatch, few: int, count: int
) -> None:
    """In `evaluate`, `probe` and others; for a few images timing would take longer than they do."""
    measured(monkeypatch, 9.0, 1.0)
    monkeypatch.setattr(outputs, "FEW", few)
    split, seen = open_data("tests/fixtures/fruits").splits["train"], set()
    preprocessing = Preprocessing(image_size=(32, 32))
    model = zoo.build(ViTConfig(image_size=32, patch_size=16, width=32, depth=1, heads=2, mlp_width=32))

    def compute(images: torch.Tensor, _: object) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        return model(images)

    outputs.run(model, split, preprocessing, compute)
    assert seen == {count} and torch.get_num_threads() == 2


@pytest.mark.parametrize("predicting", [False, True])
def test_what_is_timed_is_what_will_be_done(predicting: bool) -> None:
    """Gradients before training, predictions alone in inference mode."""
    plan = choose(TrainConfig(), DIGITS)
    model, gradients = zoo.build(plan.architecture), []
    model.head.weight.register_hook(gradients.append)  # type: ignore[union-attr]
    with torch.inference_mode(predicting):
        parallel.settle(model, plan.precision, CPU)
    assert bool(gradients) != predicting


def test_a_slow_model_is_called_once_on_each_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(threads, "SLOW", 0.0)
    monkeypatch.setattr(threads, "_compute", lambda *_: calls.append(torch.get_num_threads()))
    plan = choose(TrainConfig(), DIGITS)
    parallel.settle(zoo.build(plan.architecture), plan.precision, CPU)
    assert calls == [2, 1]


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, 9.0, 1.0)
    plan = choose(TrainConfig(), DIGITS)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    parallel.settle(zoo.build(plan.architecture), plan.precision, CPU)
    assert torch.get_num_threads() == 2


def test_measuring_leaves_the_model_and_the_random_numbers_alone() -> None:
    plan = choose(TrainConfig(drop_path=0.5), DIGITS)
    model = zoo.build(plan.architecture)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.random.get_rng_state()
    parallel.settle(model, plan.precision, CPU)
    assert torch.equal(state, torch.random.get_rng_state()) and model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_run_that_goes_on_keeps_its_threads(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, 2.0, 1.0)
    run(data, tmp_path, epochs=1)
    saved = Checkpoints(tmp_path / "resume", keep=2).newest()
    assert saved is not None and saved.values["threads"] == 1
    assert torch.get_num_threads() == 2  # the caller's again
    measured(monkeypatch, 0.1, 1.0)  # the machine is quiet now: a fresh run would take both
    run(data, tmp_path, epochs=1, extend="1")
    saved = Checkpoints(tmp_path / "resume", keep=2).newest()
    assert saved is not None and saved.values["step"] > 6 and saved.values["threads"] == 1


def test_no_more_threads_than_there_are() -> None:
    for values in ({"threads": 64}, {}):  # a larger machine's, an earlier version's
        parallel.keep_threads(values)
        assert torch.get_num_threads() == 2
