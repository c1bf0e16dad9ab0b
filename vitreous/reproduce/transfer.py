"""Table 2 of the paper, in small: which family transfers best?

Pre-trained on JFT-300M, ViT-L/16 gives 87.76 % on ImageNet, 99.42 % on CIFAR-10 and 93.90 % on CIFAR-100,
BiT-L (ResNet152x4) 87.54, 99.37 and 93.51 %, for 0.68k against 9.9k core-days: "Vision Transformer models
pre-trained on the JFT-300M dataset outperform ResNet-based baselines on all datasets, while taking
substantially less computational resources to pre-train." Here a model learns one half of a set's classes, and
is fine-tuned on few images of the other half; the three families cost about the same.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from vitreous import plot
from vitreous.reproduce.experiment import Experiment, Finding, Point, Row, Scale
from vitreous.reproduce.families import MODELS, ON_CIFAR, SCALED, point, small
from vitreous.reproduce.judging import by, exceeds, where
from vitreous.reproduce.settings import ADAM, FINE, GPU, PAPER, SMALL

BEFORE, AFTER = "pre-trained", "transferred"


def points(scale: Scale) -> list[Point]:
    """Return each family pre-trained on half of the classes, then fine-tuned on the other half."""
    found = []
    for family, shape in scale.values["shapes"].items():
        name = family.lower()
        columns = {"family": family, "stage": BEFORE}
        found.append(point(family, shape, scale, name=f"pre-{name}", columns=columns, half="first"))
        found.append(
            Point(
                name=name,
                columns={**columns, "stage": AFTER},
                verb="finetune",
                options=scale.values["fine"],
                source=f"pre-{name}",
                images=scale.values["images"],
                half="second",
            )
        )
    return found


def judge(rows: Sequence[Row]) -> list[Finding]:
    """Compare ViT with BiT after the transfer."""
    after = where(rows, stage=AFTER)
    return [exceeds(after, {"family": "ViT"}, {"family": "BiT"}, "ViT against BiT, transferred")]


def draw(rows: Sequence[Row]) -> dict[str, Figure]:
    """Draw a line of dots for each family after the transfer."""
    found = by(where(rows, stage=AFTER), "family")
    groups = {family: [row["accuracy"] for row in each] for family, each in found.items()}
    return {"plot": plot.dots(groups, "test accuracy on the other classes", title="Transfer (table 2)")}


EXPERIMENT = Experiment(
    name="transfer",
    source="Table 2",
    claim="A pre-trained ViT transfers better than a BiT (CIFAR-100: 93.90 against 93.51 %) for less compute",
    rule="after the transfer ViT beats BiT, at about the same compute, by more than two standard errors",
    scales={
        "quick": Scale(
            data="digits",
            cost="about 1 min on 2 cores",
            image_size=16,
            patch_size=4,
            options={**SMALL, "epochs": 40},
            values={
                **SCALED,
                "shapes": small(64),
                "images": 100,
                "fine": {**FINE, "batch_size": 16, "epochs": 40},
            },
        ),
        "gpu": Scale(
            data="cifar100",
            cost="not yet measured",
            image_size=32,
            patch_size=4,
            options={**GPU, "epochs": 100},
            values={
                **SCALED,
                "shapes": ON_CIFAR,
                "images": 5_000,
                "fine": {**FINE, "batch_size": 128, "epochs": 50, "augment": "medium"},
            },
        ),
        "paper": Scale(
            needs="JFT-300M or ImageNet-21k (table 2 itself: `vitreous finetune` on each of its sets)",
            cost="a cluster",
            image_size=224,
            patch_size=16,
            options={**PAPER, **ADAM, "epochs": 7, "lr": 4e-4},
            values={
                "models": {**MODELS, "ViT": "ViT-L/16", "BiT": "BiT-R152x4", "hybrid": "R50+ViT-L/32"},
                "shapes": {"ViT": {}, "BiT": {}, "hybrid": {}},
                "images": None,
                "fine": {"recipe": "paper", "batch_size": 512, "image_size": (384,)},
            },
        ),
    },
    points=points,
    judge=judge,
    draw=draw,
)
