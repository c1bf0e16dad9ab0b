"""All verbs, in the order of the help. What each does is in `learning`, `measuring` and `using`."""

from collections.abc import Callable
from typing import Any

from vitreous.cli import learning, measuring, using

VERBS: dict[str, Callable[..., Any]] = {
    "models": measuring.models,
    "check": measuring.check,
    "train": learning.train,
    "finetune": learning.finetune,
    "pretrain": learning.pretrain,
    "distill": learning.distill,
    "evaluate": measuring.evaluate,
    "probe": measuring.probe,
    "embed": using.embed,
    "search": using.search,
    "clean": measuring.clean,
    "predict": using.predict,
    "inspect": measuring.inspect,
    "convert": using.convert,
    "export": using.export,
    "serve": using.serve,
    "bench": measuring.bench,
    "reproduce": learning.reproduce,
}
