"""Section 3.2 of the paper: fine-tune at a higher resolution than that of pre-training.

"It is often beneficial to fine-tune at higher resolution than pre-training […]. When feeding images of higher
resolution, we keep the patch size the same, which results in a larger effective sequence length. […] We
therefore perform 2D interpolation of the pre-trained position embeddings, according to their location in the
original image." The paper has no separate measurement of this; its models are pre-trained at 224 and
fine-tuned at 384 to 518.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from vitreous import plot
from vitreous.reproduce.experiment import Experiment, Finding, Point, Row, Scale
from vitreous.reproduce.judging import by, exceeds
from vitreous.reproduce.settings import ADAM, FINE, GPU, PAPER, SMALL, SMALL_SHAPE

LOW, HIGH, SCRATCH = "fine-tuned, same resolution", "fine-tuned, twice the resolution", "scratch, twice"


def points(scale: Scale) -> list[Point]:
    """Return one pre-trained model at half the size, fine-tuned at that size and at the full one.

    Patches are half as large as the scale's: as many as usual in the small images, four times as many in
    the large ones. The last point learns at the full size from the start, for as long as both stages take.
    """
    low, high, patch = scale.image_size // 2, scale.image_size, max(1, scale.patch_size // 2)
    start = {**scale.options, "patch_size": (patch,)}
    fine = scale.values["fine"]
    both = start["epochs"] + fine["epochs"]

    def sized(options: dict[str, object], side: int) -> dict[str, object]:
        return {**options, "image_size": (side,)}

    about = {"stage": LOW, "image_size": low}
    return [
        Point(
            name="pretrained",
            columns={**about, "stage": "pre-trained"},
            options=sized(start, low),
            shape=scale.shape,
        ),
        Point(name="same", columns=about, verb="finetune", options=sized(fine, low), source="pretrained"),
        Point(
            name="higher",
            columns={"stage": HIGH, "image_size": high},
            verb="finetune",
            options=sized(fine, high),
            source="pretrained",
        ),
        Point(
            name="scratch",
            columns={"stage": SCRATCH, "image_size": high},
            options=sized({**start, "epochs": both}, high),
            shape=scale.shape,
        ),
    ]


def judge(rows: Sequence[Row]) -> list[Finding]:
    """Compare the two fine-tuned models."""
    return [exceeds(rows, {"stage": HIGH}, {"stage": LOW}, "twice the resolution against the same")]


def draw(rows: Sequence[Row]) -> dict[str, Figure]:
    """Draw a line of dots for each stage."""
    groups = {stage: [row["accuracy"] for row in found] for stage, found in by(rows, "stage").items()}
    return {"plot": plot.dots(groups, "test accuracy", title="Fine-tuning at twice the resolution")}


EXPERIMENT = Experiment(
    name="resolution",
    source="Section 3.2",
    claim="Fine-tuning at a higher resolution than that of pre-training, with positions interpolated in 2D, "
    "is beneficial",
    rule="fine-tuned at twice the resolution, a model beats itself fine-tuned at the same by more than two "
    "standard errors",
    scales={
        "quick": Scale(
            data="digits",
            cost="3 to 4 min on 2 cores",
            image_size=8,
            patch_size=2,
            options={**SMALL, "epochs": 60},
            shape=SMALL_SHAPE,
            values={"fine": {**FINE, "epochs": 15}},
        ),
        "gpu": Scale(
            data="cifar10",
            cost="not yet measured",
            image_size=32,
            patch_size=4,
            options={**GPU, "epochs": 40},
            values={"fine": {**FINE, "batch_size": 512, "epochs": 10, "augment": "medium"}},
        ),
        "paper": Scale(
            needs="ImageNet as a folder (the paper pre-trains on ImageNet-21k or JFT-300M)",
            cost="a cluster",
            image_size=448,
            patch_size=32,
            options={**PAPER, **ADAM, "model": "ViT-B/16", "epochs": 300, "lr": 3e-3, "weight_decay": 0.3},
            values={"fine": {"recipe": "paper", "batch_size": 512, "epochs": 8}},
        ),
    },
    points=points,
    judge=judge,
    draw=draw,
)
