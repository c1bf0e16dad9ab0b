"""The rules: what counts as held, not held and not decided, on rows that are made up or the paper's own."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from vitreous import plot
from vitreous.reproduce.catalogue import EXPERIMENTS
from vitreous.reproduce.compute import reach
from vitreous.reproduce.data_size import cross
from vitreous.reproduce.distill import ALONE, SOFT, TEACHER, TOKEN
from vitreous.reproduce.experiment import Finding, Row, verdict
from vitreous.reproduce.judging import Gap, gap
from vitreous.reproduce.maps import locality
from vitreous.reproduce.resolution import HIGH, LOW
from vitreous.reproduce.run import seconds
from vitreous.reproduce.self_supervised import SUPERVISED
from vitreous.reproduce.transfer import AFTER

IMAGENET = 50_000
"""Its validation images, which the paper's figures are of."""


def row(accuracy: float | None, tested: int = IMAGENET, **columns: Any) -> Row:
    usual = {"point": "a", "seed": 0, "multiply_adds": 1, "training_flops": 1, "data": "digits"}
    return {**usual, "accuracy": accuracy, "test_images": tested, **columns}


def rows(column: str, shares: Mapping[Any, float], tested: int = IMAGENET, **others: Any) -> list[Row]:
    return [row(share, tested, **{column: value}, **others) for value, share in shares.items()]


def judged(name: str, found: Sequence[Row]) -> str:
    return verdict(EXPERIMENTS[name].judge(found))


TABLE_8 = {"none": 0.61382, "1D": 0.64206, "2D": 0.64001, "relative": 0.64032}
TABLE_2 = {"ViT": 0.9390, "BiT": 0.9351}  # CIFAR-100, as if it had as many test images
SECTION_4_6 = {"scratch": 0.779, "masked": 0.799, "mae": 0.83, "dino": 0.82, SUPERVISED: 0.839}
DEIT = {TEACHER: 0.829, ALONE: 0.722, TOKEN: 0.745, SOFT: 0.722}


@pytest.mark.parametrize(
    ("name", "column", "shares", "changes"),
    [
        ("positions", "positions", TABLE_8, {"relative": 0.60, "none": 0.63}),
        ("self-supervised", "start", SECTION_4_6, {"masked": 0.76}),
        ("distill", "learner", DEIT, {TOKEN: 0.70}),
        ("transfer", "family", TABLE_2, {"ViT": 0.92}),
        ("resolution", "stage", {LOW: 0.80, HIGH: 0.83}, {HIGH: 0.77}),
    ],
)
def test_the_papers_own_figures_hold_and_others_do_not(
    name: str, column: str, shares: dict[str, float], changes: dict[str, float]
) -> None:
    about = {} if column == "stage" else {"stage": AFTER}
    assert judged(name, rows(column, shares, **about)) == "held"
    assert judged(name, rows(column, {**shares, **changes}, **about)) == "not held"
    few = judged(name, rows(column, shares, tested=100, **about))
    assert few == "not decided", "a hundred images can't tell"


def test_encodings_that_differ_as_much_as_none_do_are_not_equal() -> None:
    spread = {"none": 0.5, "1D": 0.9, "2D": 0.8, "relative": 0.6}
    findings = EXPERIMENTS["positions"].judge(rows("positions", spread))
    assert [finding.held for finding in findings] == [True, False]


def sizes(depth: float, width: float, mlp: float, patch: float) -> list[Row]:
    """Rows from 0.7 to these shares along each axis."""
    ends = {"depth": depth, "width": width, "MLP": mlp, "patch": patch}
    made = [rows("axis", {axis: 0.7}, point="base") for axis in ends]
    made += [rows("axis", {axis: share}, multiply_adds=2) for axis, share in ends.items()]
    return [each for group in made for each in group]


def test_scaling_needs_depth_first_width_last_and_smaller_patches() -> None:
    assert judged("scaling", sizes(depth=0.8, width=0.71, mlp=0.75, patch=0.77)) == "held"
    assert judged("scaling", sizes(depth=0.8, width=0.85, mlp=0.75, patch=0.77)) == "not held"
    assert judged("scaling", sizes(depth=0.8, width=0.71, mlp=0.75, patch=0.6)) == "not held"


def families(vit: Sequence[float], bit: Sequence[float]) -> list[Row]:
    """Rows of the families at 100, 1,000 and 10,000 images, or FLOPs."""
    found = []
    for family, shares in {"ViT": vit, "BiT": bit, "hybrid": vit}.items():
        for size, share in zip((100, 1_000, 10_000), shares, strict=True):
            found.append(row(share, family=family, images=size, training_flops=size, size=str(size)))
    return found


def test_data_size_needs_curves_that_cross() -> None:
    crossing = families(vit=(0.3, 0.7, 0.95), bit=(0.5, 0.7, 0.9))
    assert judged("data-size", crossing) == "held"
    assert judged("data-size", families(vit=(0.3, 0.6, 0.8), bit=(0.5, 0.7, 0.9))) == "not held"
    vit, bit = ([each for each in crossing if each["family"] == name] for name in ("ViT", "BiT"))
    assert cross(vit, bit) == pytest.approx(1_000)
    assert cross(bit, vit) is None
    assert "cross at about 1,000 images" in EXPERIMENTS["data-size"].judge(crossing)[1].text


