"""Which runtime and precision compute a classifier's answers: as asked, or the fastest here by measurement.

`auto` takes another runtime only where that is worth its start: torch computes a few images right away.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from typing import NamedTuple

import numpy as np

from vitreous import console, parallel
from vitreous.config import Inference, Runtime
from vitreous.errors import OptionError, VitreousError
from vitreous.predict.classifier import Classifier

FEW = 64
"""With fewer images nothing is measured: torch has answered before another runtime is open."""
SAVED = 0.2
"""The share of torch's time that another runtime is expected to save, to decide whether to try it."""
OPEN_SECONDS, MAKE_SECONDS = 3.0, 20.0
"""Seconds to open a graph from the cache, and to make one without counting the images of its proof: more than
`tiny` took (0.5 and 11 s on an EPYC core, the proof included), as larger models take longer."""
GAIN = 0.95
"""Another way must take less than this share of torch's time in float32 to be chosen."""
TIMES = 3
HAS: dict[str, tuple[str, ...]] = {
    "torch": ("float32", "bf16"),
    "openvino": ("float32", "bf16", "int8"),
    "onnxruntime": ("float32", "int8"),
}
"""The precisions of each runtime. Of those that are installed, `auto` tries the first beside torch."""
PLAIN: tuple[str, str] = ("torch", "float32")


class Way(NamedTuple):
    """A way to compute, and the seconds that it took for an image."""

    runtime: str
    precision: str
    classifier: Classifier
    seconds: float

    def __str__(self) -> str:
        return f"{self.runtime} in {self.precision} ({1000 * self.seconds:.3g} ms an image)"


def equip(
    classifier: Classifier,
    runtime: Runtime = "torch",
    precision: Inference = "float32",
    *,
    images: int | None = None,
    batch: int = 1,
    say: Callable[[str], object] = console.note,
) -> Classifier:
    """Return the classifier with an engine for its answers; for torch in float32, the classifier as it is.

    `images`: how many it will be asked for in all (None: unknown); `batch`: how many at a time.
    """
    if (runtime, precision) == PLAIN:
        return classifier
    pairs = candidates(runtime, precision, classifier)
    if len(pairs) == 1 and "auto" not in (runtime, precision):
        return _made(classifier, *pairs[0], say)
    fallback = PLAIN in pairs or runtime == "auto"
    if fallback and images is not None and images < FEW:
        say(f"runtime: torch in float32, the quickest to start: {images} images are too few for another")
        return classifier
    return _fastest(classifier, pairs, images, batch, fallback, say)


def candidates(runtime: Runtime, precision: Inference, classifier: Classifier) -> list[tuple[str, str]]:
    """Return the ways that fit what was asked for; refuse, with the reason, if there are none."""
    on_cpu = classifier.device.type == "cpu"
    merges = classifier.model.merge > 0
    if merges and runtime not in ("auto", "torch"):
        raise OptionError(f"--merge is computed by torch, not by {runtime}: leave one of them out")
    if runtime not in ("auto", "torch") and not on_cpu:
        raise OptionError(f"{runtime} computes on the CPU, not on {classifier.device}: give --device cpu")
    known = [runtime] if runtime != "auto" else ["torch", *(_installed() if on_cpu and not merges else [])]
    wanted = ["float32", "bf16"] if precision == "auto" else [precision]
    pairs = [(one, other) for one, other in product(known, wanted) if other in HAS[one]]
    if not pairs:
        others = [name for name, has in HAS.items() if precision in has]
        raise OptionError(
            f"{' and '.join(known)} has no {precision} here: use --runtime {' or '.join(others)} on a CPU "
            f"(pip install 'vitreous[openvino]'), or --precision float32"
        )
    if precision == "auto" and not parallel.has_bf16(classifier.device):
        pairs = [pair for pair in pairs if pair[1] != "bf16"]
    return pairs


def _installed() -> list[str]:
    return [name for name in HAS if name != "torch" and find_spec(name) is not None][:1]


def _made(classifier: Classifier, runtime: str, precision: str, say: Callable[[str], object]) -> Classifier:
    from vitreous.predict import engines, graphs  # another runtime's code is imported only if it is wanted

    if (runtime, precision) == PLAIN:
        return classifier
    if runtime == "torch":
        if not parallel.has_bf16(classifier.device):
            say(f"this {classifier.device.type} has no bf16: it is emulated, and slower than float32")
        return replace(classifier, engine=engines.HalfTorch(classifier.model))
    return replace(classifier, engine=graphs.engine(classifier, runtime, precision, say))


def _fastest(
    classifier: Classifier,
    pairs: Sequence[tuple[str, str]],
    images: int | None,
    batch: int,
    fallback: bool,
    say: Callable[[str], object],
) -> Classifier:
    """Measure the ways in turn and return the fastest; one that fails is left out, saying so."""
    ready = [(*PLAIN, classifier)] if fallback else []
    each = seconds(classifier, 1) if fallback else 0.0
    for runtime, precision in pairs:
        if (runtime, precision) == PLAIN:
            continue
        if fallback and images is not None:
            needed = worth(classifier, runtime, precision, each, batch)
            if images < needed:
                say(f"{runtime} in {precision} is left out: it pays from about {needed:,} images on")
                continue
        try:
            ready.append((runtime, precision, _made(classifier, runtime, precision, say)))
        except VitreousError as error:
            if not fallback:
                raise
            say(f"{runtime} in {precision} is left out: {error}")
    if fallback and len(ready) == 1:
        say("runtime: torch in float32")
        return classifier
    ways = measured(ready, batch)
    first = ways[0]
    best = min(ways, key=lambda way: way.seconds * (GAIN if way is first and fallback else 1))
    others = ", ".join(str(way) for way in ways if way is not best)
    say(f"runtime: {best}" + (f", measured beside {others}" if others else ""))
    return best.classifier


def worth(classifier: Classifier, runtime: str, precision: str, each: float, batch: int) -> int:
    """Return from how many images another way is expected to pay, if torch takes `each` seconds for one.

    Finding out costs time too: both ways compute some batches.
    """
    from vitreous.export.proof import COUNTS
    from vitreous.predict import graphs

    cost = 2 * (1 + TIMES) * batch * each
    if runtime != "torch":
        cost += OPEN_SECONDS
    if runtime != "torch" and not graphs.is_made(classifier, runtime, precision):
        cost += MAKE_SECONDS + 2 * COUNTS[graphs.PRECISIONS[precision]] * each
    return round(cost / (SAVED * each))


def measured(ready: Sequence[tuple[str, str, Classifier]], batch: int) -> list[Way]:
    """Time each way in turn, so that a machine whose speed varies hits all of them; the best time counts."""
    found = [Way(*entry, float("inf")) for entry in ready]
    if len(found) == 1:
        return [found[0]._replace(seconds=seconds(found[0].classifier, batch))]
    for _ in range(TIMES):
        found = [
            way._replace(seconds=min(way.seconds, seconds(way.classifier, batch, warm=not _)))
            for way in found
        ]
    return found


def seconds(classifier: Classifier, batch: int, warm: bool = True) -> float:
    """Return the seconds per image in a batch of blank ones: the content makes no difference."""
    settings = classifier.preprocess.preprocessing
    blank = np.zeros((*settings.image_size, settings.channels), np.uint8)
    given = classifier.collate([classifier.prepare(blank)] * batch)
    if warm:
        classifier.probabilities(*given)
    start = time.perf_counter()
    classifier.probabilities(*given)
    return (time.perf_counter() - start) / batch
