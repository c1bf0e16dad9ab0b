"""Figures 3 and 4 of the paper: how many images does a ViT need to catch up with a CNN?

Pre-trained on ImageNet, BiT is ahead of ViT-L; on ImageNet-21k they are about equal; on JFT-300M ViT is
ahead. On random parts of JFT-300M "Vision Transformers overfit more than ResNets with comparable
computational cost on smaller datasets. For example, ViT-B/32 […] performs much worse on the 9M subset, but
better on 90M+ subsets." Here each model is judged on the test part of the set that it learns from.
"""

from collections.abc import Sequence
from math import exp, log

from matplotlib.figure import Figure

from vitreous import plot
from vitreous.reproduce.experiment import Experiment, Finding, Point, Row, Scale
from vitreous.reproduce.families import MODELS, ON_CIFAR, SCALED, point, small
from vitreous.reproduce.judging import by, gap, mean, where
from vitreous.reproduce.settings import ADAM, GPU, PAPER, SMALL


def points(scale: Scale) -> list[Point]:
    """Return each family on each part of the set; smaller parts are seen more often."""
    return [
        point(
            family,
            shape,
            scale,
            name=f"{family.lower()}-{images}",
            columns={"family": family, "images": images},
            options={"epochs": epochs},
            images=images,
        )
        for family, shape in scale.values["shapes"].items()
        for images, epochs in scale.values["parts"].items()
    ]


def judge(rows: Sequence[Row]) -> list[Finding]:
    """Look at the smallest part, at the largest, and at what lies between."""
    few, many = (choose(row["images"] for row in rows) for choose in (min, max))
    vit, bit = (where(rows, family=family) for family in ("ViT", "BiT"))
    first = gap(where(bit, images=few), where(vit, images=few))
    last = gap(where(vit, images=many), where(bit, images=many))
    crossing = cross(vit, bit)
    where_ = "the curves don't cross" if crossing is None else f"they cross at about {crossing:,.0f} images"
    return [
        Finding(f"BiT against ViT with {few:,} images {first}", first.held),
        Finding(f"ViT against BiT with {many:,} {last}; {where_}", last.held),
    ]


def cross(vit: Sequence[Row], bit: Sequence[Row]) -> float | None:
    """Return how many images the ViT needs to be as good, interpolated over log(images), if at all."""
    sizes = sorted({row["images"] for row in vit})
    ahead = [mean(where(vit, images=size)) - mean(where(bit, images=size)) for size in sizes]
    for i in range(len(sizes) - 1):
        if ahead[i] < 0 <= ahead[i + 1]:
            share = -ahead[i] / (ahead[i + 1] - ahead[i])
            return exp(log(sizes[i]) + share * (log(sizes[i + 1]) - log(sizes[i])))
    return None


def draw(rows: Sequence[Row]) -> dict[str, Figure]:
    """Draw accuracy over the number of images for each family."""
    series = {
        family: [(row["images"], row["accuracy"]) for row in found]
        for family, found in by(rows, "family").items()
    }
    ticks = sorted({row["images"] for row in rows})
    title = "How many images it takes (figure 4)"
    return {"plot": plot.curves(series, "training images", "test accuracy", title, ticks)}


EXPERIMENT = Experiment(
    name="data-size",
    source="Figures 3 and 4",
    claim="With few images a CNN (BiT) is ahead of a ViT of the same cost, with many the ViT is ahead",
    rule="BiT beats ViT on the smallest part by more than two standard errors, and ViT beats BiT on the "
    "largest by as much",
    scales={
        "quick": Scale(
            data="digits",
            cost="about 2 min on 2 cores",
            image_size=16,
            patch_size=4,
            options=SMALL,
            values={**SCALED, "shapes": small(64), "parts": {100: 80, 360: 40, 1258: 20}},
        ),
        "gpu": Scale(
            data="cifar10",
            cost="not yet measured",
            image_size=32,
            patch_size=4,
            options=GPU,
            values={**SCALED, "shapes": ON_CIFAR, "parts": {2_000: 500, 10_000: 150, 45_000: 60}},
        ),
        "paper": Scale(
            needs="JFT-300M, or another set of that size",
            cost="a cluster",
            image_size=224,
            patch_size=32,
            options={**PAPER, **ADAM, "lr": 8e-4},
            values={
                "models": {**MODELS, "ViT": "ViT-B/32", "hybrid": "R50+ViT-B/16"},
                "shapes": {"ViT": {}, "BiT": {}, "hybrid": {}},
                "parts": dict.fromkeys((9_000_000, 30_000_000, 90_000_000, 300_000_000), 7),
            },
        ),
    },
    points=points,
    judge=judge,
    draw=draw,
)
