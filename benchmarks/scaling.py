"""Plan a training on many GPUs: memory, time and traffic of a step, from one measured speed; nothing is run.

    python benchmarks/scaling.py [--models ViT-B/16,ViT-L/16] [--tflops 378] [--link 300]

`--tflops` is what one GPU reaches in a whole training step: here ViT-B/16's 3,585 images/s on one H200
(docs/benchmarks.md), taken for every model. `--link` is what a GPU sends in GB/s while all of them do.

Memory    weights, gradients, two moments and the average in float32, 20 bytes a parameter; of each block's
          tokens in bf16 what the backward pass needs: twice the residual, twice the normed, q, k, v, what
          attention gathers, and the MLP's hidden numbers twice; with checkpointing one residual a block, and
          one block whole.
Traffic   FSDP2 gathers the weights in bf16 for the forward and again for the backward pass, and sums the
          gradients in float32: 8 bytes a parameter and step, of which each of n GPUs moves (n - 1) / n.
Time      a step takes at least the longer of computing and moving (all hidden), at most their sum (none).
"""

import argparse
from dataclasses import dataclass

from vitreous import console
from vitreous.models import cost, zoo
from vitreous.models.architecture import ViTConfig

PASSES = 3
"""A step costs a forward pass and a backward pass of twice as much."""
STATE = 20
"""Bytes for each parameter: weight, gradient, two moments, average."""
TRAFFIC = 8
"""Bytes that a step moves for each parameter: twice in bf16, once in float32."""


@dataclass(frozen=True)
class Need:
    """What a model asks of a GPU that trains it."""

    name: str
    parameters: int
    operations: float
    """Of a training step, for each image."""
    kept: float
    """Bytes for each image from the forward to the backward pass."""
    kept_little: float
    """The same with checkpointing, but for the one block that is recomputed."""
    block: float

    def state(self, ranks: int = 1) -> float:
        """Return the bytes on each of so many GPUs that don't depend on the batch."""
        return STATE * self.parameters / ranks

    def batch(self, memory: float, ranks: int = 1, *, checkpointing: bool = False) -> int:
        """Return how many images fit beside the state into this memory."""
        each = self.kept_little + self.block if checkpointing else self.kept
        return max(0, int((memory - self.state(ranks)) / each))


def need(name: str) -> Need:
    """Count what a variant needs, at its own image size."""
    model = zoo.get_config(name)
    assert isinstance(model, ViTConfig)
    numbers = 8 * model.width + 2 * model.mlp_width
    block = 2.0 * model.tokens * numbers
    return Need(
        name=f"{name}, {model.image_size[0]} pixels",
        parameters=cost.parameters(model),
        operations=2.0 * PASSES * cost.flops(model),
        kept=model.depth * block,
        kept_little=2.0 * model.depth * model.tokens * model.width,
        block=block,
    )


def memory_table(needs: list[Need], memory: float) -> None:
    """Show what one GPU must hold, and how many images of a batch fit on it."""
    columns = ["model", "parameters", "state", "an image", "most images", "with checkpointing"]
    console.table(
        columns,
        [
            [
                each.name,
                f"{each.parameters / 1e6:,.0f} M",
                f"{each.state() / 1e9:.1f} GB",
                f"{each.kept / 1e6:,.0f} MB",
                f"{each.batch(memory):,}",
                f"{each.batch(memory, checkpointing=True):,}",
            ]
            for each in needs
        ],
    )


def ranks_table(needs: list[Need], images: int, tflops: float, link: float) -> None:
    """Show images/s on 8, 64 and 512 GPUs, from nothing of the traffic hidden to all of it."""
    columns = ["model", "GPUs", "state of each", "computing", "moving", "images/s", "of linear"]
    rows = []
    for each in needs:
        for ranks in (8, 64, 512):
            computing = images * each.operations / (tflops * 1e12)
            moving = TRAFFIC * each.parameters * (ranks - 1) / ranks / (link * 1e9)
            slow, fast = ranks * images / (computing + moving), ranks * images / max(computing, moving)
            rows.append(
                [
                    each.name,
                    str(ranks),
                    f"{each.state(ranks) / 1e9:.2f} GB",
                    f"{1e3 * computing:.0f} ms",
                    f"{1e3 * moving:.1f} ms",
                    f"{slow:,.0f} to {fast:,.0f}",
                    f"{computing / (computing + moving):.0%} to {computing / max(computing, moving):.0%}",
                ]
            )
    console.table(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="ViT-B/16,ViT-L/16,ViT-H/14,vit_giant_patch14_224")
    parser.add_argument("--tflops", type=float, default=378, help="10^12 operations a second, in a step")
    parser.add_argument("--link", type=float, default=300, help="GB/s that each GPU sends beside all others")
    parser.add_argument("--memory", type=float, default=140, help="GB of a GPU")
    parser.add_argument("--images", type=int, default=64, help="of a step, on each GPU")
    given = parser.parse_args()
    needs = [need(name) for name in given.models.split(",")]
    memory_table(needs, given.memory * 1e9)
    ranks_table(needs, given.images, given.tflops, given.link)


if __name__ == "__main__":
    main()
