"""Section 4.6 of the paper: a first look at self-supervision.

Masked patch prediction, as BERT does: "ViT-B/16 achieves 79.9 % accuracy on ImageNet, a significant
improvement of 2 % to training from scratch, but still 4 % behind supervised pre-training." Later work is
tried beside it: masked autoencoders (arXiv 2111.06377) and DINO (arXiv 2104.14294).
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from vitreous import plot
from vitreous.reproduce.experiment import Experiment, Finding, Point, Row, Scale
from vitreous.reproduce.judging import accuracies, exceeds, gap, where
from vitreous.reproduce.settings import ADAM, FINE, GPU, PAPER, SMALL, SMALL_SHAPE, UNLABELLED

OBJECTIVES = ("masked", "mae", "dino")
SUPERVISED = "supervised, all labels"


def points(scale: Scale) -> list[Point]:
    """Return three pre-trained models, each fine-tuned on few labels; one from scratch; one on all labels."""
    few, shape = scale.values["labels"], scale.shape
    found = []
    for objective in OBJECTIVES:
        options = {**scale.values["unlabelled"], **scale.size, "objective": objective}
        options |= {"local_crops": 2, "epochs": scale.values["dino_epochs"]} if objective == "dino" else {}
        columns = {"start": objective, "labels": 0}
        found.append(
            Point(name=f"pre-{objective}", columns=columns, verb="pretrain", options=options, shape=shape)
        )
    options = {**scale.options, **scale.size}
    found.append(
        Point(
            name="scratch",
            columns={"start": "scratch", "labels": few},
            options={**options, "batch_size": scale.values["fine"]["batch_size"], **scale.values["scratch"]},
            shape=shape,
            images=few,
        )
    )
    for objective in OBJECTIVES:
        found.append(
            Point(
                name=objective,
                columns={"start": objective, "labels": few},
                verb="finetune",
                options=scale.values["fine"],
                source=f"pre-{objective}",
                images=few,
            )
        )
    columns = {"start": SUPERVISED, "labels": "all"}
    return [*found, Point(name="supervised", columns=columns, options=options, shape=shape)]


def judge(rows: Sequence[Row]) -> list[Finding]:
    """Compare masked prediction with scratch and all labels; the later objectives are only reported."""
    tuned = [row for row in rows if row["accuracy"] is not None]
    later = ", ".join(
        f"{each} {gap(where(tuned, start=each), where(tuned, start='scratch'))}" for each in OBJECTIVES[1:]
    )
    return [
        exceeds(tuned, {"start": "masked"}, {"start": "scratch"}, "masked prediction against scratch"),
        exceeds(tuned, {"start": SUPERVISED}, {"start": "masked"}, "all labels against it"),
        Finding(f"for comparison, against scratch: {later}", True),
    ]


def draw(rows: Sequence[Row]) -> dict[str, Figure]:
    """Draw a line of dots for each start."""
    tuned = [row for row in rows if row["accuracy"] is not None]
    return {
        "plot": plot.dots(
            accuracies(tuned, "start"), "test accuracy", title="Few labels, by what came before"
        )
    }


EXPERIMENT = Experiment(
    name="self-supervised",
    source="Section 4.6",
    claim="Masked patch prediction improves on training from scratch (+2 points on ImageNet), and stays "
    "behind supervised pre-training (-4)",
    rule="fine-tuned on few labels, masked prediction beats scratch by more than two standard errors, and "
    "learning from all labels beats it by as much",
    scales={
        "quick": Scale(
            data="digits",
            cost="about 2 min on 2 cores",
            image_size=8,
            patch_size=2,
            options={**SMALL, "epochs": 20},
            shape=SMALL_SHAPE,
            values={
                "labels": 125,
                "unlabelled": {**UNLABELLED, "epochs": 60},
                "dino_epochs": 12,
                "scratch": {"epochs": 40},
                "fine": {**FINE, "batch_size": 20, "epochs": 40},
            },
        ),
        "gpu": Scale(
            data="cifar10",
            cost="not yet measured",
            image_size=32,
            patch_size=4,
            options={**GPU, "epochs": 100},
            values={
                "labels": 5000,
                "unlabelled": {"model": "ViT-Ti/16", "batch_size": 512, "epochs": 200},
                "dino_epochs": 100,
                "scratch": {"epochs": 200},
                "fine": {**FINE, "batch_size": 128, "epochs": 100, "augment": "medium"},
            },
        ),
        "paper": Scale(
            needs="JFT-300M without labels, and ImageNet to fine-tune on",
            cost="a cluster",
            image_size=224,
            patch_size=16,
            options={**PAPER, **ADAM, "model": "ViT-B/16", "epochs": 7, "lr": 8e-4},
            values={
                "labels": None,
                "unlabelled": {"model": "ViT-B/16", "batch_size": 4096, "epochs": 14, "lr": 2e-4},
                "dino_epochs": 14,
                "scratch": {},
                "fine": {"recipe": "paper", "batch_size": 512, "image_size": (384,)},
            },
        ),
    },
    points=points,
    judge=judge,
    draw=draw,
)
