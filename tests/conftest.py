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


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sealed classifier of the bundled digits, trained for a few seconds by a plain loop."""
    from vitreous.config import Preprocessing
    from vitreous.data import Loader, open_data
    from vitreous.data.augment import evaluation_transform
    from vitreous.models.zoo import create_model
    from vitreous.predict import Classifier

    torch.manual_seed(0)
    data = open_data("digits")
    preprocessing = Preprocessing(image_size=(8, 8), resize="none", mean=(0.5,), std=(0.5,))
    shape = {"image_size": 8, "patch_size": 2, "width": 48, "depth": 2, "heads": 3, "mlp_width": 96}
    model = create_model("ViT-B/16", in_channels=1, num_classes=10, **shape)
    loader = Loader(data.splits["train"], preprocessing=preprocessing, batch_size=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(12):
        for batch in loader.epoch(epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch.images), batch.targets).backward()
            optimizer.step()
    transform = evaluation_transform(preprocessing, 2)
    path = tmp_path_factory.mktemp("digits") / "digits.safetensors"
    return Classifier(model.eval(), transform, data.labels).save(path)
