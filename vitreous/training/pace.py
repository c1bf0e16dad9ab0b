"""How fast a trained model computes, and images are read, on this machine: timed before a run is planned."""

import time

import torch

from vitreous import parallel
from vitreous.config import Precision, Preprocessing
from vitreous.data import Split, make_loader
from vitreous.evals.outputs import reading_workers
from vitreous.models import cost
from vitreous.models.weights import Model

SECONDS = 0.6
"""How long the forward pass is timed."""
BATCH = 16
READ = 32
"""Images whose reading is timed."""


@torch.inference_mode()
def forward_rate(model: Model, device: torch.device, precision: Precision) -> float:
    """Measure how many operations a second the model's forward pass reaches at best, in a precision."""
    images = torch.zeros(BATCH, model.config.in_channels, *model.config.image_size, device=device)
    model.to(device).eval()
    best, until = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < until or best == float("inf"):
        parallel.synchronize(device)
        started = time.perf_counter()
        with parallel.autocast(device, precision):
            model(images)
        parallel.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * len(images) * cost.flops(model.config) / best


def reading_seconds(split: Split, preprocessing: Preprocessing, device: torch.device) -> float:
    """Measure the time to read and decode an image, divided by the number of processes that will do it."""
    few = split.select(split.sample(READ))
    loader = make_loader(
        few, preprocessing=preprocessing, batch_size=len(few), workers=0, training=False, cache=None
    )
    started = time.perf_counter()
    for _ in loader.epoch(0):
        pass
    return (time.perf_counter() - started) / len(few) / max(1, reading_workers(split, device))
