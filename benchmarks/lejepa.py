"""LeJEPA (arXiv 2511.08544) beside DINO: the same model, images, crops and time, then probed.

    python benchmarks/lejepa.py cifar100.npz [--time-budget 3m] [--local-crops 8] [--lr 2e-3]

There is no teacher: an image's views are to have the same projection, and all projections together the
distribution of a standard normal, which keeps them from being the same for all images. The settings are those
of the authors' small example: a projection of 16, the distribution's share 0.02 of the loss.
It is a task outside of the package, until it measures better than what is in it.

Letters: B batch, V large views, S small views, D width, K projection, M directions.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitreous
from vitreous import console, files, training
from vitreous.config import PretrainConfig
from vitreous.data import Batch, Dataset, SmallViews
from vitreous.models.vit import VisionTransformer
from vitreous.models.weights import Model
from vitreous.objectives import dino
from vitreous.objectives.unlabelled import Unlabelled

SHARE, PROJECTION, WIDEST = 0.02, 16, 2048
DIRECTIONS, POINTS, UNTIL = 256, 17, 3.0
"""Where the distribution is looked at: along so many directions, at so many points of its characteristic
function, up to this one."""


def off_normal(z: Tensor) -> Tensor:  # (B, K) → ()
    """Return how far projections are from a standard normal: the mean, over random directions, of Epps and
    Pulley's statistic, which compares characteristic functions."""
    z = z.float()
    directions = torch.randn(z.shape[1], DIRECTIONS, device=z.device)
    along = z @ (directions / directions.norm(dim=0))  # (B, M)
    t = torch.linspace(0.0, UNTIL, POINTS, device=z.device)
    normal = torch.exp(-t.square() / 2.0)
    angles = along[:, :, None] * t  # (B, M, points)
    apart = (angles.cos().mean(0) - normal).square() + angles.sin().mean(0).square()
    return 2.0 * len(z) * torch.trapezoid(apart * normal, t).mean()  # symmetric: twice the half that is > 0


class LeJepa(Unlabelled):
    """Project all views of an image to the mean of its large ones, and all images to a standard normal."""

    views = 2
    whole_passes = False

    def __init__(
        self, model: VisionTransformer, plan: Any, *, local: SmallViews, dataset: Dataset | None = None
    ) -> None:
        super().__init__(model, plan.preprocessing, dataset)
        self.small = local if local.count else None
        wide = min(WIDEST, 8 * model.config.pooled_width)
        layers: list[nn.Module] = []
        for before in (model.config.pooled_width, wide):
            # Statistics of the batch alone: an evaluation has none of a past that is thrown away.
            layers += [nn.Linear(before, wide), nn.BatchNorm1d(wide, track_running_stats=False), nn.ReLU()]
        self.projector = nn.Sequential(*layers, nn.Linear(wide, PROJECTION))

    def head(self, x: Tensor, _moving: Any = None) -> Tensor:
        """Return the projections of pooled vectors."""
        return self.projector(x.float())

    moving = 1.0
    answer = dino.Dino.answer  # all views of a batch through the model and its head, (V + S, B, K)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        z = self.answer(batch)  # type: ignore[misc]
        alike = (z - z[: batch.views].mean(0)).square().mean()
        spread = torch.stack([off_normal(view) for view in z]).mean()
        metrics = {"invariance": alike.detach(), "off_normal": spread.detach()}
        return SHARE * spread + (1.0 - SHARE) * alike, metrics


def build(model: Model, plan: Any, dataset: Dataset) -> LeJepa:
    """Return the task, with the crops of `--objective dino`."""
    given = plan.settings
    local = SmallViews(given["local_crops"], tuple(given["local_size"]), tuple(given["local_scale"]))
    return LeJepa(dino.able(model), plan, local=local, dataset=dataset)


def measure(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """Pre-train in one way, or read the run that has ended, and probe what came of it."""
    common: dict[str, Any] = {"objective": "dino", "local_crops": given.local_crops, "seed": given.seed}
    common |= {"time_budget": given.time_budget, "device": given.device, "out": f"{given.out}/{name}"}
    if name == "lejepa":
        config = PretrainConfig(**common, lr=given.lr, weight_decay=0.05)
        result = training.pretrain(given.data, config, make_objective=build)
    else:
        result = training.pretrain(given.data, PretrainConfig(**common))
    row = {"task": name, "steps": result.figures["steps"], "seconds": result.figures["seconds"]}
    for method in ("knn", "linear"):
        options: dict[str, Any] = {"method": method, "device": given.device, "precision": "auto"}
        found = vitreous.probe(str(result.folder), given.data, **options).to_dict()
        row[method] = f"{found[method]['accuracy']:.2%}"
    return row


def main() -> None:
    """Pre-train both, one after the other, and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--time-budget", default="3m")
    parser.add_argument("--local-crops", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", default="runs/lejepa")
    given = parser.parse_args()
    rows = []
    for name in ("dino", "lejepa"):
        rows.append(measure(given, name))
        files.write_json(Path(given.out) / "rows.json", rows)
        console.table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])


if __name__ == "__main__":
    main()
