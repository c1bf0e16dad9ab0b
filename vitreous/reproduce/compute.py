"""Figure 5 of the paper: accuracy against the compute of pre-training, for the three families.

"Vision Transformers dominate ResNets on the performance/compute trade-off. ViT uses approximately 2 - 4x less
compute to attain the same performance (average over 5 datasets). Second, hybrids slightly outperform ViT at
small computational budgets, but the difference vanishes for larger models."
"""

from collections.abc import Sequence
from math import exp, log

from matplotlib.figure import Figure

from vitreous import plot
from vitreous.reproduce.experiment import Experiment, Finding, Point, Row, Scale
from vitreous.reproduce.families import MODELS, ON_CIFAR, SCALED, point, small
from vitreous.reproduce.judging import by, mean, where
from vitreous.reproduce.settings import ADAM, GPU, PAPER, SMALL

LEAST = 2.0
"""How many times the compute of a ViT a BiT must need for the claim to hold."""


def points(scale: Scale) -> list[Point]:
    """Return each family in several sizes, all trained for the same number of epochs."""
    return [
        point(
            family,
            shape,
            scale,
            name=f"{family.lower()}-{size}",
            columns={"family": family, "size": size},
        )
        for size, shapes in scale.values["sizes"].items()
        for family, shape in shapes.items()
    ]


def judge(rows: Sequence[Row]) -> list[Finding]:
    """Compare what ViT and BiT take for the accuracy that both reach; hybrids are only reported."""
    lines = {family: line(found) for family, found in by(rows, "family").items()}
    goal = min(max(accuracy for _, accuracy in lines[family]) for family in ("ViT", "BiT"))
    vit, bit, hybrid = (reach(lines[family], goal) for family in ("ViT", "BiT", "hybrid"))
    assert vit is not None and bit is not None  # the goal is one that both reach
    ratio = bit / vit
    bound = "at most " if lines["BiT"][0][1] > goal else "at least " if lines["ViT"][0][1] > goal else ""
    told = "not reached by the hybrid" if hybrid is None else f"the hybrid {hybrid / vit:.1f} times"
    return [
        Finding(
            f"for {goal:.1%} BiT takes {bound}{ratio:.1f} times the compute of ViT ({told})",
            True if ratio >= LEAST else False if ratio <= 1.0 else None,
        )
    ]


def line(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return compute and accuracy of a family's sizes, in the mean of the seeds, in order of compute."""
    costs = sorted({row["training_flops"] for row in rows})
    return [(cost, mean(where(rows, training_flops=cost))) for cost in costs]


def reach(line: Sequence[tuple[float, float]], goal: float) -> float | None:
    """Return the compute at which a family reaches an accuracy, interpolated over log(compute)."""
    for i, (cost, accuracy) in enumerate(line):
        if accuracy >= goal:
            if i == 0:
                return cost  # or less
            before, less = line[i - 1]
            share = (goal - less) / (accuracy - less)
            return exp(log(before) + share * (log(cost) - log(before)))
    return None


def draw(rows: Sequence[Row]) -> dict[str, Figure]:
    """Draw accuracy over training FLOPs for each family."""
    series = {
        family: [(row["training_flops"], row["accuracy"]) for row in found]
        for family, found in by(rows, "family").items()
    }
    title = "What an accuracy costs (figure 5)"
    return {"plot": plot.curves(series, "training FLOPs", "test accuracy", title)}


EXPERIMENT = Experiment(
    name="compute",
    source="Figure 5",
    claim="A ViT takes 2 to 4 times less compute than a BiT for the same accuracy",
    rule="for the best accuracy that both reach, between the sizes that were trained, BiT takes twice the "
    "compute of ViT or more; less than that and more than ViT is not decided",
    scales={
        "quick": Scale(
            data="digits",
            cost="about 3 min on 2 cores",
            image_size=16,
            patch_size=4,
            options={**SMALL, "epochs": 20},
            values={**SCALED, "sizes": {str(width): small(width) for width in (32, 64, 128)}},
        ),
        "gpu": Scale(
            data="cifar10",
            cost="not yet measured",
            image_size=32,
            patch_size=4,
            options={**GPU, "epochs": 60},
            values={
                **SCALED,
                "sizes": {
                    "S": {
                        family: {**shape, "width": 96} if "width" in shape else {**shape, "layers": (1, 1, 1)}
                        for family, shape in ON_CIFAR.items()
                    },
                    "M": ON_CIFAR,
                },
            },
        ),
        "paper": Scale(
            needs="JFT-300M, or another set of that size",
            cost="a cluster",
            image_size=224,
            patch_size=16,
            options={**PAPER, **ADAM, "epochs": 7, "lr": 8e-4},
            values={
                "models": {**MODELS, "ViT": "ViT-B/16", "hybrid": "R50+ViT-B/16"},
                "sizes": {
                    "B": {"ViT": {}, "BiT": {}, "hybrid": {}},
                    "L": {
                        "ViT": {"depth": 24, "width": 1024, "mlp_width": 4096, "heads": 16},
                        "BiT": {"layers": (3, 8, 36, 3), "width_factor": 2},
                        "hybrid": {"depth": 24, "width": 1024, "mlp_width": 4096, "heads": 16},
                    },
                },
            },
        ),
    },
    points=points,
    judge=judge,
    draw=draw,
    shown=("training_flops",),
)
