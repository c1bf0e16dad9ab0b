"""From which width on bf16 pays on this processor: CPU seconds of a training step in float32 and bf16.

    python benchmarks/precision.py

For models that are narrower than any variant; `vitreous bench --precision float32,bf16` times the variants.
One thread, processor time instead of wall time: other work on the machine does not count.
"""

import time

import torch

from vitreous import console, parallel
from vitreous.config import Precision
from vitreous.data import Batch
from vitreous.models.zoo import create_model
from vitreous.objectives.supervised import Supervised

CPU = torch.device("cpu")


def seconds(width: int, precision: Precision, repeats: int = 5) -> float:
    """Return the best processor time of a step of 16 images."""
    torch.manual_seed(0)
    shape = {"width": width, "heads": width // 32, "mlp_width": 4 * width, "depth": 4}
    model = create_model("vit_tiny_patch16_224", image_size=32, patch_size=4, num_classes=10, **shape)
    objective = Supervised(model)
    batch = Batch(torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)), torch.arange(16))
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        with parallel.autocast(CPU, precision):
            loss, _ = objective(batch)
        loss.backward()
        objective.zero_grad()
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    """Print one row a width."""
    torch.set_num_threads(1)
    rows: list[list[console.Cell]] = []
    for width in (64, 96, 128, 192):
        single, half = seconds(width, "float32"), seconds(width, "bf16")
        rows.append([width, f"{1000 * single:.0f}", f"{1000 * half:.0f}", f"{single / half:.2f}"])
    native = "has" if parallel.has_bf16(CPU) else "has no"
    console.note(f"this processor {native} bf16 arithmetic")
    console.table(["width", "float32 ms", "bf16 ms", "ratio"], rows)


if __name__ == "__main__":
    main()
