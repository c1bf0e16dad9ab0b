"""Plots of what inspection finds: figures 6 and 7 of the paper, and later methods. No torch.

Letters: L layers, H heads, (h, w) grid of patches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image

from vitreous.plot.style import BLUE, GRAY, HEAT, MARKERS, ORANGE, SERIES, canvas, label, themed, tidy

OVERLAY = "inferno"
"""Dark where a map is low, so that the picture shows through; lightness alone tells high from low."""
TILES = 16
"""Positions along each side whose maps are drawn; a finer grid is drawn in part, evenly."""


@dataclass(frozen=True)
class Line:
    """A reference line in a plot by layer, to compare the values with."""

    name: str
    x: np.ndarray
    """Relative depth, 0 (first layer) to 1 (last)."""
    y: np.ndarray


@themed
def filters(tiles: np.ndarray, about: str) -> Figure:
    """Draw filters (n, P, P, 1 or 3) in [0, 1], seven per row, as in figure 7 (left) of the paper."""
    columns = min(7, len(tiles))
    rows = ceil(len(tiles) / columns)
    figure = canvas(4.8, 4.8 * rows / columns + 0.35)
    figure.suptitle(f"Principal components: {about}", fontsize=10)
    axes = _bare(figure.subplots())  # one for all tiles: axes of their own would take most of the time
    for i, tile in enumerate(tiles):
        row, column = divmod(i, columns)
        left, top, side = column + 0.03, row + 0.03, 0.94
        tile = tile[..., 0] if tile.shape[-1] == 1 else tile
        extent = (left, left + side, top + side, top)
        axes.imshow(tile, cmap="gray", vmin=0, vmax=1, interpolation="nearest", extent=extent)
        ink = matplotlib.rcParams["axes.edgecolor"]
        edge = Rectangle((left, top), side, side, fill=False, edgecolor=ink, alpha=0.3, linewidth=0.8)
        axes.add_patch(edge)  # which a white tile needs on white paper
    axes.set(xlim=(0, columns), ylim=(rows, 0))
    return figure


def shown(count: int) -> np.ndarray:
    """Return which rows (or columns) of positions are drawn."""
    return np.unique(np.linspace(0, count - 1, min(count, TILES)).round().astype(int))


@themed
def positions(values: np.ndarray, about: str) -> Figure:
    """Draw similarities (h, w, h, w) as a grid of maps, as figure 7 (centre) of the paper."""
    rows, columns = shown(values.shape[0]), shown(values.shape[1])
    sheet, across, down = _sheet(values[np.ix_(rows, columns)])
    wide = sheet.shape[1] / sheet.shape[0]
    figure = canvas(5.2, min(9.0, max(1.6, 3.75 / wide)) + 0.7)
    axes = figure.subplots()
    low = min(0.0, float(np.nanmin(sheet)))
    drawn = axes.imshow(sheet, cmap=HEAT, vmin=low, vmax=1, interpolation="nearest")
    axes.set_xticks(across, [str(column + 1) for column in columns])
    axes.set_yticks(down, [str(row + 1) for row in rows])
    axes.tick_params(length=0, labelsize=7)
    axes.set(xlabel="column of the patch", ylabel="row of the patch")
    axes.spines[:].set_visible(False)
    axes.set_title(about, fontsize=9, wrap=True)
    figure.colorbar(drawn, ax=axes, label="cosine similarity", shrink=0.8, aspect=24)
    return figure


@themed
def by_layer(
    values: np.ndarray, ylabel: str, lines: Sequence[Line] = (), top: float | None = None, title: str = ""
) -> Figure:
    """Draw one value per head (L, H) over the layers, with reference lines, as in figure 7 (right)."""
    layers, heads = values.shape
    figure = canvas(5.2, 3.9)
    axes = tidy(figure.subplots())
    spread = np.linspace(-0.18, 0.18, heads) if heads > 1 else np.zeros(1)
    x = np.arange(1, layers + 1)[:, None] + spread
    axes.scatter(x, values, s=20, color=BLUE, alpha=0.75, linewidth=0, label="one head", zorder=3)
    axes.plot(np.arange(1, layers + 1), values.mean(1), color=BLUE, linewidth=1.6, label="mean of the heads")
    for line, colour, style in zip(lines, (ORANGE, GRAY), ("--", ":"), strict=False):
        axes.plot(1 + line.x * (layers - 1), line.y, style, color=colour, label=line.name)
    axes.set(xlabel="layer", ylabel=ylabel)
    axes.set_title(title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_ylim(bottom=0, top=top)
    axes.set_xlim(0.5, layers + 0.5)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@dataclass(frozen=True)
class Pictured:
    """One row of the gallery."""

    title: str
    image: np.ndarray
    """uint8 (H, W, 1 or 3)"""
    maps: Mapping[str, np.ndarray]
    """Name of the column → (h, w)"""


@themed
def gallery(rows: Sequence[Pictured]) -> Figure:
    """Draw images with their maps laid over them, as figure 6 of the paper."""
    names = list(dict.fromkeys(name for row in rows for name in row.maps))
    cells: list[list[Cell]] = []
    for i, row in enumerate(rows):
        maps = [overlay(row.image, row.maps[name]) if name in row.maps else None for name in names]
        titles = names if i == 0 else [""] * len(names)
        cells.append([(label(row.title, 24), row.image), *zip(titles, maps, strict=True)])
    return _board(cells, side=min(2.0, 8.0 / (1 + len(names))))


@themed
def sheet(rows: Mapping[str, Sequence[np.ndarray]]) -> Figure:
    """Draw rows of images, uint8 (H, W, 1 or 3), each under its title; a row may be shorter than others."""
    cells: list[list[Cell]] = [
        [(label(name, 40) if i == 0 else "", image) for i, image in enumerate(images)]
        for name, images in rows.items()
    ]
    return _board(cells, side=min(1.6, 8.0 / max(map(len, cells))))


Cell = tuple[str, np.ndarray | None]
"""A title, and the image below it; None: nothing."""


def _board(rows: Sequence[Sequence[Cell]], side: float) -> Figure:
    """Draw rows of images, uint8 (H, W, 1 or 3), `side` inches wide, each row as tall as its first image."""
    columns, title = max(map(len, rows)), 0.22 / side
    shapes = [image.shape for row in rows for _, image in row[:1] if image is not None]
    tall = [min(1.6, max(0.5, height / width)) for height, width, *_ in shapes]
    figure = canvas(side * columns, side * (title * len(rows) + sum(tall)))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()  # one for all images: axes of their own would take most of the time
    top = 0.0
    for row, height in zip(rows, tall, strict=True):
        middle = top + title + height / 2
        for j, (name, image) in enumerate(row):
            axes.text(j + 0.03, top + 0.6 * title, name, fontsize=8, verticalalignment="center")
            if image is not None:
                scale = 0.47 * min(1 / image.shape[1], height / image.shape[0])
                across, down = scale * image.shape[1], scale * image.shape[0]
                extent = (j + 0.5 - across, j + 0.5 + across, middle + down, middle - down)
                axes.imshow(_rgb(image), interpolation="nearest", extent=extent, aspect="auto")
        top += title + height
    axes.set(xlim=(0, columns), ylim=(top, 0))
    return figure


def overlay(image: np.ndarray, relevance: np.ndarray) -> np.ndarray:
    """Return the image, uint8 (H, W, 3), under the map (h, w): gray where it is low, bright where high.

    The scale is the map's own, from its 10 % to its 99 % quantile, as rollout is never quite zero.
    """
    low, high = np.quantile(relevance, (0.1, 0.99))
    scaled = np.clip((relevance - low) / max(high - low, 1e-12), 0, 1).astype(np.float32)
    size = (image.shape[1], image.shape[0])
    smooth = np.asarray(Image.fromarray(scaled).resize(size, Image.Resampling.BICUBIC)).clip(0, 1)
    colours = matplotlib.colormaps[OVERLAY](smooth)[..., :3]
    gray = _rgb(image).mean(axis=2, keepdims=True) / 255
    strength = 0.15 + 0.65 * smooth[..., None]
    mixed = (1 - strength) * 0.75 * gray + strength * colours
    return (mixed * 255).round().astype(np.uint8)


def _rgb(image: np.ndarray) -> np.ndarray:
    if image.ndim == 2 or image.shape[2] == 1:
        return np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
    return image[..., :3] if image.shape[2] >= 3 else np.repeat(image[..., :1], 3, axis=2)


@themed
def attention_heads(maps: np.ndarray, start: str) -> Figure:
    """Draw what every head of every layer looks at, (L, H, h, w); each map has its own scale."""
    layers, heads = maps.shape[:2]
    low, high = maps.min(axis=(2, 3), keepdims=True), maps.max(axis=(2, 3), keepdims=True)
    scaled = (maps - low) / np.maximum(high - low, 1e-12)
    sheet, across, down = _sheet(scaled)
    wide = sheet.shape[1] / sheet.shape[0]
    figure = canvas(5.6, min(11.0, max(1.4, 5.0 / wide)) + 0.7)
    axes = figure.subplots()
    axes.imshow(sheet, cmap=HEAT, vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks(across, [str(head + 1) for head in range(heads)])
    axes.set_yticks(down, [str(layer + 1) for layer in range(layers)])
    axes.tick_params(length=0, labelsize=7)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="head", ylabel="layer")
    axes.set_title(f"Attention from the {start}", fontsize=9)
    return figure


@themed
def token_norms(norms: np.ndarray, prefix: Mapping[str, np.ndarray], similarity: np.ndarray) -> Figure:
    """Draw how long (M = images x patches, (L, M)) and how alike (L,) the tokens of each layer are."""
    layers = np.arange(1, len(norms) + 1)
    figure = canvas(5.2, 5.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    tidy(above).fill_between(
        layers,
        *np.quantile(norms, (0.05, 0.95), axis=1),
        color=BLUE,
        alpha=0.25,
        linewidth=0,
        label="5 to 95 %",
    )
    above.plot(layers, np.median(norms, axis=1), color=BLUE, label="median patch")
    above.plot(layers, norms.max(axis=1), ":", color=BLUE, marker="^", label="longest patch")
    for (name, values), colour in zip(prefix.items(), (ORANGE, *SERIES[2:]), strict=False):
        above.plot(layers, values, "--", color=colour, label=name)
    above.set(ylabel="length of a token (L2)")
    if norms.max() > 20 * np.median(norms, axis=1).min():
        above.set_yscale("log")
    else:
        above.set_ylim(bottom=0)
    tidy(below).plot(layers, similarity, color=BLUE, marker="o")
    below.set(xlabel="layer", ylabel="similarity of two patches\n(mean cosine)")
    below.set_ylim(min(0.0, float(similarity.min()) * 1.1), 1)
    below.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


@themed
def layer_similarity(values: np.ndarray, first: str = "", second: str = "") -> Figure:
    """Draw the CKA between layers, of one model or of two."""
    figure = canvas(5.0, min(7.0, max(2.2, 3.6 * values.shape[0] / values.shape[1])) + 0.5)
    axes = figure.subplots()
    drawn = axes.imshow(values, vmin=0, vmax=1, cmap=HEAT, origin="lower", interpolation="nearest")
    for axis, count in ((axes.xaxis, values.shape[1]), (axes.yaxis, values.shape[0])):
        ticks = np.unique(np.linspace(0, count - 1, min(count, 12)).round().astype(int))
        axis.set_ticks(ticks, [str(tick + 1) for tick in ticks])
    axes.set(ylabel=f"layer of {label(first)}" if first else "layer")
    axes.set(xlabel=f"layer of {label(second)}" if second else "layer")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(drawn, ax=axes, label="CKA (1: the same up to rotation)", shrink=0.85)
    return figure


@themed
def deletion(
    removed: np.ndarray, curves: Mapping[str, tuple[np.ndarray, np.ndarray]], random: np.ndarray, ylabel: str
) -> Figure:
    """Draw what is left of the answer as patches are removed, most relevant first (above) or last (below)."""
    figure = canvas(5.2, 5.4)
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    titles = (
        "most relevant go first: a good map falls early",
        "least relevant go first: a good map stays high",
    )
    for side, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        tidy(axes).plot(100 * removed, random, ":", color=GRAY, label="random order")
        for (name, both), colour, marker in zip(curves.items(), SERIES, MARKERS, strict=False):
            axes.plot(100 * removed, both[side], color=colour, marker=marker, label=name, clip_on=False)
        axes.set_title(title, fontsize=9)
        axes.set(xlim=(0, 100))
    everything = [random, *(curve for both in curves.values() for curve in both)]
    low, high = min(map(np.min, everything)), max(map(np.max, everything))
    panels[0].set(ylim=(min(0.0, float(low)), 1.05 * float(high)))
    panels[1].set(xlabel="patches removed (%)")
    figure.supylabel(ylabel, fontsize=10)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)))
    return figure


def tiled(tiles: np.ndarray) -> np.ndarray:
    """Return maps (rows, columns, h, w) on one sheet, with gaps."""
    return _sheet(tiles)[0]


def _sheet(tiles: np.ndarray) -> tuple[np.ndarray, list[float], list[float]]:
    """Return tiles (rows, columns, h, w) on one sheet, and where the centres of its columns and rows are."""
    rows, columns = tiles.shape[:2]
    times = ceil(24 / max(tiles.shape[2:]))  # small tiles are drawn larger, so that gaps stay narrow
    tiles = tiles.repeat(times, axis=2).repeat(times, axis=3)
    height, width = tiles.shape[2:]
    gap = max(1, round(max(height, width) / 12))
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap), np.nan)
    for row, column in np.ndindex(rows, columns):
        top, left = row * (height + gap), column * (width + gap)
        sheet[top : top + height, left : left + width] = tiles[row, column]
    across = [column * (width + gap) + (width - 1) / 2 for column in range(columns)]
    return sheet, across, [row * (height + gap) + (height - 1) / 2 for row in range(rows)]


def _bare(axes: Axes) -> Axes:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return axes
