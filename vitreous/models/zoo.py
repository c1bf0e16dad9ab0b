"""Every variant as one table: name → configuration. No torch until a model is built.

Names are timm's; the paper's (`ViT-B/16`) are aliases. A new variant is a new row. `create_model` builds any
of them, with any field of its configuration replaced.
"""

from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, NamedTuple

from vitreous.config import Initialization
from vitreous.errors import ModelError, nearest
from vitreous.models import cost
from vitreous.models.architecture import Architecture, ResNetConfig, ViTConfig, override

if TYPE_CHECKING:
    from vitreous.models.resnet import ResNet
    from vitreous.models.vit import VisionTransformer


class Size(NamedTuple):
    """A row of table 1 of the paper."""

    letter: str
    depth: int
    width: int
    mlp_width: int
    heads: int


SIZES = {
    #                  L    D     MLP   heads
    "tiny": Size("Ti", 12, 192, 768, 3),  # DeiT, arXiv 2012.12877
    "small": Size("S", 12, 384, 1536, 6),
    "base": Size("B", 12, 768, 3072, 12),  # the paper's table 1
    "large": Size("L", 24, 1024, 4096, 16),
    "huge": Size("H", 32, 1280, 5120, 16),
    "giant": Size("g", 40, 1408, 6144, 16),  # Zhai et al., arXiv 2106.04560
    "gigantic": Size("G", 48, 1664, 8192, 16),
}

# size, patch, image sizes; the first one has the alias
PLAIN = [
    ("tiny", 16, (224, 384)),
    ("small", 32, (224, 384)),
    ("small", 16, (224, 384)),
    ("small", 8, (224,)),
    ("base", 32, (224, 384)),
    ("base", 16, (224, 384)),
    ("base", 8, (224,)),
    ("large", 32, (224, 384)),
    ("large", 16, (224, 384)),
    ("large", 14, (224,)),
    ("huge", 14, (224,)),
    ("giant", 14, (224,)),
    ("gigantic", 14, (224,)),
]

# name, alias, size, trunk's stages, patch in cells of the trunk's output
HYBRIDS = [
    ("vit_tiny_r_s16_p8", "R+ViT-Ti/16", "tiny", (), 8),
    ("vit_small_r26_s32", "R26+ViT-S/32", "small", (2, 2, 2, 2), 1),
    ("vit_base_r26_s32", "R26+ViT-B/32", "base", (2, 2, 2, 2), 1),
    ("vit_base_r50_s16", "R50+ViT-B/16", "base", (3, 4, 9), 1),
    ("vit_large_r50_s32", "R50+ViT-L/32", "large", (3, 4, 6, 3), 1),
]

# layers in total: blocks in each stage
RESNETS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def _vit(size: str, patch: int, image: int, **changes: Any) -> ViTConfig:
    _, depth, width, mlp_width, heads = SIZES[size]
    shape: dict[str, Any] = {"depth": depth, "width": width, "mlp_width": mlp_width, "heads": heads}
    return ViTConfig(image_size=(image, image), patch_size=(patch, patch), **(shape | changes))


def _variants() -> dict[str, Architecture]:
    found: dict[str, Architecture] = {}
    for size, patch, images in PLAIN:
        for image in images:
            found[f"vit_{size}_patch{patch}_{image}"] = _vit(size, patch, image)
    for name, _, size, layers, patch in HYBRIDS:
        trunk = ResNetConfig(layers=layers, num_classes=0, preactivation=False, same_padding=True)
        for image in (224,) if name == "vit_base_r26_s32" else (224, 384):
            found[f"{name}_{image}"] = _vit(size, patch, image, stem=trunk)
    for depth, layers in RESNETS.items():
        for factor in (1, 2, 3, 4):
            found[f"resnetv2_{depth}x{factor}_bit"] = ResNetConfig(layers=layers, width_factor=factor)
    for distilled in ("", "_distilled"):
        for size, images in (("tiny", (224,)), ("small", (224,)), ("base", (224, 384))):
            for image in images:
                found[f"deit_{size}{distilled}_patch16_{image}"] = _vit(
                    size, 16, image, distilled=bool(distilled)
                )
    for size, patch in (("small", 16), ("base", 16), ("large", 16), ("huge", 14)):
        for image in (224,) if size == "huge" else (224, 384):
            deit3 = {"layer_scale": 1e-6, "positioned_prefix": 0}
            found[f"deit3_{size}_patch{patch}_{image}"] = _vit(size, patch, image, **deit3)
    for size in ("small", "base", "large", "giant"):
        # DINOv2's giant is wider than ViT-g, and gated
        giant = (
            {"width": 1536, "mlp_width": 4096, "heads": 24, "activation": "swiglu"} if size == "giant" else {}
        )
        dino: dict[str, Any] = {"layer_scale": 1e-5, "num_classes": 0, **giant}
        found[f"vit_{size}_patch14_dinov2"] = _vit(size, 14, 518, **dino)
        found[f"vit_{size}_patch14_reg4_dinov2"] = _vit(
            size, 14, 518, registers=4, positioned_prefix=0, **dino
        )
    return found


