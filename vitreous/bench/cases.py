"""What to time: from the options to a list of cases; what can't be timed is refused here. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, get_args

from vitreous.config import BenchConfig, Precision
from vitreous.errors import OptionError, nearest
from vitreous.models import architecture, zoo
from vitreous.models.architecture import Architecture

Job = Literal["train", "predict", "load", "start"]
Peer = Literal["timm", "transformers", "torchvision", "onnxruntime", "openvino"]
Data = Literal["jpegs", "npz"]

CLASSES = 1000
"""Classes of every model that is timed: ImageNet's."""
COMPUTING: tuple[Job, ...] = ("train", "predict")
"""Jobs in which a model computes: the others don't depend on it."""
RUNTIMES: tuple[Peer, ...] = ("onnxruntime", "openvino")
"""Peers that run an exported graph: they predict, and nothing else."""
LOADED = (224, 224)
"""The size of loaded images, if no other is asked for."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to time, the same for us and for every peer."""

    job: Job
    model: str | None = None
    """Its timm name; None: no model takes part, or the bundled one does."""
    image_size: tuple[int, int] | None = None
    batch_size: int | None = None
    """None: what suits the device."""
    precision: Literal["bf16", "float32", "int8"] | None = None
    """None: what the command uses here."""
    data: Data | None = None
    """What is loaded."""
    runtimes: tuple[str, ...] = ("torch",)
    """What we predict with, one after the other."""
    merges: tuple[int, ...] = (0,)
    """How many patches we merge in each block, one after the other."""

    @property
    def architecture(self) -> Architecture:
        """The configuration of the model."""
        assert self.model is not None
        return zoo.get_config(self.model, image_size=self.image_size, num_classes=CLASSES)

    def __str__(self) -> str:
        size = self.image_size and "x".join(map(str, self.image_size))
        batch = self.batch_size and f"batch {self.batch_size}"
        parts = (self.model, self.data, size, batch, self.precision)
        return ", ".join([self.job, *(each for each in parts if each)])


@dataclass(frozen=True, kw_only=True)
class Request:
    """All that was asked for."""

    cases: list[Case]
    peers: list[Peer]
    rounds: int
    profile: bool
    device: str
    workers: int | None


def read(config: BenchConfig) -> Request:
    """Return what the options ask for, or refuse it in one line."""
    jobs = _chosen("--job", config.job, get_args(Job))
    peers = _chosen("--against", config.against, get_args(Peer))
    models = [_model(name) for name in _words(config.model)] or [_nothing("--model", "ViT-Ti/16")]
    precisions = [
        None if name == "auto" else name
        for name in _chosen("--precision", config.precision, ("auto", *get_args(Precision), "int8"))
    ]
    runtimes = tuple(_chosen("--runtime", config.runtime, ("torch", *RUNTIMES))) or ("torch",)
    if runtimes != ("torch",) and "predict" not in jobs:
        raise OptionError(f"--runtime is for predict, not for {' and '.join(jobs)}: add --job predict")
    merges = tuple(_merge(each) for each in _words(config.merge)) or (0,)
    if merges != (0,) and "predict" not in jobs:
        raise OptionError(f"--merge is for predict, not for {' and '.join(jobs)}: add --job predict")
    if merges != (0,) and runtimes != ("torch",):
        raise OptionError("--merge is computed by torch: leave --runtime out")
    if "int8" in precisions and jobs != ["predict"]:
        raise OptionError(f"--precision int8 is for predict alone, not for {' and '.join(jobs)}")
    if not jobs or not precisions:
        _nothing("--job" if not jobs else "--precision", "train" if not jobs else "auto")
    batches = [None] if config.batch_size is None else [_batch(each) for each in _words(config.batch_size)]
    sizes = [None] if config.image_size is None else _sizes(config.image_size)
    if config.rounds < 1:
        raise OptionError(f"--rounds {config.rounds} times nothing: give 1 or more")
    if config.workers is not None and config.workers < 0:
        raise OptionError(f"--workers {config.workers} is out of range: 0 (in this process) or more")
    if config.profile and not set(jobs) & set(COMPUTING):
        raise OptionError(
            f"--profile has nothing to look into: it is for train and predict, not for {' and '.join(jobs)}"
        )
    cases: list[Case] = []
    for job in jobs:
        found = _cases(job, models, sizes, batches, precisions)
        if job == "predict":
            found = [replace(each, runtimes=runtimes, merges=merges) for each in found]
        cases += found
    return Request(
        cases=cases,
        peers=peers,
        rounds=config.rounds,
        profile=config.profile,
        device=config.device,
        workers=config.workers,
    )


def _cases(
    job: Job,
    models: Sequence[str],
    sizes: Sequence[tuple[int, int] | None],
    batches: Sequence[int | None],
    precisions: Sequence[Any],
) -> list[Case]:
    """Return a job's cases: all combinations of what it depends on."""
    if job == "start":
        return [Case(job=job)]
    if job == "load":
        return [
            Case(job=job, data=data, image_size=size or LOADED, batch_size=batch)
            for data, size, batch in product(get_args(Data), sizes, batches)
        ]
    found = []
    for model, size, batch, precision in product(models, sizes, batches, precisions):
        size = size or zoo.get_config(model).image_size
        case = Case(job=job, model=model, image_size=size, batch_size=batch, precision=precision)
        assert case.architecture  # refuses a size that the patches don't fill
        found.append(case)
    return found


def with_batch(case: Case, device: str) -> Case:
    """Return the case with a batch size that suits the kind of device, if none was asked for."""
    if case.batch_size is not None or case.job == "start":
        return case
    on_cpu = {"train": 16, "predict": 8, "load": 64}
    batch = on_cpu[case.job] if device == "cpu" or case.job == "load" else 256
    return replace(case, batch_size=batch)


def _words(given: Sequence[int | str]) -> list[str]:
    """Return the entries of a list separated by commas, spaces or both; each once."""
    words = [word for each in given for word in str(each).replace(",", " ").split()]
    return list(dict.fromkeys(words))


def _chosen(flag: str, given: Sequence[str], known: Sequence[Any]) -> list[Any]:
    words = _words(given)
    for word in words:
        if word not in known:
            near = nearest(word, known, count=1)
            raise OptionError(f"{flag} {word} is not known{near} (use {', '.join(known)})")
    return words


def _nothing(flag: str, example: str) -> str:
    raise OptionError(f"{flag} names nothing: give one or more, such as {example}")


def _model(name: str) -> str:
    zoo.get_config(name)  # refuses an unknown name
    return zoo.ALIASES.get(name, name)


def _batch(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"--batch-size {text} is not a number of images: give 1 or more")
    return int(text)


def _merge(text: str) -> int:
    if not text.isdecimal():
        raise OptionError(f"--merge {text} is not a number of patches: give 0 or more")
    return int(text)


def _sizes(given: Sequence[int | str]) -> list[tuple[int, int]]:
    """Read sizes: commas separate several, a space separates height and width."""
    found = []
    for text in " ".join(map(str, given)).split(","):
        sides = text.split()
        if not sides or not all(side.isdecimal() for side in sides):
            raise OptionError(
                f"--image-size {text.strip()!r} is not a size: give height and width, or one number for a "
                "square; separate several by commas"
            )
        found.append(architecture.pair(tuple(map(int, sides)), "--image-size"))
    return list(dict.fromkeys(found))
