"""What computes in the model's place: torch in bf16, or an exported graph in onnxruntime or OpenVINO."""

import threading
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from vitreous import parallel
from vitreous.export.formats import Format
from vitreous.export.graph import Inputs
from vitreous.export.opened import Opened
from vitreous.models.weights import Model


class Engine(Protocol):
    """What computes in the model's place; it holds the weights as they were when it was made."""

    @property
    def name(self) -> str:
        """The runtime and its version."""
        ...

    @property
    def precision(self) -> str:
        """What it computes in."""
        ...

    def logits(self, images: Tensor, mask: Tensor | None) -> Tensor:
        """Return the logits (B, K) of normalised images; `mask` is False for padding."""
        ...


class HalfTorch:
    """The model itself with its matrix products in bf16; weights, norms and sums stay float32."""

    precision = "bf16"

    def __init__(self, model: Model) -> None:
        self.model, self.name = model, f"torch {torch.__version__}"

    def logits(self, images: Tensor, mask: Tensor | None) -> Tensor:
        """Return the logits of a batch."""
        with parallel.autocast(images.device, "bf16"):
            return self.model(images, mask)


class Exported:
    """An exported file, on as many threads as torch would take where it is called.

    So `OMP_NUM_THREADS`, `torch.set_num_threads` and the server's own choice hold for every runtime."""

    def __init__(self, form: Format, path: Path, precision: str) -> None:
        self.form, self.path, self.precision = form, path, precision
        self.by_threads: dict[int, Opened] = {}
        self.lock = threading.Lock()

    @property
    def name(self) -> str:
        """The runtime and its version."""
        return self.opened().runtime

    def opened(self) -> Opened:
        """Return the file opened by its runtime, on as many threads as the caller's torch."""
        threads = torch.get_num_threads()
        with self.lock:
            if threads not in self.by_threads:
                self.by_threads[threads] = self.form.open(self.path, threads)
            return self.by_threads[threads]

    def logits(self, images: Tensor, mask: Tensor | None) -> Tensor:
        """Return the logits of a batch."""
        opened = self.opened()
        found = opened.run(Inputs(images.cpu().numpy(), sizes(opened.facts, mask, len(images))))
        return torch.from_numpy(found.logits)


def sizes(facts: dict[str, Any], mask: Tensor | None, count: int) -> np.ndarray | None:
    """Return the heights and widths (B, 2) from which a file works out its padding; None: it pads nothing."""
    if "size_input" not in facts:
        return None
    height, width = facts["preprocessing"]["image_size"]
    if mask is None:
        return np.tile(np.array([[height, width]], np.int64), (count, 1))
    step = facts["patch"]
    grid = mask.cpu().numpy().reshape(count, height // step[0], width // step[1])
    rows, columns = grid.any(2).sum(1) * step[0], grid.any(1).sum(1) * step[1]
    return np.stack([rows, columns], 1).astype(np.int64)
