"""Tasks: what is learned from a batch, how that is evaluated, and what it leaves behind; none knows the loop.

A task is a module that holds its model as `model`. A new one is a new file here with a class and a function
`build(model, plan, dataset)`; the loop, the checkpoints, the card and the report take it as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from torch import Tensor, nn

from vitreous.config import Preprocessing
from vitreous.data import Batch, Dataset, Loader, SmallViews
from vitreous.evals.outputs import Inference
from vitreous.models.weights import Model


class Evaluation(Protocol):
    """What one evaluation found."""

    @property
    def figures(self) -> Mapping[str, float]:
        """The few figures that a run follows: `loss`, `count`, and what the task adds."""
        ...

    def document(self) -> dict[str, Any]:
        """Return everything that was found, for `evaluation.json` and the report."""
        ...


class Objective(nn.Module):
    """The interface of a task; its defaults suit one that has nothing but a loss."""

    model: Model
    views = 1
    """How many differently augmented copies of each image `forward` is given (`Batch.views`)."""
    small: SmallViews | None = None
    """Further views of each image, smaller crops of it (`Batch.small`)."""
    frozen: Sequence[nn.Module] = ()
    """Modules that it calls and that learn nothing, such as a teacher: compiled with it, never saved."""
    headline = "loss"
    """The figure that the model card shows first."""
    sealed_figures: Sequence[str] | None = None
    """Evaluation figures of the kept model alone; None: all are. Others need parts that are thrown away, and
    are known of a run's own evaluations only."""
    whole_passes = True
    """Whether the model passes once over the whole of each image: MFU assumes it, and else is not given."""

    @property
    def kept(self) -> Model:
        """The model that is evaluated and sealed: usually the one that learns."""
        return self.model

    def before_step(self, progress: float) -> None:
        """Prepare for the gradients of a batch; `progress`: the part of the run that is behind it, 0 to 1.

        It must not wait for the device. A step that is tried again is prepared again.
        """

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss over the batch's images, and detached metrics that are means over the same.

        The loop weighs both by the number of images, so that micro-batches and ranks of unequal size add up
        to the whole batch.
        """
        raise NotImplementedError

    def after_update(self, step: int, refused: Tensor | None) -> None:
        """React to an update of the weights, such as by moving a teacher that is their average.

        It must not wait for the device. `refused`: a flag on the device; where it is true nothing has moved,
        and nothing must move here.
        """

    def evaluate(self, loader: Loader, inference: Inference) -> Evaluation:
        """Evaluate the model on a split; every rank takes part."""
        from vitreous.evals.mean_loss import collect

        return collect(self, loader, inference)

    def score(self, figures: Mapping[str, float]) -> list[float]:
        """Return what evaluations are ranked by, higher is better; the next entry decides between equals."""
        return [-figures["loss"]]

    def trouble(self, figures: Mapping[str, float]) -> str | None:
        """Return what is wrong with an evaluation's figures and what helps; None: the run may succeed."""
        return None

    def preview(self, batch: Batch) -> Sequence[tuple[str, Tensor]]:
        """Return titles with pictures, each (B, C, H, W) in 0 to 1, of what the model makes of some images;
        none if there is nothing to see."""
        return ()

    def sealed(self) -> dict[str, Any]:
        """Return what the sealed file records beside weights, recipe and results."""
        return {}

    def card(self, dataset: Dataset, preprocessing: Preprocessing) -> tuple[str, str]:
        """Return what the model is, and what it is not for, as Markdown paragraphs."""
        height, width = preprocessing.image_size
        return (
            f"A model of images of {preprocessing.channels} channels of {height}x{width} pixels.",
            "It has no classes: fine-tune it on a task first.",
        )


Build = Callable[[Model, Any, Dataset], Objective]
"""From a model, a plan and the data to a task."""


def builder(name: str) -> Build:
    """Return the `build` of the task in the file of that name."""
    return import_module(f"{__name__}.{name}").build


def listed(labels: Sequence[str], most: int = 20) -> str:
    """Return class names for a sentence; if there are many, the first few."""
    more = f" and {len(labels) - most:,} more" if len(labels) > most else ""
    return ", ".join(label.replace("|", "\\|") for label in labels[:most]) + more
