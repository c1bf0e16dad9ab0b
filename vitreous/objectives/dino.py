"""Self-distillation without labels (DINO, arXiv 2104.14294): a student sees small and large crops of an image
and learns to answer like its own slow average, which sees only the large ones.

Letters: B batch, V large views, S small views, D width, K prototypes.
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous import optim, parallel
from vitreous.config import Preprocessing
from vitreous.data import Batch, Dataset, Loader, SmallViews
from vitreous.errors import OptionError
from vitreous.evals import health
from vitreous.evals.mean_loss import MeanLoss
from vitreous.evals.outputs import Inference
from vitreous.models.vit import VisionTransformer
from vitreous.models.weights import Model
from vitreous.objectives import Evaluation
from vitreous.objectives.unlabelled import Unlabelled

STUDENT_TEMPERATURE = 0.1
TEACHER_TEMPERATURE = (0.04, 0.07)
WARM = 0.15
"""Part of the run over which the teacher's temperature rises."""
MOMENTUM = (0.996, 1.0)
"""How much of itself the teacher keeps at each step, at the start and at the end."""
CENTER_MOMENTUM = 0.9
HELD = 0.01
"""Part of the run over which the prototypes don't move."""
HIDDEN, BOTTLENECK = 2048, 256
"""Widths of the head; the first is at most eight times the model's."""
ALIKE = 0.999
"""Share of the largest entropy above which a teacher has no opinion."""
YOUNG = 0.3
"""Part of the run in which the teacher need not have one yet."""
FEW = 1.5
"""Number of prototypes in use, over all images, below which all images get the same answer."""


class Settings(Protocol):
    """What this task needs of a plan."""

    @property
    def preprocessing(self) -> Preprocessing: ...
    @property
    def settings(self) -> dict[str, Any]: ...


def build(model: Model, plan: Settings, dataset: Dataset) -> "Dino":
    """Return the task of `vitreous pretrain --objective dino`."""
    given = plan.settings
    return Dino(
        able(model),
        plan.preprocessing,
        prototypes=given["prototypes"],
        local=SmallViews(given["local_crops"], tuple(given["local_size"]), tuple(given["local_scale"])),
        dataset=dataset,
    )


def able(model: Model) -> VisionTransformer:
    """Return the model if it can see crops of two sizes; else refuse it."""
    if not isinstance(model, VisionTransformer) or model.config.frames is not None:
        raise OptionError("dino is for ViTs of images: choose another --model")
    if model.config.positions == "relative":
        raise OptionError(
            "dino shows crops of two sizes, and relative positions fit one: choose a --model with others"
        )
    return model


class Head(nn.Module):
    """Scores prototypes, which are directions, for a vector of the encoder; thrown away later."""

    def __init__(self, width: int, prototypes: int) -> None:
        super().__init__()
        wide = min(HIDDEN, 8 * width)
        layers = (nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, wide), nn.GELU())
        self.mlp = nn.Sequential(*layers, nn.Linear(wide, BOTTLENECK))
        self.prototypes = nn.Parameter(torch.empty(prototypes, BOTTLENECK))
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        nn.init.normal_(self.prototypes)

    def forward(self, x: Tensor, moving: Tensor | float = 1.0) -> Tensor:  # (B, D) → (B, K)
        """Score the prototypes; where `moving` is 0 they don't learn."""
        directions = self.prototypes.detach() + moving * (self.prototypes - self.prototypes.detach())
        x = F.normalize(self.mlp(x).float(), dim=-1, eps=1e-6)
        return F.linear(x, F.normalize(directions.float(), dim=-1))


