"""What is learned: an objective is a module that turns a batch into a loss and metrics; none knows the loop.

An objective holds its model as `model`. `forward(batch)` returns the mean loss over the batch's images, to be
minimised, and metrics that are means over the same images; the loop weighs both by the number of images, so
that micro-batches and ranks of unequal size add up to the whole batch.
"""

from torch import Tensor, nn

from vitreous.data import Batch


class Objective(nn.Module):
    """The one signature."""

    model: nn.Module

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and detached metrics by name."""
        raise NotImplementedError
