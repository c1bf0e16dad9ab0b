"""What a model is, as data: frozen configurations that refuse what can't be built. No torch.

Both kinds answer the same questions (sizes, widths, names of the outer layers), so that no caller has to ask
which kind it has; what a ResNet lacks (heads, tokens, frames) is None there.

Letters: B batch, N tokens, D width, H heads, L layers, P patch, C channels, K classes.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import isqrt, prod
from typing import Any, ClassVar, Literal, TypeVar, get_args

from vitreous.errors import ModelError, nearest
from vitreous.models.fields import at_least, not_negative, one_of, pair, shown, switches

Positions = Literal["learned", "sincos2d", "learned2d", "relative", "rope", "none"]
Pooling = Literal["cls", "gap", "map", "cls_gap"]
Activation = Literal["gelu", "gelu_tanh", "swiglu"]

MOST_PATCHES = 1 << 16
MOST_RELATIVE = 10_000
"""Most patches of a model with relative positions, whose table of offsets has a row and a column for each."""
MOST_STAGES = 16


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """A ResNet with group norm and weight-standardised convolutions: BiT, and the trunk of the hybrids."""

    kind: ClassVar[Literal["resnet"]] = "resnet"
    has_attention: ClassVar[bool] = False
    """Whether there are attention maps to look at, and patches that a mask can leave out."""
    heads: ClassVar[None] = None
    mlp_width: ClassVar[None] = None
    tokens: ClassVar[None] = None
    frames: ClassVar[None] = None

    layers: tuple[int, ...] = (3, 4, 6, 3)
    """Bottleneck blocks in each stage; an empty tuple leaves the root convolution and its pool."""
    width_factor: int = 1
    """Multiplies every channel count: the x4 of BiT-R152x4."""
    image_size: tuple[int, int] = (224, 224)
    """Height and width that figures of cost refer to; any size can be fed."""
    in_channels: int = 3
    num_classes: int = 1000
    stem_width: int = 64
    """Channels of the root convolution; stage i has 4 * 2**i times as many."""
    preactivation: bool = True
    """Norm and ReLU before each convolution (BiT), or after (the hybrids' trunk)."""
    same_padding: bool = False
    """Pad by input size, as TensorFlow's SAME (the hybrids), or by kernel size, the pool with zeros (BiT)."""
    std_eps: float = 1e-8
    """Keeps weight standardisation finite; see `std_eps_on`."""
    std_eps_on: Literal["variance", "deviation"] = "variance"
    """Whether `std_eps` is added under the root (PyTorch ports) or to the deviation (Google's JAX code)."""
    groups: int = 32
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if not isinstance(self.layers, list | tuple) or not all(type(count) is int for count in self.layers):
            raise ModelError(f"layers {shown(self.layers)} can't be used: give the blocks of each stage")
        object.__setattr__(self, "layers", tuple(self.layers))
        object.__setattr__(self, "image_size", pair(self.image_size, "image_size"))
        at_least(self, 1, "width_factor", "in_channels", "stem_width", "groups")
        at_least(self, 0, "num_classes")
        one_of(self, "std_eps_on", ("variance", "deviation"))
        not_negative(self, "std_eps", "norm_eps")
        switches(self, "preactivation", "same_padding")
        if len(self.layers) > MOST_STAGES:
            raise ModelError(f"layers has {len(self.layers):,} stages: give at most {MOST_STAGES}")
        if any(count < 1 for count in self.layers):
            raise ModelError(f"layers {self.layers} has an empty stage: give each stage at least one block")
        if self.stem_width * self.width_factor % self.groups:
            raise ModelError(
                f"stem width {self.channels[0]} is not a multiple of the {self.groups} groups of its norm"
            )

    @property
    def stride(self) -> int:
        """Pixels between two cells of the output: 4 after the root, doubled by every stage but the first."""
        return 4 * 2 ** max(0, len(self.layers) - 1)

    @property
    def channels(self) -> tuple[int, ...]:
        """Output channels of the root and of each stage."""
        stem = self.stem_width * self.width_factor
        return (stem, *(stem * 4 * 2**stage for stage in range(len(self.layers))))

    @property
    def step(self) -> tuple[int, int]:
        """Height and width of a cell of the output, in pixels of the image."""
        return self.stride, self.stride

    @property
    def grid(self) -> tuple[int, int]:
        """Cells of the output along height and width: a part of a cell counts as one."""
        return -(-self.image_size[0] // self.stride), -(-self.image_size[1] // self.stride)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input: channels, height, width."""
        return self.in_channels, *self.image_size

    @property
    def width(self) -> int:
        """Channels of the last stage."""
        return self.channels[-1]

    @property
    def pooled_width(self) -> int:
        """Width of the pooled vector."""
        return self.channels[-1]

    @property
    def feature_width(self) -> int:
        """Width of the vector that the head sees."""
        return self.channels[-1]

    @property
    def layer_count(self) -> int:
        """Layers as the papers count them: convolutions along the longest path, and the head (R50: 50)."""
        return 3 * sum(self.layers) + 2

    @property
    def first_convolution(self) -> str:
        """Name of the convolution that sees the pixels."""
        return "stem.conv"

    @property
    def classifiers(self) -> tuple[str, ...]:
        """Names of the layers that give logits."""
        return ("head.fc",)


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """A Vision Transformer; the defaults are ViT-B/16 of the paper."""

    kind: ClassVar[Literal["vit"]] = "vit"
    has_attention: ClassVar[bool] = True
    """Whether there are attention maps to look at, and patches that a mask can leave out."""

    image_size: tuple[int, int] = (224, 224)
    """Height and width of the input; one number means a square."""
    patch_size: tuple[int, int] = (16, 16)
    """Height and width of a patch, in pixels (in cells of the trunk's output for a hybrid)."""
    frames: int | None = None
    """Frames of a video clip (B, C, T, H, W); None for images."""
    tubelet: int = 1
    """Frames that one patch spans."""
    in_channels: int = 3
    num_classes: int = 1000
    """Rows of the head; 0 leaves it out, and the model returns the pooled features."""
    width: int = 768
    """D, the size of a token."""
    depth: int = 12
    """L, the number of blocks."""
    heads: int = 12
    mlp_width: int = 3072
    """Hidden units of the MLP (after gating for SwiGLU)."""
    positions: Positions = "learned"
    """learned: one vector per token; sincos2d: fixed; learned2d: a row and a column half; relative: by
    offset, in every attention; rope: rotary, in every attention; none: a bag of patches."""
    pooling: Pooling = "cls"
    """cls: the class token; gap: mean of the patches; map: attention pooling; cls_gap: both."""
    class_token: bool = True
    registers: int = 0
    """Extra tokens without a place or an output (arXiv 2309.16588)."""
    distilled: bool = False
    """DeiT's distillation token and its head (arXiv 2012.12877)."""
    positioned_prefix: int | None = None
    """How many of the leading tokens (class, distillation, registers) have a learned position; None: all."""
    activation: Activation = "gelu"
    """gelu: exact; gelu_tanh: JAX's approximation; swiglu: gated (DINOv2's giant)."""
    qkv_bias: bool = True
    layer_scale: float | None = None
    """Initial value of LayerScale (arXiv 2103.17239); None leaves it out."""
    pre_logits: int | None = None
    """Width of the tanh layer before the head (the paper's ImageNet-21k models); None leaves it out."""
    norm_after_pool: bool = False
    """Normalise the pooled vector (`fc_norm`, as MAE fine-tunes) instead of every token (`norm`)."""
    norm_eps: float = 1e-6
    embedding_dropout: float = 0.0
    """After the position embeddings are added."""
    attention_dropout: float = 0.0
    """On the attention probabilities."""
    dropout: float = 0.0
    """After every dense layer but qkv (section B.1 of the paper)."""
    drop_path: float = 0.0
    """Stochastic depth: the last block's rate; it rises linearly from 0 with depth."""
    patch_drop: float = 0.0
    """Share of its patches that an image is trained without, different ones each time (arXiv 2208.07220)."""
    stem: ResNetConfig | None = None
    """The trunk of a hybrid, whose feature map is cut into patches instead of the image."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair(self.image_size, "image_size"))
        object.__setattr__(self, "patch_size", pair(self.patch_size, "patch_size"))
        if isinstance(self.stem, Mapping):
            object.__setattr__(self, "stem", _build(ResNetConfig, self.stem))
        if not isinstance(self.stem, ResNetConfig | None):
            raise ModelError(f"stem {shown(self.stem)} can't be used: give a ResNet's configuration, or none")
        self._check_kinds()
        self._check_grid()
        self._check_width()
        self._check_tokens()

    def _check_kinds(self) -> None:
        """Refuse fields of the wrong kind, which may come from a file."""
        at_least(self, 1, "in_channels", "width", "depth", "heads", "mlp_width", "tubelet")
        at_least(self, 0, "num_classes", "registers")
        given = [name for name in ("frames", "pre_logits") if getattr(self, name) is not None]
        at_least(self, 1, *given)
        if self.positioned_prefix is not None:
            at_least(self, 0, "positioned_prefix")
        switches(self, "class_token", "distilled", "qkv_bias", "norm_after_pool")
        rates = ("embedding_dropout", "attention_dropout", "dropout", "drop_path", "patch_drop")
        scale = () if self.layer_scale is None else ("layer_scale",)
        not_negative(self, "norm_eps", *scale, *rates)
        one_of(self, "positions", get_args(Positions))
        one_of(self, "pooling", get_args(Pooling))
        one_of(self, "activation", get_args(Activation))
        for rate in rates:
            if not getattr(self, rate) < 1.0:
                raise ModelError(
                    f"{rate} {getattr(self, rate)} is not a probability: use 0.0 up to, not including, 1.0"
                )

    def _check_grid(self) -> None:
        if self.frames is not None:
            if self.frames % self.tubelet:
                raise ModelError(f"{self.frames} frames is not a multiple of the tubelet {self.tubelet}")
            if self.stem:
                raise ModelError("a hybrid's trunk takes images, not video: leave out frames, or stem")
            if self.positions not in ("learned", "none"):
                raise ModelError(
                    f"positions {self.positions} is for images: a video model takes learned or none"
                )
        elif self.tubelet != 1:
            raise ModelError(f"tubelet {self.tubelet} is for video: give frames too")
        sides = list(zip(self.image_size, self.step, strict=True))
        if any(side % step for side, step in sides):
            below = [max(side // step, 1) * step for side, step in sides]
            above = [-(-side // step) * step for side, step in sides]
            fits = " or ".join(dict.fromkeys(f"{height}x{width}" for height, width in (below, above)))
            of = f"patch size {_size(self.patch_size)}"
            of += f" times the trunk's stride {self.stem.stride}" if self.stem else ""
            size = f"{self.image_size[0]}x{self.image_size[1]}"
            raise ModelError(f"image size {size} is not a multiple of the {of}: use {fits}")
        most = MOST_RELATIVE if self.positions == "relative" else MOST_PATCHES
        if self.patches > most:
            raise ModelError(
                f"{self.patches:,} patches are more than {most:,}: use larger patches or smaller images"
            )

    def _check_width(self) -> None:
        if self.width % self.heads:
            small = [n for n in range(1, isqrt(self.width) + 1) if self.width % n == 0]
            fits = sorted({*small, *(self.width // n for n in small)})
            near = sorted(fits, key=lambda n: abs(n - self.heads))[:2]
            raise ModelError(
                f"width {self.width} is not a multiple of {self.heads} heads: "
                f"use {near[0]} or {near[-1]} heads, "
                f"or width {self.width - self.width % self.heads + self.heads}"
            )
        if self.positions == "sincos2d" and self.width % 4:
            raise ModelError(f"sincos2d positions need a width that is a multiple of 4, not {self.width}")
        if self.positions == "learned2d" and self.width % 2:
            raise ModelError(f"learned2d positions need an even width, not {self.width}")
        if self.positions == "rope" and (self.width // self.heads) % 4:
            raise ModelError(
                f"rope positions need a head width that is a multiple of 4, not {self.width // self.heads} "
                f"(width {self.width} over {self.heads} heads)"
            )

    def _check_tokens(self) -> None:
        if self.pooling in ("cls", "cls_gap") and not self.class_token:
            raise ModelError(
                f"pooling {self.pooling} needs the class token: use gap or map, or class_token=True"
            )
        if self.distilled and (self.pooling != "cls" or self.registers or self.pre_logits):
            raise ModelError("a distilled model pools its class token (cls), without registers or pre_logits")
        if self.patch_drop and self.positions == "relative":
            raise ModelError("patch_drop can't be used with relative positions, which need all the patches")
        if self.norm_after_pool and self.pooling != "gap":
            raise ModelError(f"norm_after_pool goes with pooling gap, not {self.pooling}")
        if self.positioned_prefix is not None and not 0 <= self.positioned_prefix <= self.prefix:
            raise ModelError(
                f"positioned_prefix {self.positioned_prefix} is out of range: it can be 0 to {self.prefix}"
            )

    @property
    def step(self) -> tuple[int, int]:
        """Height and width of a patch in pixels of the image."""
        stride = self.stem.stride if self.stem else 1
        return self.patch_size[0] * stride, self.patch_size[1] * stride

    @property
    def grid(self) -> tuple[int, int]:
        """Patches along height and width."""
        return self.image_size[0] // self.step[0], self.image_size[1] // self.step[1]

    @property
    def time_steps(self) -> int:
        """Patches along time; 1 for images."""
        return self.frames // self.tubelet if self.frames else 1

    @property
    def patches(self) -> int:
        """Patch tokens: N of the paper."""
        return self.time_steps * prod(self.grid)

    @property
    def trained_patches(self) -> int:
        """Patches of an image that a training step looks at."""
        return max(1, round((1.0 - self.patch_drop) * self.patches))

    @property
    def prefix(self) -> int:
        """Tokens before the patches: class, distillation, registers."""
        return self.class_token + self.distilled + self.registers

    @property
    def tokens(self) -> int:
        """Length of the sequence that the encoder sees."""
        return self.prefix + self.patches

    @property
    def placed_prefix(self) -> int:
        """Prefix tokens that have a learned position embedding."""
        return self.prefix if self.positioned_prefix is None else self.positioned_prefix

    @property
    def pooled_width(self) -> int:
        """Width of the pooled vector."""
        return self.width * (2 if self.pooling == "cls_gap" else 1)

    @property
    def feature_width(self) -> int:
        """Width of the vector that the head sees."""
        return self.pre_logits or self.pooled_width

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input: channels, frames of a clip, height, width."""
        clip = () if self.frames is None else (self.frames,)
        return self.in_channels, *clip, *self.image_size

    @property
    def layer_count(self) -> int:
        """Layers as the papers count them: the blocks."""
        return self.depth

    @property
    def first_convolution(self) -> str:
        """Name of the convolution that sees the pixels."""
        if self.stem is None:
            return "patch_embed.proj"
        return "patch_embed.backbone.stem.conv" if self.stem.layers else "patch_embed.backbone.conv"

    @property
    def classifiers(self) -> tuple[str, ...]:
        """Names of the layers that give logits."""
        return ("head", "head_dist") if self.distilled else ("head",)


Architecture = ViTConfig | ResNetConfig
Config = TypeVar("Config", ViTConfig, ResNetConfig)


def to_dict(config: Architecture) -> dict[str, Any]:
    """Return the configuration as plain JSON values, with its kind; `from_dict` reads it back."""
    return {"kind": config.kind, **asdict(config)}


def from_dict(values: Mapping[str, Any]) -> Architecture:
    """Build the configuration that `to_dict` wrote; unknown kinds and keys are refused."""
    values = dict(values)
    kind = values.pop("kind", None)
    if kind not in ("vit", "resnet"):
        raise ModelError(f"unknown kind of model {shown(kind)}: expected vit or resnet")
    return _build(ViTConfig, values) if kind == "vit" else _build(ResNetConfig, values)


def override(config: Architecture, overrides: Mapping[str, Any]) -> Architecture:
    """Return the configuration with some fields replaced; unknown ones are refused with the nearest names."""
    _known(type(config), overrides)
    return replace(config, **overrides)


def _build(kind: type[Config], values: Mapping[str, Any]) -> Config:
    _known(kind, values)
    try:
        return kind(**values)
    except TypeError as error:
        raise ModelError(f"not a {kind.__name__}: {error}") from None


def _known(kind: type[Architecture], values: Mapping[str, Any]) -> None:
    names = [field.name for field in fields(kind)]
    for name in values:
        if name not in names:
            raise ModelError(f"{kind.__name__} has no option {shown(name)}{nearest(name[:100], names)}")


def _size(size: tuple[int, int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"
