"""What the tests share: seeded randomness, and models with every parameter drawn at random."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing in the tests reaches the network

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test from the same random state, on one thread a worker."""
    torch.manual_seed(0)
    torch.set_num_threads(1)


def randomize(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw every parameter at random, so that no zero (head, class token) can hide a wrong connection."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
            is_scale = parameter.ndim == 1 and name.endswith(("weight", "gamma"))
            parameter.copy_(1 + 0.1 * noise if is_scale else noise / max(fan_in, 4) ** 0.5)
    return model.eval()
