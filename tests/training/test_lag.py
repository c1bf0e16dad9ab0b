"""A host that runs ahead of its device, as with a GPU: here a CPU is looked at eight steps later as well."""

import json
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.training.runs import OPTIONS, assert_same_run, assert_same_weights, poison, records, run, weights
from vitreous.data import Dataset
from vitreous.errors import TrainingError
from vitreous.models.weights import Model
from vitreous.objectives import Objective
from vitreous.training import Result, assembly, loop, train
from vitreous.training.log import Log
from vitreous.training.plan import Plan
from vitreous.training.state import State
from vitreous.training.step import Step

STEPS = [*range(6, 37, 6)]


@pytest.fixture(scope="module")
def waiting(data: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The same arithmetic, each outcome read at once."""
    folder = tmp_path_factory.mktemp("waiting") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "State", lambda *about, capturable: State(*about, capturable=True))
        return run(data, folder)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host run ahead; nothing is recorded, which takes a GPU."""
    begin = loop.Training.__init__

    def run_ahead(self: loop.Training, *about: Any) -> None:
        begin(self, *about)
        self.lag = loop.LAG

    monkeypatch.setattr(loop.Training, "__init__", run_ahead)
    monkeypatch.setattr(assembly, "CapturedStep", partial(Step, wait=False))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps whose outcomes were read, in their order."""
    found: list[int] = []
    note = Log.step

    def noted(self: Log, step: int, *about: Any, **more: Any) -> None:
        found.append(step)
        note(self, step, *about, **more)

    monkeypatch.setattr(Log, "step", noted)
    return found


@pytest.mark.usefixtures("ahead")
def test_a_run_ends_as_one_that_waits(data: str, tmp_path: Path, waiting: Result, read: list[int]) -> None:
    """Weights and records: at an evaluation all outcomes before it are known, and none is lost or late."""
    taken: list[tuple[int, int]] = []
    evaluate = loop.Training.evaluate

    def noted(self: loop.Training) -> bool:
        taken.append((self.position.step, read[-1]))
        return evaluate(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Training, "evaluate", noted)
        run(data, tmp_path)
    assert_same_run(tmp_path, waiting)
    assert read == [*range(1, 37)] and taken == [(step, step) for step in STEPS]


@pytest.mark.usefixtures("ahead")
def test_a_run_that_is_stopped_goes_on(
    data: str, tmp_path: Path, waiting: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint comes after the last step that was taken, with all figures until then."""
    take = Step.__call__

    def stopped(self: Step, batch: Any, step: int, *about: Any) -> Any:
        if step == 15:
            signal.raise_signal(signal.SIGTERM)
        return take(self, batch, step, *about)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", stopped)
        with pytest.raises(SystemExit):
            run(data, tmp_path)
    assert (tmp_path / "resume" / "step-00000016").is_dir()
    run(data, tmp_path)
    assert_same_run(tmp_path, waiting)


@pytest.mark.usefixtures("ahead")
def test_nothing_moves_after_a_step_that_was_refused(data: str, tmp_path: Path) -> None:
    """Neither weights nor their average nor the optimizer's memory, until the host has seen it."""
    options = replace(OPTIONS, out=str(tmp_path / "run"), epochs=2)
    with pytest.raises(TrainingError, match="not finite at step"):
        train(data, options, make_objective=poison(40))
    step = json.loads(next((tmp_path / "run").glob("nonfinite-*.json")).read_text())["step"]
    last = load_file(next((tmp_path / "run" / "resume" / f"step-{step:08}").glob("*.safetensors")))
    assert step > 0 and {value.item() for name, value in last.items() if name.endswith(".step")} == {step}
    assert all(torch.isfinite(value).all() for value in last.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "__call__", _ending_at(step))
        with pytest.raises(SystemExit):
            train(data, replace(options, out=str(tmp_path / "until")))
    until = load_file(next((tmp_path / "until" / "resume" / f"step-{step:08}").glob("*.safetensors")))
    assert_same_weights(last, until)


def _ending_at(last: int) -> Any:
    """Return a step that ends the run, by a signal, with step number `last`."""
    take = Step.__call__

    def ending(self: Step, batch: Any, step: int, *about: Any) -> Any:
        if step == last - 1:
            signal.raise_signal(signal.SIGTERM)
        return take(self, batch, step, *about)

    return ending


@pytest.mark.usefixtures("ahead")
def test_a_rollback_leaves_the_batch_out(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task hears of the steps in between, whose updates were refused on the device."""
    followed: list[tuple[int, bool]] = []

    def make(model: Model, plan: Plan, dataset: Dataset) -> Objective:
        objective = poison(40)(model, plan, dataset)

        def after(step: int, refused: Tensor | None) -> None:
            assert refused is not None
            followed.append((step, bool(refused)))

        objective.after_update = after  # type: ignore[method-assign]
        return objective

    options = replace(OPTIONS, out=str(tmp_path), epochs=2, on_nan="rollback", save_every=2)
    result = train(data, options, make_objective=make)
    assert capsys.readouterr().err.count("rolled back to step") == 2
    last = load_file(next((tmp_path / "resume" / "step-00000012").glob("*.safetensors")))
    assert {value.item() for name, value in last.items() if name.endswith(".step")} == {10.0}
    assert all(torch.isfinite(value).all() for value in weights(result.folder).values())
    made = [step for step, refused in followed if not refused]
    assert {refused for _, refused in followed} == {True, False} and len(set(made)) == 10
    assert [record["step"] for record in records(tmp_path, "train")] == [6, 12]
