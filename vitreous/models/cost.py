"""What a model costs, computed from its configuration alone: parameters, and multiply-adds. No torch.

One FLOP here is one multiply-add, as in DeiT's and torchvision's tables (ViT-B/16: 17.6 GFLOPs). As there,
matrix products and convolutions are counted; norms, activations and softmax are left out.
"""

from functools import singledispatch
from itertools import pairwise

from vitreous.models.architecture import Architecture, ResNetConfig, ViTConfig


@singledispatch
def parameters(config: Architecture) -> int:
    """Return the number of parameters."""
    raise TypeError(f"no count for {type(config).__name__}")


@singledispatch
def flops(config: Architecture) -> int:
    """Return the multiply-adds of one forward pass of one image."""
    raise TypeError(f"no count for {type(config).__name__}")


def training_flops(config: Architecture) -> int:
    """Return the multiply-adds of one forward pass of one image in training, which may drop patches."""
    if config.kind == "vit" and config.patch_drop:
        dropped = config.patches - config.trained_patches
        return (
            flops(config)
            - _encoder_flops(config, config.tokens)
            + _encoder_flops(config, config.tokens - dropped)
        )
    return flops(config)


@parameters.register
def _vit_parameters(c: ViTConfig) -> int:
    D = c.width
    norm = 2 * D
    mlp = _dense(D, c.mlp_width * (2 if c.activation == "swiglu" else 1)) + _dense(c.mlp_width, D)
    offsets = (2 * c.grid[0] - 1) * (2 * c.grid[1] - 1) + 3 if c.positions == "relative" else 0
    block = 2 * norm + _dense(D, 3 * D, c.qkv_bias) + _dense(D, D) + mlp + offsets * D // c.heads
    block += 2 * D if c.layer_scale is not None else 0

    total = c.prefix * D + c.depth * block + norm
    total += {"learned": (c.placed_prefix + c.patches) * D, "learned2d": sum(c.grid) * D // 2}.get(
        c.positions, 0
    )
    total += _dense(_patch_inputs(c), D)
    if c.stem is not None:
        total += _trunk_parameters(c.stem, c.in_channels)
    if c.pooling == "map":
        total += D + _dense(D, D, c.qkv_bias) + _dense(D, 2 * D, c.qkv_bias) + _dense(D, D) + norm + mlp
    if c.pre_logits:
        total += _dense(c.pooled_width, c.pre_logits)
    return total + (1 + c.distilled) * (_dense(c.feature_width, c.num_classes) if c.num_classes else 0)


@flops.register
def _vit_flops(c: ViTConfig) -> int:
    D = c.width
    total = _encoder_flops(c, c.tokens)
    total += c.patches * _patch_inputs(c) * D
    if c.stem is not None:
        total += _trunk_flops(c.stem, c.image_size, c.in_channels)
    if c.pooling == "map":
        total += 2 * D * D + c.patches * 2 * D * D + 2 * c.patches * D + _mlp_flops(c)
    if c.pre_logits:
        total += c.pooled_width * c.pre_logits
    return total + (1 + c.distilled) * c.feature_width * c.num_classes


def _encoder_flops(c: ViTConfig, N: int) -> int:
    """Return the multiply-adds of the blocks, for N tokens."""
    D = c.width
    attention = 2 * N * N * D
    if c.positions == "relative":
        attention += N * ((2 * c.grid[0] - 1) * (2 * c.grid[1] - 1) + 3) * D
    return c.depth * (N * (4 * D * D + _mlp_flops(c)) + attention)


def _mlp_flops(c: ViTConfig) -> int:
    return c.width * c.mlp_width * (3 if c.activation == "swiglu" else 2)


def _patch_inputs(c: ViTConfig) -> int:
    channels = c.stem.channels[-1] if c.stem else c.in_channels
    return channels * c.tubelet * c.patch_size[0] * c.patch_size[1]


@parameters.register
def _resnet_parameters(c: ResNetConfig) -> int:
    total = _trunk_parameters(c, c.in_channels) + (2 * c.channels[-1] if c.preactivation else 0)
    return total + (_dense(c.channels[-1], c.num_classes) if c.num_classes else 0)


@flops.register
def _resnet_flops(c: ResNetConfig) -> int:
    return _trunk_flops(c, c.image_size, c.in_channels) + c.channels[-1] * c.num_classes


def _trunk_parameters(c: ResNetConfig, in_channels: int) -> int:
    total = sum(inputs * outputs * kernel**2 for inputs, outputs, kernel, _ in _convolutions(c, in_channels))
    total += 0 if c.preactivation else 2 * c.channels[0]
    for depth, (inputs, outputs) in zip(c.layers, pairwise(c.channels), strict=True):
        inner = outputs // 4
        first, rest = (inputs, outputs) if c.preactivation else (inner, inner)
        last = inner if c.preactivation else outputs
        total += 2 * (first + (depth - 1) * rest + depth * (inner + last))
        total += 0 if c.preactivation else 2 * outputs
    return total


def _trunk_flops(c: ResNetConfig, image_size: tuple[int, int], in_channels: int) -> int:
    height, width = image_size
    return sum(
        inputs * outputs * kernel**2 * -(-height // stride) * -(-width // stride)
        for inputs, outputs, kernel, stride in _convolutions(c, in_channels)
    )


def _convolutions(c: ResNetConfig, in_channels: int) -> list[tuple[int, int, int, int]]:
    """Return inputs, outputs, kernel and output stride of every convolution."""
    found = [(in_channels, c.channels[0], 7, 2)]
    for stage, (depth, (inputs, outputs)) in enumerate(zip(c.layers, pairwise(c.channels), strict=True)):
        inner, stride = outputs // 4, 4 * 2**stage
        found.append((inputs, outputs, 1, stride))
        for block in range(depth):
            # A stage's stride is that of its first 3x3 convolution: the 1x1 before it sees the larger map.
            entering = stride // 2 if block == 0 and stage > 0 else stride
            found.append((inputs if block == 0 else outputs, inner, 1, entering))
            found += [(inner, inner, 3, stride), (inner, outputs, 1, stride)]
    return found


def _dense(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)
