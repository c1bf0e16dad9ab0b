"""The paper's three families at one size, for experiments that compare them."""

from typing import Any

from vitreous.reproduce.experiment import Point, Scale
from vitreous.reproduce.settings import SMALL_SHAPE

Shape = dict[str, Any]

ROOT = 4
"""Pixels along a cell of a ResNet's root: the patch size at which a ViT has as many tokens as a hybrid."""


def small(width: int) -> dict[str, Shape]:
    """Return a ViT, a BiT and a hybrid for images of 16x16 that cost about the same, by the ViT's width."""
    channels = width // 2
    trunk = {"layers": (1,), "stem_width": channels, "groups": 8, "num_classes": 0}
    vit = {**SMALL_SHAPE, "width": width, "mlp_width": 2 * width}
    return {
        "ViT": vit,
        "BiT": {"layers": (1, 1), "stem_width": channels, "groups": 8},
        "hybrid": {**vit, "stem": {**trunk, "preactivation": False, "same_padding": True}},
    }


def point(family: str, shape: Shape, scale: Scale, **about: Any) -> Point:
    """Return the point of one family: the scale's variant of it, reshaped, on images of the scale's size."""
    options = {**scale.options, "model": scale.values["models"][family], "image_size": (scale.image_size,)}
    patch = {"ViT": {"patch_size": (scale.patch_size,)}, "hybrid": scale.values.get("hybrid", {})}
    options |= patch.get(family, {})
    given = about.pop("options", {})
    return Point(options={**options, **given}, shape=shape, **about)


MODELS = {"ViT": "ViT-Ti/16", "BiT": "BiT-R50x1", "hybrid": "R26+ViT-S/32"}
CELLS: Shape = {"patch_size": (1,)}
"""A hybrid's patch, in cells of its trunk."""
SCALED: dict[str, Any] = {"models": MODELS, "hybrid": CELLS}
ON_CIFAR: dict[str, Shape] = {
    "ViT": {"depth": 6, "width": 192, "heads": 3, "mlp_width": 768},
    "BiT": {"layers": (2, 2, 2), "stem_width": 32},
    "hybrid": {
        "depth": 5,
        "width": 192,
        "heads": 3,
        "mlp_width": 768,
        "stem": {
            "layers": (2,),
            "stem_width": 32,
            "num_classes": 0,
            "preactivation": False,
            "same_padding": True,
        },
    },
}
"""The three for images of 32x32 on one GPU."""
