"""The gradients of a batch, added up in parts that fit into memory; no weight is changed here."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitreous import config, parallel
from vitreous.data import Batch
from vitreous.errors import TrainingError
from vitreous.objectives import Objective


class Gradients:
    """Called by every rank with its share of a batch; parts become smaller where memory is short."""

    def __init__(
        self,
        module: nn.Module,
        objective: Objective,
        world: parallel.World,
        *,
        images: int,
        micro_batch: int,
        precision: config.Precision,
        seed: int,
        note: Callable[[str], None],
    ) -> None:
        """`module` is what `parallel.prepare` made of the objective; `images` the size of a whole batch."""
        self.module, self.objective, self.world = module, objective, world
        self.images, self.micro_batch = images, micro_batch
        self.precision: config.Precision = precision
        self._seed, self.note = seed, note
        self._fits = world.size == 1

    def __call__(self, batch: Batch, step: int, progress: float = 0.0) -> dict[str, Tensor]:
        """Return this rank's share of the whole batch's mean loss and metrics; the ranks' shares add up.

        `progress`: the part of the run that is behind this step, 0 to 1."""
        if not self._fits:
            self._find_fit(batch, step, progress)
        while True:
            try:
                return self._compute(self.module, batch, step, progress)
            except (RuntimeError, MemoryError) as error:
                if not parallel.out_of_memory(error):
                    raise
            self._halve()  # outside of the except clause, which holds on to the tensors

    def _find_fit(self, batch: Batch, step: int, progress: float) -> None:
        """Find what fits before ranks wait for each other: one that failed alone would leave all hanging."""
        while not self._fits:
            failed = False
            try:
                self._compute(self.objective, batch, step, progress)
            except (RuntimeError, MemoryError) as error:
                if not parallel.out_of_memory(error):
                    raise
                failed = True
            self.objective.zero_grad(set_to_none=True)
            self._fits = not parallel.any_rank([failed], self.world)[0]
            if not self._fits:
                self._halve()

    def _compute(self, module: nn.Module, batch: Batch, step: int, progress: float) -> dict[str, Tensor]:
        self.begin(step, progress)  # here, so that a second try draws the same numbers
        return self.add_up(batch, module)

    def begin(self, step: int, progress: float) -> None:
        """Seed what a step draws (dropout and stochastic depth), and let the task prepare for it."""
        parallel.seed_step(self._seed, step, self.world.rank)
        self.objective.before_step(progress)

    def add_up(self, batch: Batch, module: nn.Module | None = None) -> dict[str, Tensor]:
        """Compute the gradients, with no retry on lack of memory; return this rank's share of the figures."""
        module = module or self.module
        figures: dict[str, Tensor] = {}
        parts = [(part, len(part) / self.images) for part in batch.parts(self.micro_batch)]
        # Ranks that share a model wait for each other in it: one with an image less calls it as often.
        most = -(-self.images // self.world.size)
        idle = replace(batch.part(0, 1), counts=False)
        parts += [(idle, 0.0)] * (-(-most // self.micro_batch) - len(parts))
        for number, (part, share) in enumerate(parts):
            with parallel.accumulating(module, last=number == len(parts) - 1):
                with parallel.autocast(self.world.device, self.precision):
                    loss, metrics = module(part)
                # Ranks take the mean of their gradients; ours are shares of a sum.
                (loss * share * self.world.size).backward()
            for name, value in {"loss": loss, **metrics}.items():
                added = value.detach() * share
                figures[name] = figures[name] + added if name in figures else added
        return figures

    def _halve(self) -> None:
        if self.micro_batch == 1:
            raise TrainingError(
                "out of memory with a single image: use a smaller --model or --image-size, or --checkpointing"
            )
        self.objective.zero_grad(set_to_none=True)
        if hasattr(self.objective, "reset_iter_state"):  # FSDP2 since torch 2.15: forget the step that failed
            self.objective.reset_iter_state()  # pyright: ignore[reportCallIssue]
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()
        self.micro_batch = -(-self.micro_batch // 2)
        self.note(
            f"out of memory: computing {self.micro_batch} images at a time; the batch stays {self.images}"
        )
