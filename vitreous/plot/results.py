"""Plots of what training and evaluation measure: curves, confusion, reliability. No torch."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vitreous.plot.style import BLUE, GRAY, HEAT, MARKERS, ORANGE, SERIES, canvas, label, themed, tidy

NAMED = 40
"""Classes whose names fit along an axis."""
COUNTED = 16
"""Classes whose counts fit into the cells."""
FEW = 30
BESIDE: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8}
"""Style of the number beside the end of its bar."""


@themed
def history(
    series: Mapping[str, Sequence[tuple[float, float]]],
    ylabel: str,
    xlabel: str = "step",
    *,
    percent: bool = False,
    logarithmic: bool = False,
) -> Figure:
    """Draw figures over the steps of a run: name → points (step, value), with markers if they are few."""
    figure = canvas(4.8, 3.1)
    axes = tidy(figure.subplots())
    for (name, points), colour, marker in zip(series.items(), SERIES, MARKERS, strict=False):
        x, y = np.array(points, float).reshape(-1, 2).T
        axes.plot(x, y, color=colour, marker=marker if len(x) < FEW else "", markersize=3.5, label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    if logarithmic:
        axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if len(series) > 1:
        figure.legend(loc="outside lower center", ncols=len(series))
    return figure


@themed
def sweep(
    rates: Sequence[float],
    losses: Sequence[float],
    smoothed: Sequence[float],
    suggestion: float | None,
    planned: float,
) -> Figure:
    """Draw the loss over learning rates that rose from step to step, and the two rates that matter."""
    figure = canvas(5.6, 3.4)
    axes = tidy(figure.subplots())
    axes.plot(rates, losses, color=GRAY, linewidth=0.8, alpha=0.7, label="each batch")
    axes.plot(rates, smoothed, color=BLUE, label="smoothed")
    axes.axvline(planned, color=GRAY, linestyle=":", label="planned")
    if suggestion is not None:
        axes.axvline(suggestion, color=ORANGE, linestyle="--", label="falls fastest")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
    if len(smoothed):
        low, high = min(losses), max(smoothed)
        axes.set_ylim(low - 0.1 * (high - low + 1e-6), high + 0.3 * (high - low + 1e-6))
    figure.legend(loc="outside lower center", ncols=4)
    return figure


@themed
def confusion(counts: np.ndarray, labels: Sequence[str]) -> Figure:
    """Draw a confusion matrix (truth, answer): colour is the share of the row, figures are counts."""
    classes = len(counts)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    named, counted = classes <= NAMED, classes <= COUNTED
    side = 4.4 if classes <= 12 else min(7.5, 3.4 + 0.1 * classes)
    longest = max((len(label(name, 20)) for name in labels), default=0) if named else 0
    figure = canvas(side + 0.9 + 0.05 * longest, side + 0.1 + 0.05 * longest)
    axes = figure.subplots()
    drawn = axes.imshow(shares, vmin=0, vmax=1, cmap=HEAT, interpolation="nearest")
    if counted:
        for i, j in zip(*np.nonzero(counts), strict=True):
            bright = shares[i, j] > 0.55
            axes.text(
                j,
                i,
                f"{counts[i, j]:,}",
                ha="center",
                va="center",
                size=8,
                color="#111111" if bright else "#f4f4f4",
            )
    if named:
        size = 9 if classes <= 20 else 7
        names = [label(name, 20) for name in labels]
        upright = longest <= 2
        axes.set_xticks(range(classes), names, rotation=0 if upright else 90, fontsize=size)
        axes.set_yticks(range(classes), names, fontsize=size)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(
        xlabel="answer" if named else "answer (class number)",
        ylabel="truth" if named else "truth (class number)",
    )
    bar = figure.colorbar(drawn, ax=axes, label="share of the class's images", shrink=0.8, aspect=26)
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


@themed
def reliability(confidence: np.ndarray, accuracy: np.ndarray, count: np.ndarray, error: float) -> Figure:
    """Draw how often the model is right in each bin of confidence, and how many images are in each."""
    figure = canvas(4.6, 4.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    filled = count > 0
    tidy(above).plot([0, 1], [0, 1], ":", color=GRAY, label="perfectly calibrated")
    above.plot(confidence[filled], accuracy[filled], color=BLUE, marker="o", label="model", clip_on=False)
    above.set(ylabel="right", xlim=(0, 1), ylim=(0, 1.02))
    above.set_title(f"Expected calibration error {error:.2%}")
    edges = np.linspace(0, 1, len(count) + 1)
    tidy(below).bar(edges[:-1], count, width=np.diff(edges), align="edge", color=ORANGE, edgecolor="none")
    below.set(xlabel="confidence", ylabel="images")
    below.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    for axis in (below.xaxis, above.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    above.legend(loc="best")
    return figure


@themed
def speeds(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw images per second by implementation: what was timed → rows of `vitreous bench`, one bar each.

    Groups of one job share a scale; a thin line reaches from the slowest to the fastest round.
    """
    names = dict.fromkeys(row["name"] for rows in groups.values() for row in rows)
    colours = dict(zip(names, itertools.cycle((*SERIES, GRAY)), strict=False))
    heights = [len(rows) + 1.4 for rows in groups.values()]
    figure = canvas(7.0, 0.5 + 0.3 * sum(heights))
    drawn = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    widest: dict[str, float] = {}
    for row in itertools.chain(*groups.values()):
        widest[row["job"]] = max(widest.get(row["job"], 0.0), row["highest"])
    for axes, (title, rows) in zip(drawn, groups.items(), strict=True):
        for place, row in enumerate(rows):
            rate = row["images_per_second"]
            axes.barh(place, rate, color=colours[row["name"]], height=0.72)
            axes.plot([row["lowest"], row["highest"]], [place, place], color=GRAY, linewidth=1.2)
            text = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
            axes.annotate(text, (max(rate, row["highest"]), place), (4, 0), **BESIDE)
        axes.set_yticks(range(len(rows)), [label(row["name"]) for row in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.12 * widest[rows[0]["job"]])
        axes.set_title(title)
        tidy(axes).grid(axis="y", visible=False)
    drawn[-1].set_xlabel("images per second; thin line: slowest to fastest round")
    return figure