def test_compute_compares_what_the_same_accuracy_takes() -> None:
    better = EXPERIMENTS["compute"].judge(families(vit=(0.5, 0.8, 0.9), bit=(0.2, 0.5, 0.8)))
    assert better == [
        Finding("for 80.0% BiT takes 10.0 times the compute of ViT (the hybrid 1.0 times)", True)
    ]
    assert judged("compute", families(vit=(0.2, 0.5, 0.8), bit=(0.5, 0.8, 0.9))) == "not held"
    assert judged("compute", families(vit=(0.5, 0.7, 0.92), bit=(0.49, 0.69, 0.9))) == "not decided"
    bound = EXPERIMENTS["compute"].judge(families(vit=(0.2, 0.3, 0.4), bit=(0.5, 0.8, 0.9)))
    assert "at most 0.0 times" in bound[0].text and bound[0].held is False
    assert reach([(1.0, 0.2), (100.0, 0.4)], 0.3) == pytest.approx(10.0)
    assert reach([(1.0, 0.2)], 0.3) is None


def looked(distance: Any, near: float = 0.5) -> list[Row]:
    flat = [[2.0, 2.1], [2.0, 2.1]]
    return [row(0.9, distance=distance, untrained=flat, uniform=4.0, locality=near)]


def test_attention_needs_depth_to_reach_further_mixed_heads_and_near_positions_alike() -> None:
    assert judged("attention", looked([[1.0, 3.0], [3.0, 3.5]])) == "held"
    assert judged("attention", looked([[3.0, 3.5], [1.0, 3.0]])) == "not held"
    assert judged("attention", looked([[1.0, 1.1], [3.0, 3.5]])) == "not held"
    assert judged("attention", looked([[1.0, 3.0], [3.0, 3.5]], near=0.1)) == "not held"


def lecture(data: str, best: float, pooled: float, late: float) -> list[Row]:
    token = {"pooling": "class token", "after": "last epoch", "data": data, "locality": late}
    kinds = {"none": 0.7, "sinusoidal": 0.9, "learned": best, "2D": 0.92, "relative": 0.9}
    found = rows("positions", kinds, tested=10_000, **token)
    found += rows("positions", {"learned": 0.3}, **{**token, "after": "1 epoch", "locality": 0.1})
    return [
        *found,
        *rows("positions", {"learned": pooled}, 10_000, **{**token, "pooling": "mean of patches"}),
    ]


def test_course_asks_for_98_percent_on_mnist_alone() -> None:
    assert judged("course", lecture("mnist", best=0.981, pooled=0.981, late=0.4)) == "held"
    assert judged("course", lecture("mnist", best=0.95, pooled=0.95, late=0.4)) == "not held"
    assert judged("course", lecture("digits", best=0.95, pooled=0.95, late=0.4)) == "held"
    assert judged("course", lecture("digits", best=0.95, pooled=0.90, late=0.4)) == "not held"
    assert judged("course", lecture("digits", best=0.95, pooled=0.95, late=0.05)) == "not held"


def test_noise_is_that_of_the_images_and_of_the_seeds() -> None:
    one = gap([row(0.5, tested=100)], [row(0.5, tested=100)])
    assert one == Gap(0.0, pytest.approx(2 * (2 * 0.25 / 100) ** 0.5)) and one.held is None
    seeds = [row(share, tested=100) for share in (0.3, 0.5, 0.7)]
    assert gap(seeds, [row(0.5, tested=100)]).noise > one.noise
    assert gap([row(1.0)], [row(0.5)]).held is True and gap([row(0.5)], [row(1.0)]).held is False
    assert str(Gap(0.123, 0.0456)) == "+12.3 ± 4.6 points"


def test_a_run_that_stands_in_two_rows_took_its_time_once() -> None:
    made = [row(0.5, point=point, seed=seed, seconds=2.5) for point, seed in (("a", 0), ("a", 0), ("a", 1))]
    assert seconds(made) == 5.0


def test_locality_is_1_where_near_places_are_alike_and_0_where_all_are() -> None:
    line = np.arange(5.0)
    falls = 1 - abs(line[:, None] - line[None]) / 5
    assert locality(falls.reshape(1, 5, 1, 5)) == pytest.approx(1.0)
    assert locality(-falls.reshape(1, 5, 1, 5)) == pytest.approx(-1.0)
    assert locality(np.ones((1, 5, 1, 5))) == 0.0


@pytest.mark.parametrize("name", ["positions", "data-size"])
def test_a_plot_shows_every_mean(name: str) -> None:
    made = {"positions": rows("positions", TABLE_8), "data-size": families((0.3, 0.7, 0.9), (0.5, 0.7, 0.9))}
    drawn = EXPERIMENTS[name].draw(made[name])["plot"]
    axes = drawn.axes[0]
    if name == "positions":
        assert [text.get_text() for text in axes.texts] == ["61.4%", "64.2%", "64.0%", "64.0%"]
    else:
        assert [list(line.get_ydata()) for line in axes.lines][:2] == [[0.3, 0.7, 0.9], [0.5, 0.7, 0.9]]
    assert ElementTree.fromstring(plot.svg(drawn)).tag.endswith("svg")
