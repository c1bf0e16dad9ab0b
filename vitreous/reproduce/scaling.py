"""Figure 8 of the paper: what to make larger, depth, width, the MLP or the number of patches?

From 8 layers, width 1024, MLP 2048, patch 32, by 5-shot ImageNet: "scaling the depth results in the biggest
improvements which are clearly visible up until 64 layers […]. Interestingly, scaling the width of the network
seems to result in the smallest changes. Decreasing the patch size and thus increasing the effective sequence
length shows surprisingly robust improvements without introducing parameters."
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from vitreous import plot
from vitreous.reproduce.experiment import Experiment, Finding, Point, Row, Scale
from vitreous.reproduce.judging import Gap, by, gap, mean, where
from vitreous.reproduce.settings import ADAM, GPU, PAPER, SMALL, SMALL_SHAPE

AXES = {"depth": "depth", "width": "width", "MLP": "mlp_width"}
QUICK = {"depth": (1, 2, 4), "width": (16, 32, 64), "MLP": (32, 64, 128), "patch": (2, 1, 0.5)}
LARGER = {"depth": (3, 6, 12), "width": (96, 192, 384), "MLP": (384, 768, 1536), "patch": (2, 1, 0.5)}
FIGURE_8 = {
    "depth": (8, 16, 32, 64),
    "width": (512, 1024, 2048),
    "MLP": (1024, 2048, 4096),
    "patch": (1, 0.5, 0.25),
}
"""The sizes along each axis; of patches, how many times the base's."""
BASE: dict[str, Any] = {**SMALL_SHAPE, "width": 32, "depth": 2, "mlp_width": 64}


def points(scale: Scale) -> list[Point]:
    """Return, for each axis, the base and the models that differ from it along that axis alone."""
    found = []
    for axis, sizes in scale.values.items():
        for size in sizes:
            shape, patch = dict(scale.shape), scale.patch_size
            if axis == "patch":
                size = patch = round(size * patch)
            else:
                shape[AXES[axis]] = size
            is_base = shape == dict(scale.shape) and patch == scale.patch_size
            found.append(
                Point(
                    name="base" if is_base else f"{axis.lower()}-{size}",
                    columns={"axis": axis, "size": size},
                    options={**scale.options, "image_size": (scale.image_size,), "patch_size": (patch,)},
                    shape=shape,
                )
            )
    return found


def judge(rows: Sequence[Row]) -> list[Finding]:
    """Compare the largest with the smallest along each axis."""
    gains = {axis: gap(*_ends(found)) for axis, found in by(rows, "axis").items()}
    noise = max(gain.noise for gain in gains.values())
    depth, width, patch = gains["depth"], gains["width"], gains["patch"]
    leads = Gap(depth.difference - max(_others(gains, "depth")), noise)
    trails = Gap(min(_others(gains, "width")) - width.difference, noise)
    said = ", ".join(f"{axis} {gain}" for axis, gain in gains.items())
    return [
        Finding(f"from the smallest to the largest: {said}", depth.held),
        Finding(f"depth leads by {leads}", leads.held),
        Finding(f"width trails by {trails}", trails.held),
        Finding(f"smaller patches bring {patch}", patch.held),
    ]


def _others(gains: Mapping[str, Gap], axis: str) -> list[float]:
    return [gain.difference for name, gain in gains.items() if name != axis]


def _ends(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the runs that cost most and those that cost least."""
    costs = [row["multiply_adds"] for row in rows]
    return where(rows, multiply_adds=max(costs)), where(rows, multiply_adds=min(costs))


def draw(rows: Sequence[Row]) -> dict[str, Figure]:
    """Draw accuracy over compute, relative to the base, along each axis."""
    base = mean(where(rows, point="base"), "multiply_adds")
    series = {
        axis: [(row["multiply_adds"] / base, row["accuracy"]) for row in found]
        for axis, found in by(rows, "axis").items()
    }
    title = "What to make larger (figure 8)"
    ticks = (0.25, 0.5, 1, 2, 4)
    return {"plot": plot.curves(series, "compute relative to the base", "test accuracy", title, ticks)}


EXPERIMENT = Experiment(
    name="scaling",
    source="Figure 8",
    claim="Depth brings most, width least; smaller patches help without adding parameters",
    rule="from the smallest to the largest, depth gains more than two standard errors, and by as much more "
    "than any other axis; width gains by as much less than any other; smaller patches gain as much",
    scales={
        "quick": Scale(
            data="digits",
            cost="about 3 min on 2 cores",
            image_size=8,
            patch_size=2,
            options={**SMALL, "epochs": 40},
            shape=BASE,
            values=QUICK,
        ),
        "gpu": Scale(
            data="cifar10",
            cost="not yet measured",
            image_size=32,
            patch_size=4,
            options={**GPU, "epochs": 50},
            shape={"width": 192, "depth": 6, "heads": 3, "mlp_width": 768},
            values=LARGER,
        ),
        "paper": Scale(
            needs="JFT-300M, or another set of that size",
            cost="a cluster",
            image_size=224,
            patch_size=32,
            options={**PAPER, **ADAM, "model": "ViT-L/32", "epochs": 7, "lr": 4e-4},
            shape={"width": 1024, "depth": 8, "heads": 16, "mlp_width": 2048},
            values=FIGURE_8,
        ),
    },
    points=points,
    judge=judge,
    draw=draw,
)
