"""A model with a ViT's parameter names that takes milliseconds, and its data."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 2 * width), "fc2": nn.Linear(2 * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp["fc2"](torch.tanh(self.mlp["fc1"](self.norm1(x))))


class Tiny(nn.Module):
    """The parameter names of a ViT, in miniature."""

    def __init__(self, width: int = 8, depth: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(1, width, 2, 2)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 5, width))
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed["proj"](images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(6, 1, 4, 4, generator=generator)
    return images, torch.randint(0, 3, (6,), generator=generator)
