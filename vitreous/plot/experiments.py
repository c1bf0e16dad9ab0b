"""Plots of what an experiment compares: values by kind, and curves over size or cost. No torch."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from vitreous.plot.inside import tiled
from vitreous.plot.style import BLUE, HEAT, MARKERS, ORANGE, SERIES, canvas, label, themed, tidy

MARGIN = 0.08
"""Room beside the lowest and the highest value, as a share of their range."""


@themed
def dots(groups: Mapping[str, Sequence[float]], xlabel: str, title: str = "") -> Figure:
    """Draw each seed's value as a dot and their mean as a stroke, with a line for each kind, from the top."""
    figure = canvas(5.6, 1.15 + 0.34 * len(groups))
    axes = tidy(figure.subplots())
    places = np.arange(len(groups))[::-1]
    values = [value for found in groups.values() for value in found]
    low, high = _room(values)
    for place, found in zip(places, groups.values(), strict=True):
        middle = float(np.mean(found))
        if len(found) > 1:
            axes.plot([middle, middle], [place - 0.22, place + 0.22], color=BLUE)
        axes.scatter(found, [place] * len(found), s=34, color=BLUE, alpha=0.8, linewidth=0, zorder=3)
        axes.annotate(
            f"{middle:.1%}",
            (max(found), place),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_yticks(places, [label(name, 34) for name in groups])
    axes.set(xlabel=xlabel, xlim=(low, min(1.0, high) + 0.1 * (high - low)), ylim=(-0.6, len(groups) - 0.4))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.tick_params(axis="y", length=0)
    axes.set_title(title)
    return figure


@themed
def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    xlabel: str,
    ylabel: str,
    title: str = "",
    ticks: Sequence[float] = (),
) -> Figure:
    """Draw the means of each series over a logarithmic axis, and dots if an x has several values."""
    figure = canvas(5.6, 3.6)
    axes = tidy(figure.subplots())
    styles = zip(series.items(), cycle(SERIES), cycle(MARKERS))
    for (name, points), colour, marker in styles:
        x = sorted({point[0] for point in points})
        means = [float(np.mean([y for at, y in points if at == each])) for each in x]
        axes.plot(x, means, color=colour, marker=marker, label=label(name))
        if len(points) > len(x):
            axes.scatter(*zip(*points, strict=True), s=14, color=colour, alpha=0.5, linewidth=0)
    axes.set_xscale("log")
    if ticks:
        axes.set_xticks(list(ticks), [_short(tick) for tick in ticks])
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set(xlabel=xlabel, ylabel=ylabel, ylim=_room([y for points in series.values() for _, y in points]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.set_title(title)
    figure.legend(loc="outside lower center", ncols=min(4, len(series)))
    return figure


@themed
def position_maps(maps: Mapping[str, Mapping[str, np.ndarray]], title: str = "") -> Figure:
    """Draw similarities (h, w, h, w): a row for each kind of positions, a column for each time."""
    times = list(dict.fromkeys(time for found in maps.values() for time in found))
    figure = canvas(0.6 + 2.1 * len(times), 0.7 + 2.05 * len(maps))
    grid = figure.subplots(len(maps), len(times), squeeze=False)
    drawn = None
    for line, (kind, found) in zip(grid, maps.items(), strict=True):
        for axes, time in zip(line, times, strict=True):
            _bare(axes)
            if time in found:
                sheet = tiled(found[time])
                drawn = axes.imshow(sheet, cmap=HEAT, vmin=-1, vmax=1, interpolation="nearest")
                axes.set_title(f"{kind}, {time}", fontsize=9)
    if drawn is not None:
        figure.colorbar(drawn, ax=grid, label="cosine similarity", shrink=0.5, aspect=30)
    figure.suptitle(title, fontsize=10)
    return figure


@themed
def slopes(values: Mapping[str, Sequence[Sequence[float]]], ylabel: str, title: str = "") -> Figure:
    """Draw each layer's heads (L, H) and their mean, for two models in one plot."""
    figure = canvas(5.6, 3.4)
    axes = tidy(figure.subplots())
    for (name, found), colour, marker in zip(values.items(), (BLUE, ORANGE), MARKERS, strict=False):
        table = np.array(found)
        layers = np.arange(1, len(table) + 1)
        axes.scatter(
            np.repeat(layers, table.shape[1]),
            table.ravel(),
            s=14,
            color=colour,
            alpha=0.45,
            linewidth=0,
            marker=marker,
        )
        axes.plot(layers, table.mean(1), color=colour, marker=marker, label=f"{label(name)}: mean of heads")
    axes.set(xlabel="layer", ylabel=ylabel, ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_title(title)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _room(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = max(MARGIN * (high - low), 0.005)
    return max(0.0, low - 2 * margin), min(1.005, high + margin)


def _short(value: float) -> str:
    """Return a large number in a few characters: 1437, 2.5 G, 12 T."""
    for factor, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M")):
        if value >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def _bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
