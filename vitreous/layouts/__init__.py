"""Other people's layouts of the same weights: one module each, recognised by keys, never by file name."""

from pathlib import Path
from types import ModuleType

from vitreous.errors import LayoutError
from vitreous.layouts import containers, google, huggingface, timm, torchvision
from vitreous.layouts.containers import Hints
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
            return name, layout.read(container, hints)
    some = ", ".join(list(container.tensors)[:4])
    raise LayoutError(
        f"{path} is of no known layout: its tensors are {some}, …; known are {', '.join(LAYOUTS)}"
    )


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
