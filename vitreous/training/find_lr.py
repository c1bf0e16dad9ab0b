"""`--find-lr`: a short sweep of learning rates, and where the loss falls fastest (arXiv 1506.01186).

A fresh model takes steps at rates that rise from far too low to far too high, and is thrown away: no run is
trained, and none is overwritten.
"""

import math
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous import console, parallel

if TYPE_CHECKING:
    from vitreous.training.loop import Training

STEPS = 100
SPAN = (1e-3, 1e2)
"""The first rate and the last, as multiples of the plan's."""
WIDTH = 4.0
"""Steps on either side over which the loss is smoothed: a standard deviation."""
WORSE = 0.5
"""The sweep ends once the loss has risen from its lowest by this share of its fall."""
LEAST_FALL = 0.02
"""Share of the first loss by which it must fall before anything is suggested."""


def sweep(training: "Training") -> dict[str, Any]:
    """Take the steps, and return the rates, the losses, and what they suggest."""
    rates = [training.plan.lr * rate for rate in np.geomspace(*SPAN, STEPS)]
    losses: list[float] = []
    started = time.monotonic()
    with closing(console.ProgressBar(STEPS, quiet=not training.world.is_main)) as bar:
        for number, batch in zip(range(STEPS), _batches(training), strict=False):
            figures = training.step(batch, number, rates[number]).read()
            loss = parallel.total({"loss": figures["loss"]}, training.world)["loss"]
            if figures["refused"] or not math.isfinite(loss):
                break
            losses.append(loss)
            left = (STEPS - len(losses)) * (time.monotonic() - started) / len(losses)
            bar.update(len(losses), STEPS, f"learning rate {rates[number]:.2g}, loss {loss:.3f}", left)
            if len(losses) > 10 and _diverged(smoothed(losses)):
                break
    smooth = smoothed(losses)
    return {
        "suggestion": suggest(rates, smooth),
        "planned": training.plan.lr,
        "ended_at": rates[min(len(losses), STEPS - 1)] if len(losses) < STEPS else None,
        "rates": [float(f"{rate:.4g}") for rate in rates[: len(losses)]],
        "losses": [round(loss, 6) for loss in losses],
        "smoothed": [round(loss, 6) for loss in smooth],
    }


def _batches(training: "Training") -> Any:
    epoch = 0
    while True:
        yield from training.loader.epoch(epoch)
        epoch += 1


def smoothed(losses: list[float]) -> list[float]:
    """Return the losses, each averaged with its neighbours on both sides: no fall is seen too late."""
    steps = np.arange(len(losses))
    weights = np.exp(-(((steps[:, None] - steps) / WIDTH) ** 2) / 2)
    return (weights @ np.array(losses) / weights.sum(1)).tolist() if losses else []


def _diverged(smooth: list[float]) -> bool:
    lowest = min(smooth)
    return smooth[-1] > lowest + WORSE * max(smooth[0] - lowest, LEAST_FALL * smooth[0])


def suggest(rates: list[float], smooth: list[float]) -> float | None:
    """Return the rate at which the smoothed loss falls fastest, by the logarithm; None: it does not fall."""
    lowest = int(np.argmin(smooth)) if smooth else 0
    if lowest < 3 or smooth[0] - smooth[lowest] < LEAST_FALL * smooth[0]:
        return None
    slope = np.gradient(smooth[: lowest + 1], np.log(rates[: lowest + 1]))
    return float(f"{rates[int(np.argmin(slope))]:.2g}")
