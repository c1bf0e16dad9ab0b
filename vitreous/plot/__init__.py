"""Pictures of arrays: numpy in, matplotlib figures out; colour-blind safe, on light and dark. No torch.

`style` has the colours and writes PNG and SVG; `inside` draws what inspection finds, `results` what training
and evaluation measure, `experiments` what `reproduce` compares. Text from users (class and file names) goes
through `label`, never through mathtext.
"""

from vitreous.plot.experiments import curves, dots, position_maps, slopes
from vitreous.plot.inside import (
    attention_heads,
    by_layer,
    deletion,
    filters,
    gallery,
    layer_similarity,
    overlay,
    positions,
    sheet,
    token_norms,
)
from vitreous.plot.results import confusion, history, reliability, speeds, sweep
from vitreous.plot.style import Theme, label, png, svg

__all__ = [
    "Theme",
    "attention_heads",
    "by_layer",
    "confusion",
    "curves",
    "deletion",
    "dots",
    "filters",
    "gallery",
    "history",
    "label",
    "layer_similarity",
    "overlay",
    "png",
    "position_maps",
    "positions",
    "reliability",
    "sheet",
    "slopes",
    "speeds",
    "svg",
    "sweep",
    "token_norms",
]
