"""From nothing to a first prediction: `vitreous predict tiny photo.jpg` in a fresh process.

It is compared with a process that only imports torch: nothing built on torch can be faster. A start predicts
one image, so its images per second are one over its seconds.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from vitreous import parallel
from vitreous.bench import photos
from vitreous.bench.cases import Case
from vitreous.bench.measure import Contender
from vitreous.bench.place import Place
from vitreous.errors import VitreousError
from vitreous.version import __version__

PACKAGE = Path(__file__).parents[2]


def settled(case: Case, world: parallel.World) -> Case:
    """Return the case as it is: nothing in it is left open."""
    return case


def contenders(case: Case, place: Place) -> Iterator[Contender]:
    """Yield our first prediction, then the import of torch."""
    photo = place.scratch / "photo.jpg"
    next(photos.cut(1)).save(photo, quality=90)
    predict = ["-m", "vitreous", "predict", "tiny", str(photo), "--device", str(place.world.device)]
    yield Contender("vitreous", fresh_process(predict), 1, __version__, ours=True)
    yield Contender("import torch", fresh_process(["-c", "import torch"]), 1, str(torch.__version__))
    for name in place.peers.names:
        place.peers.left_out(name, "start is compared with the import of torch alone")


def fresh_process(arguments: Sequence[str]) -> Callable[[], None]:
    """Return the work of running Python once with these arguments, on the code that runs here."""
    paths = [str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def work() -> None:
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise VitreousError(f"python {' '.join(arguments)} failed: {last}")

    return work