class Dino(Unlabelled):
    """Answer for every crop of an image as the model's own average does for the large ones."""

    views = 2
    whole_passes = False
    remedy = "try a lower --lr, a larger --batch-size, or weaker augmentation"
    center: Tensor  # (K,) the teacher's mean scores
    scores: Tensor  # (K,) the sum of its scores in this step
    scored: Tensor  # how many these were
    answers: Tensor  # (K,) the sum of its probabilities in an evaluation
    temperature: Tensor
    moving: Tensor

    def __init__(
        self,
        model: VisionTransformer,
        preprocessing: Preprocessing,
        *,
        prototypes: int = 1024,
        local: SmallViews | None = None,
        dataset: Dataset | None = None,
    ) -> None:
        super().__init__(model, preprocessing, dataset)
        self.small = local if local is not None and local.count else None
        self.head = Head(model.config.pooled_width, prototypes)
        self.teacher = nn.ModuleDict({"model": deepcopy(model), "head": deepcopy(self.head)})
        self.teacher.requires_grad_(False)
        self.momentum, self.progress = MOMENTUM[0], 0.0
        self.register_buffer("center", torch.zeros(prototypes))
        for name, value in {
            "scores": torch.zeros(prototypes),
            "scored": torch.zeros(()),
            "answers": torch.zeros(prototypes),
            "temperature": torch.tensor(TEACHER_TEMPERATURE[0]),
            "moving": torch.tensor(1.0),
        }.items():
            self.register_buffer(name, value, persistent=False)

    @property
    def kept(self) -> VisionTransformer:
        """The teacher: it is steadier than the student, and better."""
        return self.teacher["model"]  # type: ignore[return-value]

    def train(self, mode: bool = True) -> "Dino":
        """Let the student learn; the teacher never drops anything."""
        super().train(mode)
        self.teacher.eval()
        return self

    def before_step(self, progress: float) -> None:
        """Set what changes along the run: the teacher's temperature and pace, and whether prototypes move."""
        low, high = TEACHER_TEMPERATURE
        self.temperature.fill_(low + (high - low) * min(1.0, progress / WARM))
        slow, still = MOMENTUM
        self.momentum = still - (still - slow) * (math.cos(math.pi * progress) + 1.0) / 2.0
        self.moving.fill_(float(progress >= HELD))
        self.progress = progress
        self.scores.zero_()
        self.scored.zero_()

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        targets, answers = self.targets(self.teach(batch)), self.answer(batch)  # (V, B, K), (V + S, B, K)
        if not self.training:
            self.answers += targets.sum((0, 1))
        losses = pair_losses(targets, answers)  # (B,)
        entropy = -(targets * targets.clamp(min=1e-12).log()).sum(-1).mean(0)  # (B,)
        images = max(1, losses.shape[0])
        return losses.sum() / images, {"teacher_entropy": entropy.sum() / images}

    @torch.no_grad()
    def teach(self, batch: Batch) -> Tensor:  # (V, B, K)
        """Return the teacher's scores of the large views, and in training note them for the centre."""
        scores = self.teacher["head"](self.kept.encode(batch.images))
        if self.training and batch.counts:
            self.scores += scores.sum(0)
            self.scored += len(scores)
        return scores.unflatten(0, (batch.views, len(batch)))

    def answer(self, batch: Batch) -> Tensor:  # (V + S, B, K)
        """Return the student's scores of all views, the large ones first."""
        model, views = self.vit, batch.views
        vectors = [model.encode(batch.images)]
        if batch.small is not None and self.small is not None:
            height, width = (
                side // step for side, step in zip(self.small.size, model.config.step, strict=True)
            )
            tokens = model.place(model.patch_embed(batch.small), (height, width))
            vectors.append(model.pool(model.run_blocks(tokens, model.geometry(grid=(height, width)))))
            views += self.small.count
        return self.head(torch.cat(vectors), self.moving).unflatten(0, (views, len(batch)))

    def targets(self, scores: Tensor) -> Tensor:
        """Return the teacher's probabilities: centred, so that no prototype takes all images, and sharpened,
        so that not all prototypes are equally likely."""
        return ((scores.float() - self.center) / self.temperature).softmax(-1)

    @torch.no_grad()
    def after_update(self, step: int, refused: Tensor | None) -> None:
        """Let the teacher follow the student, and the centre the teacher's scores."""
        keep = 1.0 if refused is None else 1.0 - refused.float()
        towards = (1.0 - self.momentum) * keep
        student = dict(self.vit.named_parameters(prefix="model"))
        student |= dict(self.head.named_parameters(prefix="head"))
        pairs = [(slow, student[name]) for name, slow in self.teacher.named_parameters()]
        optim.follow([slow for slow, _ in pairs], [fast.detach() for _, fast in pairs], towards)
        total, count = parallel.added_up(self.scores), parallel.added_up(self.scored)
        self.center += (total / count.clamp(min=1.0) - self.center) * ((1.0 - CENTER_MOMENTUM) * keep)

    def evaluate(self, loader: Loader, inference: Inference) -> Evaluation:
        """Also measure over how many prototypes the teacher's answers to all images are spread."""
        self.answers.zero_()
        found = super().evaluate(loader, inference)
        used = spread(parallel.added_up(self.answers))
        return MeanLoss({**found.figures, "prototypes_used": used.item()})

    def score(self, figures: Mapping[str, float]) -> list[float]:
        """Return the share of images whose neighbours are of their class; without labels the effective rank:
        losses of teachers that differ can't be compared. Of too few images for a rank, the loss is all there
        is."""
        return [
            next((figures[name] for name in ("knn", "effective_rank") if name in figures), -figures["loss"])
        ]

    def trouble(self, figures: Mapping[str, float]) -> str | None:
        """Return that features have collapsed, or that the teacher can't tell images apart, if so."""
        uniform = math.log(len(self.center))
        few_images = figures.get("count", health.FEWEST) < health.FEWEST
        if figures["prototypes_used"] < FEW and not few_images:
            return (
                f"the teacher gives all images the same answer, and there is no more to learn; {self.remedy}"
            )
        if self.progress > YOUNG and figures["teacher_entropy"] > ALIKE * uniform:
            return (
                f"the teacher answers every image with all prototypes alike (entropy "
                f"{figures['teacher_entropy']:.3f} of {uniform:.3f}); {self.remedy}"
            )
        return super().trouble(figures)


def spread(answers: Tensor) -> Tensor:  # (K,) → ()
    """Return over how many prototypes the answers are spread: the exponential of their entropy."""
    shares = answers / answers.sum()
    return torch.exp(-torch.special.xlogy(shares, shares).sum())


def pair_losses(targets: Tensor, scores: Tensor) -> Tensor:  # (G, B, K), (V, B, K) → (B,)
    """Return each image's cross entropy, over all pairs of a teacher's view and another view of the student.

    A single view, as in evaluation, is paired with itself."""
    logs = (scores.float() / STUDENT_TEMPERATURE).log_softmax(-1)
    losses = -torch.einsum("gbk,vbk->gvb", targets, logs)
    if losses.shape[1] == 1:
        return losses[0, 0]
    own = torch.eye(*losses.shape[:2], dtype=torch.bool, device=losses.device)[:, :, None]
    return losses.masked_fill(own, 0.0).sum((0, 1)) / (losses.shape[0] * (losses.shape[1] - 1))
