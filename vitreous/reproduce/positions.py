"""Table 8 of the paper: does it matter how positions are encoded?

ViT-B/16, 5-shot linear on ImageNet: no positions 61.4 %, 1D 64.2 %, 2D 64.0 %, relative 64.0 %. "While there
is a large gap between the performances of the model with no positional embedding and models with positional
embedding, there is little to no difference between different ways of encoding positional information."
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from vitreous import plot
from vitreous.reproduce.experiment import Experiment, Finding, Point, Row, Scale
from vitreous.reproduce.judging import accuracies, by, gap, mean
from vitreous.reproduce.settings import ADAM, GPU, PAPER, SMALL, SMALL_SHAPE

KINDS = {"none": "none", "1D": "learned", "2D": "learned2d", "relative": "relative"}


def points(scale: Scale) -> list[Point]:
    """Return the same model four times, with different kinds of positions."""
    return [
        Point(
            name=name,
            columns={"positions": name},
            options={**scale.options, **scale.size},
            shape={**scale.shape, "positions": kind},
        )
        for name, kind in KINDS.items()
    ]


def judge(rows: Sequence[Row]) -> list[Finding]:
    """Compare the worst of the encodings with none, and the encodings with each other."""
    found = by(rows, "positions")
    none = found.pop("none")
    worst, best = (choose(found.values(), key=mean) for choose in (min, max))
    large, spread = gap(worst, none), gap(best, worst)
    half = large.difference / 2
    unclear = None if spread.difference - spread.noise < half else False
    return [
        Finding(f"the worst encoding against none {large}", large.held),
        Finding(
            f"the best encoding against the worst {spread}, half of that gap is {100 * half:.1f}",
            spread.difference < half or unclear,
        ),
    ]


def draw(rows: Sequence[Row]) -> dict[str, Figure]:
    """Draw a line of dots for each kind."""
    return {"plot": plot.dots(accuracies(rows, "positions"), "test accuracy", title="Positions (table 8)")}


EXPERIMENT = Experiment(
    name="positions",
    source="Table 8",
    claim="No positions are much worse (61.4 %) than 1D, 2D or relative ones (64.2, 64.0, 64.0 %), which "
    "are about equal",
    rule="the worst encoding beats none by more than two standard errors, and the encodings are less than "
    "half of that gap apart (or can't be told from that within two standard errors: not decided)",
    scales={
        "quick": Scale(
            data="digits",
            cost="about 2 min on 2 cores",
            image_size=8,
            patch_size=2,
            options={**SMALL, "epochs": 40},
            shape=SMALL_SHAPE,
        ),
        "gpu": Scale(
            data="cifar10",
            cost="not yet measured",
            image_size=32,
            patch_size=4,
            options={**GPU, "epochs": 50},
        ),
        "paper": Scale(
            needs="JFT-300M, or another set of that size, and ImageNet for the few shots (vitreous probe)",
            cost="a cluster",
            image_size=224,
            patch_size=16,
            options={**PAPER, **ADAM, "model": "ViT-B/16", "epochs": 7, "lr": 8e-4},
        ),
    },
    points=points,
    judge=judge,
    draw=draw,
)
