"""Pictures: every figure in both themes, names drawn as they are, inks that follow the page, safe colours."""

import io
import re
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from vitreous import plot
from vitreous.plot.inside import Line, Pictured, shown
from vitreous.plot.style import INK, PAPER, SERIES

RANDOM = np.random.default_rng(0)
HOSTILE = ["<img src=x onerror=alert(1)>", "$\\frac$", "שלום", "two\nlines\tand a tab", "名", "x" * 90]
DEPTH = np.linspace(0, 1, 5)

FIGURES: dict[str, Callable[..., Figure]] = {
    "filters": lambda **o: plot.filters(RANDOM.random((9, 4, 4, 3)), "patch embedding", **o),
    "filters of one pixel": lambda **o: plot.filters(RANDOM.random((3, 1, 1, 3)), "patch embedding", **o),
    "gray filters of one pixel": lambda **o: plot.filters(RANDOM.random((1, 1, 1, 1)), "root", **o),
    "gray filters": lambda **o: plot.filters(RANDOM.random((28, 7, 7, 1)), "root", **o),
    "positions": lambda **o: plot.positions(RANDOM.random((3, 20, 3, 20)), "learned positions", **o),
    "by layer": lambda **o: plot.by_layer(
        RANDOM.random((6, 3)), "mean distance (pixels)", [Line("CNN", DEPTH, DEPTH)], **o
    ),
    "one layer": lambda **o: plot.by_layer(RANDOM.random((1, 1)), "entropy", top=1.0, **o),
    "gallery": lambda **o: plot.gallery(
        [
            Pictured(HOSTILE[0], np.full((40, 60, 3), 9, np.uint8), {"rollout": RANDOM.random((4, 6))}),
            Pictured(HOSTILE[2], np.full((60, 20, 1), 9, np.uint8), {"Grad-CAM": RANDOM.random((6, 2))}),
        ],
        **o,
    ),
    "sheet": lambda **o: plot.sheet(
        {HOSTILE[0]: [np.full((40, 60, 3), 9, np.uint8)] * 3, "short": [np.full((60, 20, 1), 200, np.uint8)]},
        **o,
    ),
    "heads": lambda **o: plot.attention_heads(RANDOM.random((2, 3, 4, 5)), "class token", **o),
    "tokens": lambda **o: plot.token_norms(
        np.exp(4 * RANDOM.random((5, 40))), {"class token": np.arange(1, 6)}, RANDOM.random(5), **o
    ),
    "layers": lambda **o: plot.layer_similarity(RANDOM.random((4, 6)), HOSTILE[0], HOSTILE[1], **o),
    "deletion": lambda **o: plot.deletion(
        DEPTH, {"rollout": (1 - DEPTH, 1 - DEPTH**2)}, 1 - DEPTH, "probability of the class", **o
    ),
    "history": lambda **o: plot.history({"train": [(1, 2.0), (9, 1.0)], "val": [(9, 1.5)]}, "loss", **o),
    "confusion": lambda **o: plot.confusion(RANDOM.integers(0, 9, (6, 6)), HOSTILE, **o),
    "large confusion": lambda **o: plot.confusion(np.eye(90, dtype=int), [str(i) for i in range(90)], **o),
    "reliability": lambda **o: plot.reliability(DEPTH, DEPTH, np.array([0, 3, 0, 5, 9]), 0.03, **o),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_whole_in_both_themes(name: str, theme: Any) -> None:
    """Nothing is cut off: all ink lies inside the sheet, so that its border is paper."""
    image = Image.open(io.BytesIO(plot.png(FIGURES[name](theme=theme), dpi=60))).convert("RGB")
    pixels = np.asarray(image).astype(int)
    paper = np.array([int(PAPER[theme][i : i + 2], 16) for i in (1, 3, 5)])
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (np.abs(border - paper).max(axis=1) < 60).mean() > 0.97
    assert np.abs(pixels - paper).max() > 100


@pytest.mark.parametrize("name", FIGURES)
def test_svg_takes_its_ink_from_the_page_and_has_no_text_or_outside(name: str) -> None:
    drawn = plot.svg(FIGURES[name](), name)
    assert drawn.startswith("<svg") and "currentColor" in drawn
    assert not any(ink in drawn for ink in INK.values())
    assert "<text" not in drawn and "<metadata" not in drawn and "onerror" not in _without_comments(drawn)
    identifiers = re.findall(r'\bid="([^"]+)"', drawn)
    prefix = name.replace(" ", "-") + "-"
    assert identifiers and all(each.startswith(prefix) for each in identifiers)
    used = re.findall(r'(?:url\(#|href="#)([^")]+)', drawn)
    assert set(used) <= set(identifiers)
    assert not re.findall(r'href="(?!#|data:)', drawn)


def _without_comments(text: str) -> str:
    """matplotlib notes each label in a comment: what is between the signs can't become a tag."""
    for comment in re.findall(r"<!--(.*?)-->", text, flags=re.DOTALL):
        assert ">" not in comment and "--" not in comment
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def test_right_to_left_names_are_drawn_from_the_right() -> None:
    """Yod hangs from the line's top, shin fills it: the letter at the left end is the name's last."""

    def lower_left_ink(name: str) -> float:
        figure = Figure(figsize=(4, 2))
        figure.text(0.5, 0.5, plot.label(name), fontsize=60, ha="center")
        ink = 255 - np.asarray(Image.open(io.BytesIO(plot.png(figure))).convert("L")).astype(float)
        rows, columns = (np.flatnonzero(ink.sum(axis=axis) > 0) for axis in (1, 0))
        word = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        height, width = word.shape
        return float(word[int(0.7 * height) :, : int(0.15 * width)].mean())

    assert lower_left_ink("שי") < 1
    assert lower_left_ink("יש") > 50


def test_labels_are_one_short_line_and_say_the_ends() -> None:
    assert plot.label("two\nlines\tand\x00 more") == "two lines and  more"
    assert plot.label("a" * 50 + "end", 12) == "aaaaaaaa…end"
    assert plot.label("\ud800broken") == "broken"
    assert plot.label("كلب") == "كلب"


def test_mathematics_in_a_name_is_just_a_name() -> None:
    """`$\\frac$` stops matplotlib where it is read as mathematics."""
    figure = plot.confusion(np.eye(2, dtype=int), ["$\\frac$", "costs $5 and $6"])
    plot.png(figure, dpi=40)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["$\\frac$", "costs $5 and $6"]


def test_series_differ_in_lightness_or_hue_for_the_colour_blind() -> None:
    """Machado's matrices for full protanopia, deuteranopia and tritanopia: all pairs stay apart."""
    matrices = {
        "protanopia": [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        "deuteranopia": [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
        "tritanopia": [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ],
    }
    colours = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in SERIES])
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    for matrix in matrices.values():
        seen = np.clip(linear @ np.array(matrix).T, 0, 1)
        for i in range(len(seen)):
            for j in range(i):
                assert np.linalg.norm(seen[i] - seen[j]) > 0.15


def test_an_overlay_is_brightest_where_the_map_is() -> None:
    image = np.full((40, 60, 3), 128, np.uint8)
    relevance = np.zeros((4, 6))
    relevance[1, 4] = 1.0
    laid = plot.overlay(image, relevance).astype(int).sum(axis=2)
    assert laid.shape == (40, 60)
    row, column = np.unravel_index(laid.argmax(), laid.shape)
    assert 10 <= row < 20 and 40 <= column < 50
    flat = plot.overlay(image, np.ones((4, 6)))
    assert (flat == flat[0, 0]).all()


def test_a_fine_grid_of_positions_is_drawn_in_part_evenly() -> None:
    assert shown(37).tolist() == [0, 2, 5, 7, 10, 12, 14, 17, 19, 22, 24, 26, 29, 31, 34, 36]
    assert shown(3).tolist() == [0, 1, 2]


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    plot.history({"train": [(0, 1.0), (1, 2.0)]}, "loss", theme="dark")
    assert dict(matplotlib.rcParams) == before
