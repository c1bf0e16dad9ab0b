"""vitreous: the Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929) as software.

The names below are the whole public surface. They load on first use: importing the package costs nothing.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vitreous.version import __version__

if TYPE_CHECKING:
    from vitreous.api import Run as Run
    from vitreous.api import bench as bench
    from vitreous.api import check as check
    from vitreous.api import clean as clean
    from vitreous.api import convert as convert
    from vitreous.api import distill as distill
    from vitreous.api import embed as embed
    from vitreous.api import evaluate as evaluate
    from vitreous.api import export as export
    from vitreous.api import finetune as finetune
    from vitreous.api import inspect as inspect
    from vitreous.api import predict as predict
    from vitreous.api import pretrain as pretrain
    from vitreous.api import probe as probe
    from vitreous.api import reproduce as reproduce
    from vitreous.api import search as search
    from vitreous.api import train as train
    from vitreous.errors import VitreousError as VitreousError
    from vitreous.figures import Figures as Figures
    from vitreous.inspection import attention_maps as attention_maps
    from vitreous.models.zoo import create_model as create_model
    from vitreous.models.zoo import list_models as list_models
    from vitreous.predict import Classifier as Classifier
    from vitreous.predict import load as load

_NAMES = {
    "vitreous.api": (
        *("Run", "bench", "check", "clean", "convert", "distill", "embed", "evaluate", "export", "finetune"),
        *("inspect", "predict", "pretrain", "probe", "reproduce", "search", "train"),
    ),
    "vitreous.errors": ("VitreousError",),
    "vitreous.figures": ("Figures",),
    "vitreous.inspection": ("attention_maps",),
    "vitreous.models.zoo": ("create_model", "list_models"),
    "vitreous.predict": ("Classifier", "load"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


class _Package(ModuleType):
    """The package, in which a public name is never hidden by a submodule of the same name.

    On import Python binds a submodule to its package: `import vitreous.evaluate` would turn the function
    `vitreous.evaluate` into that module. Here it stays the function; `from vitreous.evaluate import ...`
    finds the module by its full name, as always.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
