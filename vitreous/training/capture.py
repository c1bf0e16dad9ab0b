"""A whole step as one CUDA graph: forward, backward and update without a gap between their kernels.

The first steps run as usual, which compiles the model and allocates its memory; then one step is recorded,
and replayed for every batch of the same shape.
"""

from dataclasses import replace

import torch
from torch import Tensor

from vitreous import parallel
from vitreous.data import Batch
from vitreous.training.gradients import Gradients
from vitreous.training.state import State
from vitreous.training.step import Outcome, Step, stacked

WARM = 3
"""Steps that run as usual before one is recorded."""


class CapturedStep(Step):
    """Takes steps by replaying a recorded one; where that can't be done, says so and takes them as usual."""

    def __init__(self, gradients: Gradients, state: State, *, clip: float) -> None:
        super().__init__(gradients, state, clip=clip, wait=False)
        self.usable = True
        self._taken = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch
        self._names: tuple[str, ...] = ()
        self._values: Tensor

    def __call__(self, batch: Batch, step: int, lr: float, progress: float = 0.0) -> Outcome:
        """Take step number `step`: by replay, once one is recorded."""
        if not self.usable or len(batch) > self.gradients.micro_batch:
            return super().__call__(batch, step, lr, progress)
        if self._graph is None and self._taken < WARM:
            self._taken += 1
            return super().__call__(batch, step, lr, progress)
        self.prepare(step, lr, progress)
        if self._graph is None and not self._record(batch):
            return super().__call__(batch, step, lr, progress)
        assert self._graph is not None
        if not _filled(self._batch, batch):  # of another shape: the last batch of a small set
            return super().__call__(batch, step, lr, progress)
        self.gradients.begin(step, progress)
        self._graph.replay()
        self.objective.after_update(step, self.refused)
        return self.deliver(self._names, self._values)

    def resume(self) -> None:
        """Take steps again after the state was restored: the recorded step moves tensors that are gone."""
        super().resume()
        self._graph, self._taken = None, 0

    def _record(self, batch: Batch) -> bool:
        """Record a step on copies of this batch's tensors; nothing is computed yet."""
        self.state.clear_gradients()
        self._batch = _copied(batch)
        graph = torch.cuda.CUDAGraph()
        try:
            # The loader's threads may pin memory meanwhile, which is no part of the recording.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                figures = self.move(self.gradients.add_up(self._batch))
                self._names, self._values = tuple(figures), stacked(figures)
        except RuntimeError as error:
            if parallel.out_of_memory(error):
                torch.cuda.empty_cache()
            self.usable = False
            reason = str(error).splitlines()[0][:120]
            self.gradients.note(f"steps are not recorded as one CUDA graph: {reason}")
            return False
        finally:
            self.state.clear_gradients()  # a step that is not replayed adds to what it finds
        self._graph = graph
        return True


def _copied(batch: Batch) -> Batch:
    """Return a copy of the batch whose tensors stay where they are: the recorded step reads them there."""
    names = ("images", "targets", "mask", "words", "small")
    found = {name: getattr(batch, name) for name in names}
    return replace(batch, **{name: each.clone() for name, each in found.items() if each is not None})


def _filled(kept: Batch, batch: Batch) -> bool:
    """Copy `batch` into the tensors of `kept`; return False if their shapes differ."""
    pairs = list(zip(kept.tensors, batch.tensors, strict=True))
    if any(mine.shape != other.shape or mine.dtype != other.dtype for mine, other in pairs):
        return False
    for mine, other in pairs:
        mine.copy_(other)
    return True