def _aliases() -> dict[str, str]:
    found = {
        f"ViT-{SIZES[size].letter}/{patch}": f"vit_{size}_patch{patch}_{images[0]}"
        for size, patch, images in PLAIN
    }
    found |= {alias: f"{name}_224" for name, alias, *_ in HYBRIDS}
    found |= {
        f"BiT-R{depth}x{factor}": f"resnetv2_{depth}x{factor}_bit"
        for depth in RESNETS
        for factor in (1, 2, 3, 4)
    }
    for size in ("tiny", "small", "base"):
        found[f"DeiT-{SIZES[size].letter}/16"] = f"deit_{size}_patch16_224"
    for size in ("small", "base", "large", "giant"):
        found[f"DINOv2-{SIZES[size].letter}/14"] = f"vit_{size}_patch14_dinov2"
    return found


VARIANTS = _variants()
ALIASES = _aliases()


def list_models(pattern: str = "") -> list[str]:
    """Return the variants whose name or alias matches: a part of the name, or a shell pattern."""
    names = {name: [name] for name in VARIANTS}
    for alias, name in ALIASES.items():
        names[name].append(alias)
    if not pattern:
        return list(VARIANTS)
    exact = [name for name, known in names.items() if any(pattern.lower() == each.lower() for each in known)]
    if "/" in pattern or "+" in pattern:  # a whole name of the paper: ViT-B/16 is not R50+ViT-B/16
        exact = exact or [name for name, known in names.items() if pattern in known]
        if exact:
            return exact
    wild = pattern.lower() if any(sign in pattern for sign in "*?[") else f"*{pattern.lower()}*"
    return [name for name, known in names.items() if any(fnmatch(each.lower(), wild) for each in known)]


def get_config(name: str, **overrides: Any) -> Architecture:
    """Return the configuration of a variant, by timm's name or the paper's, with fields replaced."""
    variant = ALIASES.get(name, name)
    if variant not in VARIANTS:
        raise unknown(name)
    return override(VARIANTS[variant], overrides)


def create_model(name: str, *, pretrained: bool = False, **overrides: Any) -> "VisionTransformer | ResNet":
    """Build a freshly initialised model: a variant, with any field of its configuration replaced."""
    if pretrained:
        raise ModelError(
            f"create_model({name!r}) makes fresh weights; trained ones come with their preprocessing and "
            'class names: vitreous.load("tiny", num_classes=7).model, which is bundled, or '
            'vitreous.load("hf://google/vit-base-patch16-224", num_classes=7).model'
        )
    return build(get_config(name, **overrides))


def build(config: Architecture, initialization: Initialization = "paper") -> "VisionTransformer | ResNet":
    """Build the model that a configuration describes; only ViTs can start in another way than the paper's."""
    from vitreous.models.initialize import OTHERS
    from vitreous.models.resnet import ResNet
    from vitreous.models.vit import VisionTransformer

    if config.kind != "vit":
        return ResNet(config)
    model = VisionTransformer(config)
    if initialization != "paper":
        OTHERS[initialization](model)
    return model


def describe(name: str) -> dict[str, str | int | float | None]:
    """Return a variant's row of `vitreous models`."""
    config = get_config(name)
    return {
        "name": name,
        "alias": next((alias for alias, known in ALIASES.items() if known == name), None),
        "layers": config.layer_count,
        "width": config.width,
        "mlp": config.mlp_width,
        "heads": config.heads,
        "parameters": cost.parameters(config),
        "gflops": round(cost.flops(config) / 1e9, 2),
        "tokens": config.tokens,
        "image_size": f"{config.image_size[0]}x{config.image_size[1]}",
    }


def unknown(name: str) -> ModelError:
    """Return the error for a variant that does not exist, with the nearest names."""
    return ModelError(
        f"unknown model {name!r}{nearest(name, [*VARIANTS, *ALIASES])} (`vitreous models` lists all)"
    )
