"""Data of a few kilobytes, and a run that nothing happens to: the measure of all others."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.runs import run
from vitreous.training import Result


def stripes(path: Path, seed: int = 0, **counts: int) -> str:
    """Write three classes of stripes, so that a few steps are enough to learn something."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {"class_names": np.array(["rows", "columns", "flat"])}
    for name, count in counts.items():
        labels = rng.integers(0, 3, count)
        images = rng.integers(0, 120, (count, 8, 8, 1))
        images[labels == 0, ::2] += 120
        images[labels == 1, :, ::2] += 120
        arrays |= {f"{name}_images": images.astype(np.uint8), f"{name}_labels": labels}
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    return str(path)


@pytest.fixture(autouse=True)
def no_drawing(blank_figures: None) -> None:
    """What figures show is tested with the reports."""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """96 images to train on, 30 to choose with, 31 to measure on."""
    return stripes(tmp_path_factory.mktemp("data") / "stripes.npz", train=96, val=30, test=31)


@pytest.fixture(scope="session")
def undisturbed(data: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run of the options of `runs.py`, from its start to its end."""
    torch.set_num_threads(1)
    return run(data, tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.fixture(scope="session")
def pictures(data: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same images as files, which loader workers read."""
    root = tmp_path_factory.mktemp("pictures")
    with np.load(data) as arrays:
        for name in ("train", "val", "test"):
            for i, (pixels, label) in enumerate(
                zip(arrays[f"{name}_images"], arrays[f"{name}_labels"], strict=True)
            ):
                path = root / name / str(arrays["class_names"][label]) / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels[..., 0]).save(path)
    return str(root)
