"""What the tests share: seeded randomness, and models with every parameter drawn at random."""

import functools
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

if TYPE_CHECKING:
    from vitreous.predict import Classifier

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing in the tests reaches the network

FIXTURES = Path(__file__).parent / "fixtures"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules that have slow tests, so that at the end no worker waits for the other."""
    slow = {item.nodeid.partition("::")[0] for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in slow)


def pytest_collection_finish() -> None:
    """Let Python's search for garbage pass over what was imported: a million objects that stay."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # libraries look for leaks of theirs at the end


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test from the same random state, on one thread a worker."""
    torch.default_generator.manual_seed(0)  # the CPU's alone: `torch.manual_seed` looks for every device
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def one_registry() -> Iterator[None]:
    """Let the exports to ONNX of a process read the table of operators once: it takes most of a second."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib))
        )
        yield


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


def digits_files(folder: Path, split: str = "test", count: int | None = None) -> list[Path]:
    """Write real digits as PNG files, each named by its number and class."""
    from vitreous.data import open_data

    part = open_data("digits").splits[split]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for row in range(len(part) if count is None else count):
        paths.append(folder / f"{row:04d}-{part.targets[row]}.png")
        part.read(row, 1).save(paths[-1])
    return paths


def train_digits(steps: int = 250, **changes: Any) -> "Classifier":
    """Train a tiny model on the digits in seconds: real labels, real confidence."""
    from vitreous.config import Preprocessing
    from vitreous.data import open_data
    from vitreous.data.augment import evaluation_transform
    from vitreous.models.architecture import ViTConfig
    from vitreous.models.zoo import build
    from vitreous.predict import Classifier

    torch.manual_seed(0)
    torch.set_num_threads(1)  # two busy cores that wait for each other make seconds into minutes
    shape: dict[str, Any] = {"image_size": (8, 8), "patch_size": (2, 2), "width": 32, "depth": 2, "heads": 4}
    shape |= {"mlp_width": 64, "in_channels": 1, "num_classes": 10} | changes
    config = ViTConfig(**shape)
    size = config.image_size
    resize = "none" if size == (8, 8) else "exact"
    preprocessing = Preprocessing(image_size=size, resize=resize, mean=(0.3,), std=(0.35,))
    transform = evaluation_transform(preprocessing, config.step)
    data = open_data("digits")
    train = data.splits["train"]
    images = torch.stack([transform(train.read(row, 1)) for row in range(len(train))])
    targets = torch.from_numpy(train.targets)
    model = build(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(len(images), (64,))
        loss = nn.functional.cross_entropy(model(images[rows]), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return Classifier(model.eval(), transform, list(data.labels), {})


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two digits in one picture, halved in width: data with several labels an image, as .npz."""
    from vitreous.data import open_data

    data, arrays = open_data("digits"), {}
    for split, count in (("train", 600), ("test", 300)):
        whole, generator = data.splits[split], np.random.default_rng(0)
        rows = generator.integers(0, len(whole), (count, 2))
        pixels = np.stack([np.asarray(whole.read(row, 1)) for row in range(len(whole))])[rows]
        halves = pixels.reshape(count, 2, 8, 4, 2).max(-1)
        arrays[f"x_{split}"] = np.concatenate([halves[:, 0], halves[:, 1]], axis=2)[..., None]
        hot = np.zeros((count, 10), np.uint8)
        np.put_along_axis(hot, whole.targets[rows], 1, axis=1)
        arrays[f"y_{split}"] = hot
    path = tmp_path_factory.mktemp("pairs") / "pairs.npz"
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    return path


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose every figure, but draw an empty one: for tests of numbers and words."""
    from matplotlib.figure import Figure

    from vitreous.plot import style

    save = style._save
    monkeypatch.setattr(style, "_save", lambda _, *rest, **options: save(Figure((1, 1)), *rest, **options))


@pytest.fixture(scope="session")
def digits() -> "Classifier":
    """A classifier that reads digits."""
    return train_digits()


@pytest.fixture(scope="session")
def digits_file(digits: "Classifier", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That classifier in a sealed file."""
    return digits.save(tmp_path_factory.mktemp("digits") / "digits.safetensors")
