"""The call that `predict` and `serve` make: normalised images on the device to probabilities on the host.

Peers make the same call in the same precision; on a GPU they are compiled whole.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitreous import parallel
from vitreous.bench.cases import Case
from vitreous.bench.measure import Contender
from vitreous.bench.place import Place
from vitreous.config import Precision, Preprocessing
from vitreous.data.augment import evaluation_transform
from vitreous.models import zoo
from vitreous.models.weights import Model
from vitreous.predict import Classifier
from vitreous.version import __version__

PASSES = 1.0
"""What it costs, in forward passes."""


def settled(case: Case, world: parallel.World) -> Case:
    """Return the case in the precision that `predict` computes in, where none was asked for."""
    return replace(case, precision=case.precision or "float32")


def contenders(case: Case, place: Place) -> Iterator[Contender]:
    """Yield our classifier's call, then that of each peer with the same weights and images."""
    assert case.batch_size is not None and case.precision is not None
    device = place.world.device
    model = fresh_model(case)
    tensors = dict(model.state_dict())
    preprocessing = Preprocessing(image_size=model.config.image_size)
    classifier = Classifier(
        model.to(device).eval(), evaluation_transform(preprocessing, model.config.step), []
    )
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(case.batch_size, *model.config.input_shape, generator=generator).to(device)

    def ours() -> Tensor:
        with parallel.autocast(device, case.precision or "float32"):
            return classifier.probabilities(images)

    yield Contender("vitreous", ours, case.batch_size, __version__, ours=True)
    for name, version, peer in place.peers.models(case, tensors):
        call = peer_call(peer, images, device, case.precision)
        yield Contender(name, call, case.batch_size, version)


def fresh_model(case: Case) -> Model:
    """Return the model with weights of no training; the head's are drawn too, which else start at zero."""
    torch.manual_seed(0)
    model = zoo.build(case.architecture)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("head"):
                parameter.normal_(std=0.02)
    return model


def peer_call(
    model: nn.Module, images: Tensor, device: torch.device, precision: Precision
) -> Callable[[], Tensor]:
    """Return the call that gives a peer's probabilities."""
    model.to(device).eval()
    images = images.clone()  # its own: they count in its memory
    run = torch.compile(model) if device.type == "cuda" else model

    @torch.inference_mode()
    def call() -> Tensor:
        with parallel.autocast(device, precision):
            return run(images).float().softmax(-1).cpu()

    return call
