"""vitreous: the Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929) as software.

The names below are the whole public surface. They load on first use: importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitreous.version import __version__

if TYPE_CHECKING:
    from vitreous.errors import VitreousError as VitreousError
    from vitreous.inspection import attention_maps as attention_maps
    from vitreous.models.zoo import create_model as create_model
    from vitreous.models.zoo import list_models as list_models
    from vitreous.predict import Classifier as Classifier
    from vitreous.predict import load as load

_HOME = {
    "Classifier": "vitreous.predict",
    "VitreousError": "vitreous.errors",
    "attention_maps": "vitreous.inspection",
    "create_model": "vitreous.models.zoo",
    "list_models": "vitreous.models.zoo",
    "load": "vitreous.predict",
}

__all__ = [
    "Classifier",
    "VitreousError",
    "__version__",
    "attention_maps",
    "create_model",
    "list_models",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
