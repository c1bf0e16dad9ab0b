"""How every plot looks, and how it becomes a file: two themes, one palette, PNG and SVG. No torch."""

import functools
import io
import re
import unicodedata
import warnings
from collections.abc import Callable
from typing import Any, Literal

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

Theme = Literal["light", "dark"]

INK = {"light": "#1f2431", "dark": "#e5e8ef"}
PAPER = {"light": "#ffffff", "dark": "#14171d"}
# After Okabe and Ito: legible on white and on black, and told apart by the colour-blind too.
BLUE, ORANGE, GREEN, PURPLE, GRAY = "#2b78bd", "#e69500", "#12b38a", "#c25a9c", "#868b94"
SERIES = (BLUE, ORANGE, GREEN, PURPLE)
MARKERS = ("o", "s", "^", "D")
HEAT = "viridis"
LONGEST = 28

FAMILIES = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "WenQuanYi Micro Hei",
    "PingFang SC",
    "Microsoft YaHei",
    "Hiragino Sans",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Noto Color Emoji",
)


def themed(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Give a drawing function its theme: `theme="light"` or `"dark"`, on a figure of its own."""

    @functools.wraps(draw)
    def drawn(*arguments: Any, theme: Theme = "light", **options: Any) -> Figure:
        with matplotlib.rc_context(_settings(theme)):
            return draw(*arguments, **options)

    return drawn


def canvas(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, without a window or global state."""
    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Axes, *, grid: bool = True) -> Axes:
    """Remove what carries no information; draw a faint grid in the colour of the text."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(alpha=0.15, linewidth=0.8, color=matplotlib.rcParams["text.color"])
        axes.set_axisbelow(True)
    return axes


def label(text: str, longest: int = LONGEST) -> str:
    """Return a name for a picture: one line, no control characters, the middle of a long one left out."""
    plain = "".join(" " if unicodedata.category(sign) in ("Cc", "Zl", "Zp") else sign for sign in text)
    plain = "".join(sign for sign in plain if unicodedata.category(sign) != "Cs").strip()
    if len(plain) <= longest:
        return plain
    tail = (longest - 1) // 3
    return f"{plain[: longest - 1 - tail].rstrip()}…{plain[-tail:].lstrip()}"


def png(figure: Figure, dpi: int = 144) -> bytes:
    """Return the figure as a PNG file."""
    data, usual = io.BytesIO(), figure.dpi
    figure.set_dpi(dpi)
    _save(figure, lambda drawn: FigureCanvasAgg(drawn).print_png(data, metadata={"Software": None}))
    figure.set_dpi(usual)
    return data.getvalue()


def svg(figure: Figure, name: str = "figure") -> str:
    """Return the figure as an SVG element for a page: its ink is the page's text colour.

    Letters are outlines, so that the page needs no font; identifiers start with `name`, so that those of two
    figures on a page don't clash.
    """
    data, paper = io.StringIO(), figure.get_facecolor()
    figure.set_facecolor("none")
    about = {"Date": None, "Creator": None}
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": name}):
        _save(figure, lambda drawn: FigureCanvasSVG(drawn).print_svg(data, metadata=about))
    figure.set_facecolor(paper)
    text = data.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{re.sub('[^A-Za-z0-9-]', '-', name)}-", text)
    for ink in INK.values():
        text = text.replace(ink, "currentColor")
    return text


def _save(figure: Figure, write: Callable[[Figure], None]) -> None:
    """Let a canvas write the figure: `Figure.savefig` draws all of it twice, first for its extent alone."""
    with warnings.catch_warnings():
        # A script that no installed font has is drawn as boxes: the report's own text still shows it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        write(figure)
    figure.set_layout_engine("none")  # keep this layout: writing a second file takes half the time


@functools.cache
def _families() -> list[str]:
    known = set(font_manager.fontManager.get_font_names())
    return [family for family in FAMILIES if family in known]


def _settings(theme: Theme) -> Any:
    ink = INK[theme]
    return {
        "figure.facecolor": PAPER[theme],
        "savefig.facecolor": PAPER[theme],
        "axes.facecolor": "none",
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.linewidth": 0.8,
        "text.color": ink,
        "text.parse_math": False,
        "xtick.color": ink,
        "ytick.color": ink,
        "font.family": _families(),
        "font.size": 10,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "image.cmap": HEAT,
        "lines.linewidth": 1.8,
        "lines.markersize": 5,
    }
