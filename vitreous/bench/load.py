"""From files to normalised batches on the device, cropped and mirrored at random; no model takes part.

Ours is timed as in its first epoch, and as in later ones, which find decoded images in the cache. Peers:
torchvision's ImageFolder in torch's DataLoader, and timm's own loader, with the same number of workers.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import torch

from vitreous import parallel
from vitreous.bench import photos
from vitreous.bench.cases import Case, Peer
from vitreous.bench.measure import Contender
from vitreous.bench.place import Place
from vitreous.config import Augment, Preprocessing
from vitreous.data import Loader, make_loader, open_data
from vitreous.version import __version__

LEAST = 256
"""Images of an epoch, at least."""
HALF = (0.5, 0.5, 0.5)
LARGER = 8 / 7
"""The arrays' side over that of the crops: 256 pixels for 224."""


def settled(case: Case, world: parallel.World) -> Case:
    """Return the case as it is: nothing in it is left open."""
    return case


def contenders(case: Case, place: Place) -> Iterator[Contender]:
    """Yield our loader, without and with its cache, then those of the peers."""
    assert case.batch_size is not None and case.image_size is not None
    images = -(-LEAST // case.batch_size) * case.batch_size  # whole batches: a loader may drop the last
    if case.data == "npz":
        size = (round(case.image_size[0] * LARGER), round(case.image_size[1] * LARGER))
        source = photos.write_npz(place.scratch / "photos.npz", images, size)
        yield _ours("vitreous", case, place, source, images, cache=None)
        for name in place.peers.names:
            place.peers.left_out(name, "it has no loader of .npz files")
        return
    source = photos.write_jpegs(place.scratch / "photos", images)
    yield _ours("vitreous", case, place, source, images, cache=None)
    yield _ours("vitreous, from its cache", case, place, source, images, cache=place.scratch / "cache")
    for name, package in place.peers:
        if name not in LOADERS:
            place.peers.left_out(name, "it has no loader of folders")
            continue
        batches = LOADERS[name](source, case, place)
        work = _epoch(batches, place.world.device)
        yield Contender(name, work, images, str(package.__version__))


def _ours(name: str, case: Case, place: Place, source: Path, images: int, cache: Path | None) -> Contender:
    held, epochs = [our_loader(case, place, source, cache)], count()

    def work() -> None:
        for _ in held[0].epoch(next(epochs)):
            pass

    # The workers end when nothing holds their loader.
    return Contender(name, work, images, __version__, ours=True, close=held.clear)


def our_loader(case: Case, place: Place, source: Path, cache: Path | None) -> Loader:
    """Return our loader of training images; with a folder for its cache it decodes each of them once."""
    assert case.batch_size is not None and case.image_size is not None
    return make_loader(
        open_data(source, carve=False).splits["train"],
        preprocessing=Preprocessing(image_size=case.image_size),
        augment=Augment(),
        batch_size=case.batch_size,
        workers=0 if case.data == "npz" else place.workers,
        device=place.world.device,
        cache=cache,
    )


def _epoch(batches: Iterable[Any], device: torch.device) -> Callable[[], None]:
    """Return one epoch of a peer's loader, whose batches end on the device."""

    def work() -> None:
        for images, _ in batches:
            images.to(device, non_blocking=True)

    return work


def _torchvision(folder: Path, case: Case, place: Place) -> Iterable[Any]:
    v2, datasets = import_module("torchvision.transforms.v2"), import_module("torchvision.datasets")
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(case.image_size, interpolation=v2.InterpolationMode.BICUBIC),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(HALF, HALF),
        ]
    )
    return torch.utils.data.DataLoader(
        datasets.ImageFolder(str(folder), transform),
        batch_size=case.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=place.workers,
        persistent_workers=place.workers > 0,
        pin_memory=place.world.device.type == "cuda",
    )


def _timm(folder: Path, case: Case, place: Place) -> Iterable[Any]:
    assert case.image_size is not None
    on_gpu = place.world.device.type == "cuda"
    return import_module("timm.data").create_loader(
        import_module("timm.data").ImageDataset(str(folder)),
        input_size=(3, *case.image_size),
        batch_size=case.batch_size,
        is_training=True,
        color_jitter=None,
        interpolation="bicubic",
        mean=HALF,
        std=HALF,
        num_workers=place.workers,
        persistent_workers=place.workers > 0,
        use_prefetcher=on_gpu,
        pin_memory=on_gpu,
        device=place.world.device,
    )


LOADERS: dict[Peer, Callable[[Path, Case, Place], Iterable[Any]]] = {
    "timm": _timm,
    "torchvision": _torchvision,
}
