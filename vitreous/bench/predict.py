"""The call that `predict` and `serve` make: normalised images on the device to probabilities on the host.

Peers make the same call in the same precision; on a GPU they are compiled whole. onnxruntime and OpenVINO run
the graph that `vitreous export` writes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

from vitreous import console, parallel
from vitreous.bench.cases import Case, Peer
from vitreous.bench.measure import Contender
from vitreous.bench.place import Place
from vitreous.config import Precision, Preprocessing
from vitreous.data.augment import evaluation_transform
from vitreous.export import formats, write
from vitreous.export.graph import Inputs
from vitreous.models import zoo
from vitreous.models.weights import Model
from vitreous.predict import Classifier
from vitreous.predict.choice import HAS
from vitreous.predict.engines import Exported, HalfTorch
from vitreous.predict.graphs import NAMES, PRECISIONS
from vitreous.version import __version__

PASSES = 1.0
"""Cost in forward passes."""


def settled(case: Case, world: parallel.World) -> Case:
    """Return the case in the precision that `predict` computes in, if none was asked for."""
    return replace(case, precision=case.precision or "float32")


def contenders(case: Case, place: Place) -> Iterator[Contender]:
    """Yield our classifier's call on each runtime, then each peer's with the same weights and images."""
    assert case.batch_size is not None and case.precision is not None
    device = place.world.device
    model = fresh_model(case)
    tensors = dict(model.state_dict())
    preprocessing = Preprocessing(image_size=model.config.image_size)
    transform = evaluation_transform(preprocessing, model.config.step)
    names = [str(number) for number in range(model.config.num_classes)]
    classifier = Classifier(model.to(device).eval(), transform, names)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(case.batch_size, *model.config.input_shape, generator=generator).to(device)
    for runtime, merge in product(case.runtimes, case.merges):
        if (own := on_runtime(classifier.merging(merge), runtime, case, place)) is not None:
            name = "vitreous" if runtime == "torch" else f"vitreous on {runtime}"
            name += f", merging {merge}" if merge else ""
            call = partial(own.probabilities, images)
            yield Contender(name, call, case.batch_size, __version__, ours=True, merge=merge)
    if case.precision == "int8":
        _left_out(place, ("timm", "transformers", "torchvision"), "it has no int8 here")
    else:
        for name, version, peer in place.peers.models(case, tensors):
            call = peer_call(peer, images, device, case.precision)
            yield Contender(name, call, case.batch_size, version)
    for name, version in place.peers.runtimes():
        if (engine := graph(classifier, name, case, place)) is not None:
            call = partial(engine.opened().run, Inputs(images.cpu().numpy(), None))
            yield Contender(name, call, case.batch_size, version)


def on_runtime(classifier: Classifier, runtime: str, case: Case, place: Place) -> Classifier | None:
    """Return the classifier as it computes with a runtime; None, with a warning, if it can't."""
    if runtime != "torch":
        engine = graph(classifier, runtime, case, place)
        return None if engine is None else replace(classifier, engine=engine)
    if case.precision == "int8":
        console.warn("vitreous is left out: torch has no int8 here: give --runtime openvino or onnxruntime")
        return None
    return (
        classifier if case.precision == "float32" else replace(classifier, engine=HalfTorch(classifier.model))
    )


def graph(classifier: Classifier, runtime: str, case: Case, place: Place) -> Exported | None:
    """Return the exported graph in its runtime, without the usual proof: untrained weights have no labels."""
    reason = None if case.precision in HAS[runtime] else f"it has no {case.precision} here"
    if classifier.device.type != "cpu":
        reason = "it is timed on the CPU alone: give --device cpu"
    if reason is None and case.precision == "bf16" and not parallel.has_bf16(classifier.device):
        reason = "this processor has no bf16"
    if reason is not None:
        console.warn(f"{runtime} is left out: {reason}")
        return None
    assert case.precision is not None
    precision = PRECISIONS[case.precision]
    path = place.scratch / f"{case.precision}-{NAMES[runtime]}"
    form = formats.choose(path, precision)
    if not path.exists():
        write(classifier, path, form, precision=precision)
    return Exported(form, path, case.precision)


def _left_out(place: Place, names: Sequence[Peer], reason: str) -> None:
    for name in names:
        if name in place.peers.names:
            place.peers.left_out(name, reason)


def fresh_model(case: Case) -> Model:
    """Return an untrained model; the head's weights are drawn too, which otherwise start at zero."""
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
