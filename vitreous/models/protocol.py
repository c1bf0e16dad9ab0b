"""What every model of the family can do: callers use these methods and never ask which kind they have.

`VisionTransformer` and `ResNet` fill them in; `architecture` has the same for their configurations. Letters:
B batch, N patches, D width, K classes, (h, w) grid. Features are what the encoder gives: tokens of a ViT
(B, prefix + N, D), the feature map of a ResNet (B, D, h, w).
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

FeaturePooling = Literal["model", "cls", "gap", "cls_gap"]
Size = int | tuple[int, int]


class ImageModel(nn.Module, ABC):
    """Images in, class scores or one vector per image out; `config` says everything about its shape.

    A mask (B, N) is False for patches to ignore, which only pad an image; None: all count.
    """

    merge: int = 0
    """Patches that are merged in each block: see `merge.py`."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, K)
        return self.forward_head(self.forward_features(x, mask), mask)

    @abstractmethod
    def forward_features(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the encoder's features, normalised."""

    @abstractmethod
    def forward_intermediates(
        self, x: Tensor, layers: list[int] | None = None, mask: Tensor | None = None
    ) -> list[Tensor]:
        """Return the features after the chosen layers: blocks of a ViT, stages of a ResNet; None: all."""

    @abstractmethod
    def pool(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return one vector per image (B, D), the model's own way."""

    @abstractmethod
    def forward_head(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits (B, K), or the pooled features of a model without classes."""

    @abstractmethod
    def encode(
        self, x: Tensor, mask: Tensor | None = None, *, layer: int = -1, pooling: FeaturePooling = "model"
    ) -> Tensor:
        """Return one vector per image (B, D): the features after a layer, pooled; what probes learn from."""

    @abstractmethod
    def feature_maps(self, features: Tensor) -> Tensor:
        """Return features by place (B, D, h, w): tokens without a place are left out, frames averaged."""

    @abstractmethod
    def fresh_classifier(self) -> nn.Module | None:
        """Return a new head of zeros for `config.num_classes`, on no particular device."""

    @torch.no_grad()
    def reset_classifier(self, num_classes: int) -> None:
        """Give the model a fresh head of zeros (section 3.2) for this many classes, as timm does; 0: none."""
        self.config: Any = replace(self.config, num_classes=num_classes)
        like = next(self.parameters())
        for path in self.config.classifiers:
            owner, _, name = path.rpartition(".")
            fresh = self.fresh_classifier()
            if fresh is not None:
                fresh.to(device=like.device, dtype=like.dtype)
            setattr(self.get_submodule(owner), name, fresh)

    @abstractmethod
    def set_image_size(self, image_size: Size) -> None:
        """Take images of another size from now on."""

    @abstractmethod
    def set_patch_size(self, patch_size: Size, image_size: Size | None = None) -> None:
        """Cut images, of this size if given, into other patches from now on."""

    def build_codes(self) -> None:
        """Compute what follows from the grid and is in no checkpoint: nothing, unless there are positions."""
