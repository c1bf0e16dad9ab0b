"""The ResNet of BiT (arXiv 1912.11370) and, without its head, the trunk of the hybrid ViTs.

Group norm instead of batch norm, weight-standardised convolutions, and two orders of the same parts: norm and
ReLU before each convolution (BiT) or after it (the hybrids).
Letters: B batch, C channels, H height, W width, K classes.
"""

from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.architecture import ResNetConfig, pair
from vitreous.models.protocol import FeaturePooling, ImageModel, Size


class StdConv2d(nn.Conv2d):
    """A convolution whose filters have mean 0 and deviation 1 whenever they are used (arXiv 1903.10520)."""

    def __init__(self, config: ResNetConfig, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        same = config.same_padding and stride > 1
        super().__init__(inputs, outputs, kernel, stride, padding=0 if same else kernel // 2, bias=False)
        self.same = same
        self.eps, self.eps_on = config.std_eps, config.std_eps_on

    def forward(self, input: Tensor) -> Tensor:
        x = pad_same(input, self.kernel_size[0], self.stride[0], 0.0) if self.same else input
        return F.conv2d(x, self.standardized(), None, self.stride, self.padding)

    def standardized(self) -> Tensor:
        """Return the filters as they are used."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        deviation = variance.sqrt() + self.eps if self.eps_on == "deviation" else (variance + self.eps).sqrt()
        return (self.weight - mean) / deviation


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions around a shortcut, in either order of norm and convolution."""

    def __init__(self, config: ResNetConfig, inputs: int, outputs: int, stride: int, first: bool) -> None:
        super().__init__()
        inner = outputs // 4
        before = config.preactivation
        self.before = before
        self.downsample = Shortcut(config, inputs, outputs, stride) if first else None
        self.norm1 = group_norm(config, inputs if before else inner)
        self.conv1 = StdConv2d(config, inputs, inner, 1)
        self.norm2 = group_norm(config, inner)
        self.conv2 = StdConv2d(config, inner, inner, 3, stride)
        self.norm3 = group_norm(config, inner if before else outputs)
        self.conv3 = StdConv2d(config, inner, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            active = F.relu(self.norm1(x))
            shortcut = x if self.downsample is None else self.downsample(active)
            x = self.conv1(active)
            x = self.conv2(F.relu(self.norm2(x)))
            return self.conv3(F.relu(self.norm3(x))) + shortcut
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return F.relu(self.norm3(self.conv3(x)) + shortcut)


class Shortcut(nn.Module):
    """The 1x1 convolution of a stage's first shortcut; normalised where norms follow convolutions."""

    def __init__(self, config: ResNetConfig, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = StdConv2d(config, inputs, outputs, 1, stride)
        self.norm = nn.Identity() if config.preactivation else group_norm(config, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Stem(nn.Module):
    """The root: a 7x7 convolution and a 3x3 max pool, each of stride 2."""

    def __init__(self, config: ResNetConfig, in_channels: int) -> None:
        super().__init__()
        self.same = config.same_padding
        self.conv = StdConv2d(config, in_channels, config.channels[0], 7, 2)
        self.norm = None if config.preactivation else group_norm(config, config.channels[0])

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W) → (B, 64, H/4, W/4)
        x = self.conv(x)
        if self.norm is not None:
            x = F.relu(self.norm(x))
        # BiT pads its pool with zeros, not with -inf: it matters where a border is all negative.
        x = pad_same(x, 3, 2, float("-inf")) if self.same else F.pad(x, (1, 1, 1, 1))
        return F.max_pool2d(x, 3, 2)


class Trunk(nn.Module):
    """Root and stages, without norm and head: the part that a hybrid cuts into patches."""

    def __init__(self, config: ResNetConfig, in_channels: int) -> None:
        super().__init__()
        self.stem = Stem(config, in_channels)
        self.stages = nn.Sequential()
        for stage, (depth, (inputs, outputs)) in enumerate(
            zip(config.layers, pairwise(config.channels), strict=True)
        ):
            stride = 1 if stage == 0 else 2
            blocks = [Bottleneck(config, inputs, outputs, stride, first=True)]
            blocks += [Bottleneck(config, outputs, outputs, 1, first=False) for _ in range(depth - 1)]
            self.stages.append(nn.Sequential())
            self.stages[-1].add_module("blocks", nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W) → (B, C', H/stride, W/stride)
        return self.stages(self.stem(x))


class Head(nn.Module):
    """The linear head, kept as a 1x1 convolution because published weights are."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.fc = classifier(config)

    def forward(self, x: Tensor) -> Tensor:  # (B, C') → (B, K)
        return x if self.fc is None else self.fc(x[:, :, None, None]).flatten(1)


def classifier(config: ResNetConfig) -> nn.Conv2d | None:
    """Return a new layer of zeros from pooled features to logits; None where there are no classes."""
    if not config.num_classes:
        return None
    layer = nn.Conv2d(config.feature_width, config.num_classes, 1)
    nn.init.zeros_(layer.weight)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def trunk(config: ResNetConfig, in_channels: int) -> Trunk | Stem:
    """Return what a hybrid cuts into patches; with no stages that is the root alone (R+ViT-Ti/16)."""
    return Trunk(config, in_channels) if config.layers else Stem(config, in_channels)


class ResNet(Trunk, ImageModel):
    """BiT: the trunk, a last norm, global average pooling and a linear head."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config, config.in_channels)
        self.config = config
        self.norm = group_norm(config, config.channels[-1]) if config.preactivation else None
        self.head = Head(config)
        initialize(self)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, K)
        return self.forward_head(self.forward_features(x, mask), mask)

    def forward_features(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the last feature map (B, C', H/32, W/32), normalised."""
        self._check_input(x, mask)
        x = super().forward(x)
        return x if self.norm is None else F.relu(self.norm(x))

    def forward_intermediates(
        self, x: Tensor, layers: list[int] | None = None, mask: Tensor | None = None
    ) -> list[Tensor]:
        """Return the feature maps after the chosen stages (all by default)."""
        self._check_input(x, mask)
        x, maps = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps if layers is None else [maps[layer] for layer in layers]

    def pool(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean over the feature map (B, C')."""
        return features.mean(dim=(2, 3))

    def forward_head(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits (B, K), or pooled features where the model has no head."""
        return self.head(self.pool(features))

    def encode(
        self, x: Tensor, mask: Tensor | None = None, *, layer: int = -1, pooling: FeaturePooling = "model"
    ) -> Tensor:
        """Return the pooled feature map (B, C'), the only one vector per image that a ResNet has."""
        if layer != -1 or pooling != "model":
            raise ModelError("a ResNet's features are its own pooled map: leave out layer and pooling")
        return self.pool(self.forward_features(x, mask))

    def feature_maps(self, features: Tensor) -> Tensor:
        """Return the features as they are: they are maps."""
        return features

    def fresh_classifier(self) -> nn.Module | None:
        """Return a new head of zeros; None where there are no classes."""
        return classifier(self.config)

    def set_image_size(self, image_size: Size) -> None:
        """Record the size that figures of cost refer to: a convolutional model takes any."""
        self.config = replace(self.config, image_size=pair(image_size, "image_size"))

    def set_patch_size(self, patch_size: Size, image_size: Size | None = None) -> None:
        """Refuse: there are no patches."""
        raise ModelError(f"patch size {patch_size} is for a ViT, a ResNet has no patches: leave it out")

    def _check_input(self, x: Tensor, mask: Tensor | None) -> None:
        if x.ndim != 4 or x.shape[1] != self.config.in_channels:
            raise ModelError(
                f"input of shape {tuple(x.shape)} does not fit: expected (B, {self.config.in_channels}, H, W)"
            )
        if mask is not None:
            raise ModelError(
                "a ResNet can't leave out padding (resize pad): use resize cover or exact, or a ViT"
            )


def initialize(model: nn.Module) -> None:
    """Draw convolutions from He's normal distribution, set norms to the identity and a head to zero."""
    for name, module in model.named_modules():
        if name == "head.fc" and isinstance(module, nn.Conv2d):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        elif isinstance(module, StdConv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.GroupNorm):
            module.reset_parameters()


def group_norm(config: ResNetConfig, channels: int) -> nn.GroupNorm:
    """Return the norm over `config.groups` groups of channels."""
    return nn.GroupNorm(config.groups, channels, config.norm_eps)


def pad_same(x: Tensor, kernel: int, stride: int, value: float) -> Tensor:
    """Pad as TensorFlow's SAME: ceil(size / stride) cells come out, an odd pixel goes right and below."""
    pads: list[int] = []
    for size in (x.shape[-1], x.shape[-2]):
        missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [missing // 2, missing - missing // 2]
    return F.pad(x, pads, value=value)
