"""Checkpoints to test with: tensors that follow from the step, and whether a folder holds them."""

from pathlib import Path

import torch
from torch import Tensor

from vitreous.training.checkpoints import Checkpoints


def tensors_of(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "model.weight": torch.randn(64, 32, generator=generator),
        "optimizer.weight.step": torch.tensor(float(step)),
        "model.empty": torch.zeros(0, 4),
        "model.columns": torch.randn(8, 4, generator=generator).t(),  # not contiguous, as channels_last
        "counts": torch.arange(step, step + 3),
    }


def write(folder: Path, *steps: int, keep: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep=keep)
    for step in steps:
        checkpoints.save(step, tensors_of(step), {"step": step, "seed": 7, "loss": 0.1 + step})
    checkpoints.wait()
    return checkpoints


def assert_holds(checkpoints: Checkpoints, step: int) -> None:
    """The newest intact checkpoint is this one, bit for bit."""
    saved = checkpoints.newest()
    assert saved is not None and saved.step == step
    assert saved.values == {"step": step, "seed": 7, "loss": 0.1 + step}
    found = {name: torch.full_like(value, 99) for name, value in tensors_of(0).items()}
    checkpoints.load(saved, found)
    for name, value in tensors_of(step).items():
        assert torch.equal(found[name], value), name
