"""Other people's layouts of the same weights: one module each, recognised by keys, never by file name."""

from pathlib import Path
from types import ModuleType

import torch

from vitreous.config import Preprocessing
from vitreous.errors import CheckpointError, LayoutError, VitreousError
from vitreous.layouts import containers, google, huggingface, timm, torchvision
from vitreous.layouts.containers import Container, Hints
from vitreous.models import zoo
from vitreous.models.architecture import Architecture
from vitreous.models.weights import Weights

LAYOUTS: dict[str, ModuleType] = {
    "google": google,
    "hf": huggingface,
    "torchvision": torchvision,
    "timm": timm,
}


def read(path: Path, hints: Hints) -> tuple[str, Weights]:
    """Read weights of any layout; return its name and the weights under our names."""
    container = containers.read(path)
    hints = {name: value for name, value in hints.items() if value is not None}
    for name, layout in LAYOUTS.items():
        if layout.matches(container):
            return name, _read(layout, container, hints, path)
    some = ", ".join(list(container.tensors)[:4])
    raise LayoutError(
        f"{path} has no known layout: its tensors are {some}, …; known are {', '.join(LAYOUTS)}"
    )


def _read(layout: ModuleType, container: Container, hints: Hints, path: Path) -> Weights:
    """Read weights of a known layout; anything wrong in someone else's file is an error about that file."""
    try:
        return layout.read(container, hints)
    except CheckpointError:
        raise
    except VitreousError as error:
        raise LayoutError(f"{path} can't be used: {error}") from None
    except Exception as error:
        reason = str(error).partition("\n")[0][:200]
        kind = layout.__name__.rpartition(".")[2]
        raise LayoutError(
            f"{path} is not right for the {kind} layout: {type(error).__name__}: {reason}"
        ) from error


def obstacles(config: Architecture, preprocessing: Preprocessing) -> dict[str, str]:
    """Return for each layout why it has no place for such a model; an empty text if it has one.

    The layouts themselves are asked, with tensors that have shapes and no content.
    """
    with torch.device("meta"):
        tensors = dict(zoo.build(config).state_dict())
    found: dict[str, str] = {}
    for name, layout in LAYOUTS.items():
        try:
            layout.write(Weights(config=config, tensors=dict(tensors), preprocessing=preprocessing))
            found[name] = ""
        except LayoutError as error:
            found[name] = getattr(error, "reason", str(error))
    return found


def write(weights: Weights, path: Path, layout: str) -> Path:
    """Write weights in another layout; return the path of the file that holds them."""
    if layout not in LAYOUTS:
        raise LayoutError(f"unknown layout {layout!r}: expected one of vitreous, {', '.join(LAYOUTS)}")
    container = LAYOUTS[layout].write(weights)
    if layout == "google" and path.suffix != ".npz":
        raise LayoutError(f"Google's layout is an .npz file: write to {path.with_suffix('.npz')}")
    if layout == "torchvision" and path.suffix not in (".pth", ".pt", ".safetensors"):
        raise LayoutError(f"torchvision's layout is one file: write to {path}.safetensors or {path}.pth")
    if layout == "hf" and path.suffix:
        raise LayoutError(f"a Hugging Face model is a folder: write to {path.with_suffix('')}")
    return containers.write(container, path)
