"""What the tasks without labels share: how they are evaluated, and what they leave behind."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vitreous.config import Preprocessing
from vitreous.data import Dataset, Loader
from vitreous.errors import OptionError
from vitreous.evals import health
from vitreous.evals.outputs import Inference
from vitreous.models.vit import VisionTransformer
from vitreous.objectives import Evaluation, Objective


class Unlabelled(Objective):
    """A task of a ViT that learns from images alone; labels, if there are any, only measure how it does."""

    mean: Tensor  # (C, 1, 1)
    std: Tensor

    sealed_figures = ("knn", "effective_rank", "mean_cosine", "count")

    def __init__(
        self, model: VisionTransformer, preprocessing: Preprocessing, dataset: Dataset | None = None
    ) -> None:
        super().__init__()
        if model.config.patch_drop:
            raise OptionError("--patch-drop is for learning from labels: leave it out")
        self.model, self.preprocessing = model, preprocessing
        self.labelled = dataset is not None and len(dataset.labels) > 1 and not dataset.multilabel
        self.headline = "knn" if self.labelled else "loss"
        for name, values in (("mean", preprocessing.mean), ("std", preprocessing.std)):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    @property
    def vit(self) -> VisionTransformer:
        """The model that learns."""
        assert isinstance(self.model, VisionTransformer)
        return self.model

    def visible(self, images: Tensor) -> Tensor:
        """Return normalised images as they look: in 0 to 1."""
        return (images.float() * self.std + self.mean).clamp(0.0, 1.0)

    def evaluate(self, loader: Loader, inference: Inference) -> Evaluation:
        """Measure the loss and the health of the features; with labels, also by nearest neighbours."""
        self.eval()
        return health.collect(self, self.kept.encode, loader, inference, labelled=self.labelled)

    def score(self, figures: Mapping[str, float]) -> list[float]:
        """Return the share of images whose neighbours are of their class; without labels, the loss."""
        return [figures["knn"], -figures["loss"]] if "knn" in figures else [-figures["loss"]]

    def trouble(self, figures: Mapping[str, float]) -> str | None:
        """Return that the features have collapsed, and what helps; None: they have not."""
        found = health.collapse(figures)
        return None if found is None else f"the features have collapsed: {found}; {self.remedy}"

    remedy = "try a lower --lr or a longer --warmup"
    """What to do about a collapse."""

    def card(self, dataset: Dataset, preprocessing: Preprocessing) -> tuple[str, str]:
        height, width = preprocessing.image_size
        return (
            f"An encoder of images, trained without labels, which holds its preprocessing.\n"
            f"Input: {preprocessing.channels} channels of {height}x{width} pixels; output: one vector per "
            f"image, and one per patch.",
            "It has no classes: `vitreous finetune` or `vitreous probe` makes use of it.",
        )
