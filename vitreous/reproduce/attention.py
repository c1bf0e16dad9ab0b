"""Figures 6 and 7 of the paper: what a trained ViT looks like inside.

Figure 7, right: "some heads attend to most of the image already in the lowest layers […]. Other attention
heads have consistently small attention distances in the low layers. […] the attention distance increases with
network depth." Centre: "closer patches tend to have more similar position embeddings". Left: the first
components of the patch filters "resemble plausible basis functions". Figure 6: attention finds what matters.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from matplotlib.figure import Figure

from vitreous import plot
from vitreous.data import open_data
from vitreous.inspection import attention_distance, filters, rollout
from vitreous.inspection.distance import uniform_distance
from vitreous.models import zoo
from vitreous.models.architecture import ViTConfig
from vitreous.plot.inside import Pictured
from vitreous.predict import load
from vitreous.reproduce.experiment import Experiment, Finding, Point, Row, Scale
from vitreous.reproduce.maps import DIGITS, similarity
from vitreous.reproduce.points import source_of
from vitreous.reproduce.settings import ADAM, GPU, PAPER, SMALL, SMALL_SHAPE

IMAGES, SHOWN = 64, 6
LOCAL = 0.2
"""The least correlation of similarity with nearness that counts as a structure."""
MARGIN = 0.02
"""The least difference between the two halves of the layers that counts, as a share of the distance of
uniform attention."""
SPREAD = 0.25
"""The least range of the first layer's heads, as a share of the distance of uniform attention."""


def points(scale: Scale) -> list[Point]:
    """Return one model, deeper than those of other experiments, so that there are layers to look at."""
    columns, options = {"patch": scale.patch_size}, {**scale.options, **scale.size}
    return [Point(name="model", columns=columns, options=options, shape=scale.shape, measure=measure)]


def measure(run: Path) -> Row:
    """Return distances (L, H) of the model and of an untrained one, its positions, filters and rollouts."""
    classifier = load(run / "best.safetensors")
    model, config = classifier.model, classifier.model.config
    assert isinstance(config, ViTConfig)
    data, root = source_of(run)
    split = open_data(data, data_root=root).splits["test"]
    pictures = [split.read(i, config.in_channels) for i in range(min(IMAGES, len(split)))]
    images = torch.stack([classifier.preprocess(picture) for picture in pictures])
    torch.manual_seed(0)
    untrained = zoo.build(config).eval()
    maps = rollout(model, images[:SHOWN]).cpu().numpy()
    return {
        **similarity(run),
        "distance": _rounded(attention_distance(model, images)),
        "untrained": _rounded(attention_distance(untrained, images)),
        "uniform": round(uniform_distance(config), DIGITS),
        "filters": np.asarray(filters(model).tiles).round(DIGITS).tolist(),
        "pictures": [
            np.asarray(picture).reshape(*picture.size[::-1], -1).tolist() for picture in pictures[:SHOWN]
        ],
        "rollouts": maps.round(DIGITS + 1).tolist(),
    }


def _rounded(values: torch.Tensor) -> list[list[float]]:
    return np.round(values.numpy().astype(float), DIGITS).tolist()


def judge(rows: Sequence[Row]) -> list[Finding]:
    """Look at depth, at the heads of the first layer, and at the positions, in the mean of the seeds."""
    tables = [np.array(row["distance"]) for row in rows]
    uniform, half = rows[0]["uniform"], len(tables[0]) // 2
    first, last = (fmean(float(part.mean()) for part in parts) for parts in _halves(tables, half))
    reach = fmean(float(np.ptp(table[0])) for table in tables) / uniform
    plain = fmean(float(np.ptp(np.array(row["untrained"])[0])) for row in rows) / uniform
    local = fmean(row["locality"] for row in rows)
    return [
        Finding(
            f"attention reaches {first:.2f} pixels in the first half of the layers, {last:.2f} in the last "
            f"({uniform:.2f} where it looks everywhere alike)",
            None if abs(last - first) < MARGIN * uniform else last > first,
        ),
        Finding(
            f"the first layer's heads range over {reach:.0%} of that (untrained {plain:.0%})",
            reach >= SPREAD and reach > plain,
        ),
        Finding(f"similarity and nearness of positions correlate by {local:.2f}", local >= LOCAL),
    ]


def _halves(tables: Sequence[np.ndarray], half: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [table[:half] for table in tables], [table[-half:] for table in tables]


def draw(rows: Sequence[Row]) -> dict[str, Figure]:
    """Draw figure 7 right, centre and left, and figure 6, of the first seed."""
    row = rows[0]
    distances = {"trained": row["distance"], "untrained": row["untrained"]}
    pictured = [
        Pictured(f"test image {number + 1}", np.array(picture, np.uint8), {"rollout": np.array(found)})
        for number, (picture, found) in enumerate(zip(row["pictures"], row["rollouts"], strict=True))
    ]
    return {
        "plot": plot.slopes(
            distances, "attention distance in pixels", "Attention distance (figure 7, right)"
        ),
        "positions": plot.positions(np.array(row["map"]), "learned positions (figure 7, centre)"),
        "filters": plot.filters(np.array(row["filters"]), "patch embedding (figure 7, left)"),
        "rollout": plot.gallery(pictured),
    }


EXPERIMENT = Experiment(
    name="attention",
    source="Figures 6 and 7",
    claim="Attention reaches further with depth; heads of the lowest layer are local or global; near "
    "positions are alike",
    rule="the last half of the layers looks further than the first, by 2 % of the uniform distance or more; "
    "the first layer's heads range over a quarter of that distance or more, and more than untrained ones; "
    "similarity correlates with nearness by 0.2 or more",
    scales={
        "quick": Scale(
            data="digits",
            cost="about 1 min on 2 cores",
            image_size=8,
            patch_size=2,
            options={**SMALL, "epochs": 40},
            shape={**SMALL_SHAPE, "depth": 6},
        ),
        "gpu": Scale(
            data="cifar10",
            cost="not yet measured",
            image_size=32,
            patch_size=4,
            options={**GPU, "epochs": 60},
        ),
        "paper": Scale(
            needs="ImageNet-21k as a folder; of published weights, `vitreous inspect` draws the same",
            cost="a cluster",
            image_size=224,
            patch_size=16,
            options={**PAPER, **ADAM, "model": "ViT-L/16", "epochs": 30, "lr": 1e-3, "weight_decay": 0.03},
        ),
    },
    points=points,
    judge=judge,
    draw=draw,
    shown=("locality",),
)
