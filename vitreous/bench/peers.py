"""Other libraries' models with our weights. A peer is imported when asked for; what it lacks is reported."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from vitreous import console, layouts
from vitreous.bench.cases import RUNTIMES, Case, Peer
from vitreous.config import Preprocessing
from vitreous.errors import LayoutError
from vitreous.layouts import timm as timm_layout
from vitreous.models.weights import Weights


@dataclass
class Peers:
    """The libraries that were asked for, as far as they are installed."""

    names: Sequence[Peer]
    _found: dict[Peer, ModuleType | None] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)

    def __iter__(self) -> Iterator[tuple[Peer, ModuleType]]:
        for name in self.names:
            if (package := self._import(name)) is not None:
                yield name, package

    def _import(self, name: Peer) -> ModuleType | None:
        if name not in self._found:
            try:
                self._found[name] = import_module(name)
            except ImportError:
                self._found[name] = None
                self.left_out(name, f"it is not installed: pip install {name}")
        return self._found[name]

    def left_out(self, name: Peer, reason: str) -> None:
        """Warn once why a peer has no row."""
        line = f"{name} is left out: {reason}"
        if line not in self._said:
            self._said.add(line)
            console.warn(line)

    def models(self, case: Case, tensors: dict[str, Tensor]) -> Iterator[tuple[str, str, nn.Module]]:
        """Yield name, version and model of each peer that has this variant, with these weights."""
        preprocessing = Preprocessing(image_size=case.architecture.image_size, resize="exact")
        kept = {name: value.detach().cpu() for name, value in tensors.items()}
        for name, package in self:
            if name in RUNTIMES:
                continue
            weights = Weights(config=case.architecture, tensors=dict(kept), preprocessing=preprocessing)
            try:
                yield name, str(package.__version__), MODELS[name](package, weights)
            except LayoutError as error:
                reason = getattr(error, "reason", None)
                self.left_out(name, f"it has no {case.model} with {reason}" if reason else str(error))

    def runtimes(self) -> Iterator[tuple[Peer, str]]:
        """Yield name and version of each that runs exported graphs."""
        for name, package in self:
            if name in RUNTIMES:
                yield name, str(package.__version__).partition("-")[0]

    def only_predict(self) -> None:
        """Warn that peers which run exported graphs have no row in other jobs."""
        for name in self.names:
            if name in RUNTIMES:
                self.left_out(name, "it predicts, and nothing else")


class Logits(nn.Module):
    """A model of transformers that answers with logits alone, as the others do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images).logits


def _timm(package: Any, weights: Weights) -> nn.Module:
    tensors = timm_layout.write(weights).tensors
    name, arguments = timm_layout.architecture(weights.config)
    model = package.create_model(name, **{"num_classes": weights.config.num_classes, **arguments})
    model.load_state_dict(tensors, strict=True)
    return model


def _torchvision(package: Any, weights: Weights) -> nn.Module:
    tensors = layouts.torchvision.write(weights).tensors
    model = package.models.VisionTransformer(**layouts.torchvision.arguments(weights.config))
    model.load_state_dict(tensors, strict=True)
    return model


def _transformers(package: Any, weights: Weights) -> nn.Module:
    """Load through a folder: `from_pretrained` knows the parameter names of the installed version."""
    package.utils.logging.disable_progress_bar()
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        layouts.write(weights, folder, "hf")
        return Logits(package.AutoModelForImageClassification.from_pretrained(folder))


MODELS = {"timm": _timm, "transformers": _transformers, "torchvision": _torchvision}
