"""A step that is recorded and replayed ends where ordinary steps do; the graph here is one that computes."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.training.runs import OPTIONS, assert_same_weights, plan_of
from vitreous import parallel
from vitreous.data import Batch, open_data
from vitreous.models import zoo
from vitreous.objectives import supervised
from vitreous.training import Result, capture, loaders
from vitreous.training.capture import WARM, CapturedStep
from vitreous.training.gradients import Gradients
from vitreous.training.state import State
from vitreous.training.step import Step

CPU = parallel.World(device=torch.device("cpu"))


class Graph:
    """Does again what was done while it was recorded, as a CUDA graph does."""

    step: "Recorded"

    def replay(self) -> None:
        step, parameters = self.step, list(self.step.objective.parameters())
        known = [each.grad for each in parameters]
        step.state.clear_gradients()  # a graph writes gradients of its own, and adds to none
        step._values.copy_(capture.stacked(step.move(step.gradients.add_up(step._batch))))
        for each, before in zip(parameters, known, strict=True):
            each.grad = before  # what the host holds on to
        step.replays += 1


class Recorded(CapturedStep):
    """Leaves no trace of what it computed while it recorded: a CUDA graph computes nothing then."""

    replays = 0

    def _record(self, batch: Batch) -> bool:
        before = {name: each.clone() for name, each in self.state.tensors().items()}
        recorded = super()._record(batch)
        for name, each in self.state.tensors().items():
            each.copy_(before[name])
        assert isinstance(self._graph, Graph)
        self._graph.step = self
        return recorded


@pytest.fixture
def batches(data: str, undisturbed: Result) -> list[Batch]:
    """Batches of the run, of which one is smaller: right after the recording, and once more later."""
    plan, found = plan_of(undisturbed.folder), []
    loader = loaders.training_loader(open_data(data), plan, OPTIONS, CPU, "host")
    for epoch in range(2):
        found += list(loader.epoch(epoch))
    for number in (WARM + 1, WARM + 4):
        found[number] = found[number].part(0, 10)
    return found


def learn(kind: type[Step], batches: list[Batch], run: Result) -> tuple[Step, dict[str, Tensor]]:
    """Take a step with each batch; return what took them, and the tensors of the state in the end."""
    plan = plan_of(run.folder)
    torch.manual_seed(0)
    model = zoo.build(replace(plan.architecture, drop_path=0.0))
    objective = supervised.build(model, plan, run.dataset)
    state = State(objective, plan, capturable=True)
    gradients = Gradients(
        objective, objective, CPU, images=16, micro_batch=16, precision="float32", seed=0, note=print
    )
    how = {} if issubclass(kind, CapturedStep) else {"wait": False}
    step = kind(gradients, state, clip=plan.clip, **how)
    for number, batch in enumerate(batches):
        step(batch, number, lr=1e-2)
    return step, state.tensors()


def test_replayed_steps_end_where_ordinary_ones_do(
    batches: list[Batch], undisturbed: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a batch of another shape, whose step adds to no gradient that the recording left."""
    _, expected = learn(Step, batches, undisturbed)
    modes: list[str] = []

    def recording(graph: Graph, *, capture_error_mode: str) -> AbstractContextManager[None]:
        modes.append(capture_error_mode)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    step, found = learn(Recorded, batches, undisturbed)
    assert isinstance(step, Recorded) and step.replays == len(batches) - WARM - 2
    assert modes == ["thread_local"]  # else a loader's thread that pins memory meanwhile ends the run
    assert_same_weights(found, expected)


def test_what_can_not_be_recorded_is_taken_as_usual(
    batches: list[Batch],
    undisturbed: Result,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    _, expected = learn(Step, batches, undisturbed)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    _, found = learn(CapturedStep, batches, undisturbed)
    assert capsys.readouterr().out.count("not recorded as one CUDA graph: operation not permitted") == 1
    assert_same_weights(found, expected)
