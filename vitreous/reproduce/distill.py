"""DeiT's claim (arXiv 2012.12877, table 3): a CNN as a teacher makes a small ViT better.

On ImageNet, for 300 epochs: DeiT-Ti 72.2 % alone and 74.5 % with a distillation token that learns the hard
labels of a RegNetY-16GF; DeiT-S 79.8 and 81.2 %. "Hard distillation significantly outperforms soft
distillation for transformers." Not from the ViT paper, but an answer to the ViT's need for data.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from vitreous import plot
from vitreous.reproduce.experiment import Experiment, Finding, Point, Row, Scale
from vitreous.reproduce.families import MODELS, ON_CIFAR, SCALED, point, small
from vitreous.reproduce.judging import accuracies, exceeds, gap, where
from vitreous.reproduce.settings import GPU, SMALL

ALONE, TEACHER, TOKEN, SOFT = "student alone", "teacher (BiT)", "hard labels, token", "soft labels"


def points(scale: Scale) -> list[Point]:
    """Return the teacher, the student alone, and the student taught in two ways, all on one set.

    Images must be varied: a teacher that knows every image by heart would repeat the labels.
    """
    shapes, few = scale.values["shapes"], scale.values["images"]

    def student(name: str, learner: str, **about: object) -> Point:
        return point(
            "ViT", shapes["ViT"], scale, name=name, columns={"learner": learner}, images=few, **about
        )

    lessons = {"verb": "distill", "source": "teacher"}
    about = {"columns": {"learner": TEACHER}, "options": scale.values["teacher"], "images": few}
    return [
        point("BiT", shapes["BiT"], scale, name="teacher", **about),
        student("alone", ALONE),
        student("token", TOKEN, options={"match": "token"}, **lessons),
        student("soft", SOFT, options={"match": "logits", "label_smoothing": None}, **lessons),
    ]


def judge(rows: Sequence[Row]) -> list[Finding]:
    """Compare the student with a distillation token to the one without a teacher."""
    soft = gap(where(rows, learner=TOKEN), where(rows, learner=SOFT))
    return [
        exceeds(rows, {"learner": TOKEN}, {"learner": ALONE}, "hard labels by a token against none"),
        Finding(f"for comparison, against soft labels {soft}", True),
    ]


def draw(rows: Sequence[Row]) -> dict[str, Figure]:
    """Draw a line of dots for each learner."""
    return {
        "plot": plot.dots(accuracies(rows, "learner"), "test accuracy", title="What a teacher gives (DeiT)")
    }


EXPERIMENT = Experiment(
    name="distill",
    source="DeiT, table 3",
    claim="A small ViT that learns a CNN's hard labels through a distillation token is better than alone "
    "(DeiT-Ti: 72.2 to 74.5 %)",
    rule="with the token, the student beats itself without a teacher by more than two standard errors",
    scales={
        "quick": Scale(
            data="digits",
            cost="about 1 min on 2 cores",
            image_size=16,
            patch_size=4,
            options={**SMALL, "augment": "mix", "epochs": 60},
            values={**SCALED, "shapes": small(64), "images": 360, "teacher": {"epochs": 40}},
        ),
        "gpu": Scale(
            data="cifar10",
            cost="not yet measured",
            image_size=32,
            patch_size=4,
            options={**GPU, "epochs": 100},
            values={**SCALED, "shapes": ON_CIFAR, "images": None, "teacher": {}},
        ),
        "paper": Scale(
            needs="ImageNet as a folder",
            cost="8 GPUs for days",
            image_size=224,
            patch_size=16,
            options={"batch_size": 1024, "epochs": 300, "lr": 1e-3, "augment": "strong", "drop_path": 0.1},
            values={
                "models": {**MODELS, "ViT": "DeiT-Ti/16", "BiT": "BiT-R101x3"},
                "shapes": {"ViT": {}, "BiT": {}},
                "images": None,
                "teacher": {"epochs": 90, "drop_path": None},
            },
        ),
    },
    points=points,
    judge=judge,
    draw=draw,
)
