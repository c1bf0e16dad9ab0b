"""What these tests share: no seconds are waited for, and nothing is measured that no test looks at."""

from pathlib import Path

import pytest
import torch

from vitreous import parallel
from vitreous.bench import measure
from vitreous.bench.cases import Case, Peer
from vitreous.bench.peers import Peers
from vitreous.bench.place import Place

RATE = 1e12
"""The ceiling that every test sees."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a round be one call, and matrix products be as fast as we say."""
    monkeypatch.setattr(measure, "SECONDS", 0)
    monkeypatch.setattr(parallel, "measure_matrix_rate", lambda *_, **__: RATE)


def place_in(folder: Path, *peers: Peer) -> Place:
    """Return a place on the CPU."""
    world = parallel.World(device=torch.device("cpu"))
    return Place(world=world, peers=Peers(peers), scratch=folder, workers=0)


def tiny_case(job: str, **changes: object) -> Case:
    """Return a case of the smallest variant on images of four patches."""
    about = {"job": job, "model": "vit_tiny_patch16_224", "image_size": (32, 32), "batch_size": 2}
    return Case(**{**about, "precision": "float32", **changes})
