"""Pixels on the device give the batches of the host's loader: same order, draws, images and targets."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.data_images import encoded, make_folder, own_cache, picture
from vitreous.config import Augment, Preprocessing
from vitreous.data import Batch, Split, make_loader, open_data
from vitreous.data.device import DeviceLoader
from vitreous.data.device_augment import BatchAugment
from vitreous.data.device_boxes import erase_boxes, inside
from vitreous.data.device_store import Store, fits
from vitreous.data.draws import NOISE, noise, uniforms, words
from vitreous.errors import DataError

__all__ = ["own_cache"]

SIZE = Preprocessing(image_size=(24, 24))
MIXED = Augment(crop_scale=(0.3, 1.0), mixup=0.4, cutmix=1.0, mix_probability=0.9)
EVERYTHING = replace(
    MIXED, randaugment=(2, 9), three_augment=True, color_jitter=0.2, erase=0.5, geometry=1.0, color=1.0
)


def pixels_file(
    folder: Path, count: int = 61, shape: tuple[int, ...] = (24, 24, 3), labels: Any = None
) -> Split:
    images = np.stack([np.array(picture(i, shape[:2][::-1])) for i in range(count)])[..., : shape[2]]
    np.savez(folder / "x.npz", images=images, labels=np.arange(count) % 3 if labels is None else labels)
    return open_data(folder / "x.npz", carve=False).splits["train"]


@pytest.fixture(scope="module")
def array(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return pixels_file(tmp_path_factory.mktemp("array"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Photographs of several shapes: smaller and larger than is stored, upright, and a long panorama."""
    root = make_folder(tmp_path_factory.mktemp("images"), {"a": 9, "b": 7}, format="jpg")
    for number, size in enumerate([(300, 200), (90, 160), (70, 70), (20, 30), (55, 50)]):
        (root / "a" / f"x{number}.jpg").write_bytes(encoded(picture(100 + number, size), "JPEG"))
    return open_data(root, carve=False).splits["train"]


OPTIONS: dict[str, Any] = {"preprocessing": SIZE, "batch_size": 8, "seed": 5}


def on_host(split: Split, epoch: int = 1, start: int = 0, **options: Any) -> list[Batch]:
    return list(make_loader(split, cache=None, **(OPTIONS | options)).epoch(epoch, start))


def on_device(split: Split, epoch: int = 1, start: int = 0, **options: Any) -> list[Batch]:
    return list(make_loader(split, pixels="device", **(OPTIONS | options)).epoch(epoch, start))


def levels_apart(ours: list[Batch], theirs: list[Batch]) -> Tensor:
    """Return the difference of every pixel in grey levels, (images, pixels); all else must be equal."""
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.indices, b.indices) and a.targets.dtype == b.targets.dtype
        torch.testing.assert_close(a.targets, b.targets, rtol=0, atol=1e-5)
        assert (a.mask is None) == (b.mask is None) and (a.mask is None or torch.equal(a.mask, b.mask))
    return torch.cat(
        [((a.images - b.images).abs() * 127.5).flatten(1) for a, b in zip(ours, theirs, strict=True)]
    )


@pytest.mark.parametrize("augment", ["none", "light", "mix", MIXED, Augment(crop_scale=None, flip=0.7)])
def test_arrays_give_the_hosts_batches(array: Split, augment: Any) -> None:
    for epoch in (0, 3):
        apart = levels_apart(on_device(array, epoch, augment=augment), on_host(array, epoch, augment=augment))
        assert apart.max() < 1.01 and (apart > 1e-3).float().mean() < 1e-3
    epochs = [on_device(array, epoch, augment="light")[0].images for epoch in (0, 1)]
    assert not torch.equal(*epochs)


@pytest.mark.parametrize(
    "augment", ["strong", replace(MIXED, randaugment=(2, 15), three_augment=True, color_jitter=0.3)]
)
def test_operations_give_the_hosts_images(array: Split, augment: Any) -> None:
    apart = levels_apart(on_device(array, augment=augment), on_host(array, augment=augment))
    assert (apart > 1.5).float().mean() < 0.03  # where the nearest pixel hangs on the last bit
    assert apart.mean(1).median() < 0.05


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
def test_folders_give_the_hosts_crops(folder: Split, interpolation: Any) -> None:
    options = {
        "augment": Augment(crop_scale=(0.2, 1.0)),
        "preprocessing": replace(SIZE, interpolation=interpolation),
    }
    apart = levels_apart(on_device(folder, **options), on_host(folder, **options))
    if interpolation == "nearest":  # where two pixels are equally near, either may be taken: some box sizes
        assert (apart > 0.5).float().mean(1).median() == 0
    else:
        assert apart.mean() < 0.3 and (apart > 2.1).float().mean() < 0.01


def test_a_panorama_is_squeezed_and_its_crops_are_not(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(picture(number, (400, 40))))
    split = open_data(tmp_path, carve=False).splits["train"]
    options: dict[str, Any] = {
        "augment": Augment(crop_scale=(0.2, 1.0), crop_ratio=(2.0, 9.0)),
        "batch_size": 4,
    }
    loader = make_loader(split, pixels="device", **(OPTIONS | options))
    assert loader.store.canvas == (40, 2 * 35)
    apart = levels_apart(list(loader.epoch(1)), on_host(split, **options))
    assert apart.mean() < 3  # smoother along its length, but the same part of the picture


def test_erased_rectangles_and_their_noise_are_the_hosts(array: Split) -> None:
    augment = Augment(crop_scale=None, flip=0.5, erase=0.6)
    ours, plain = on_device(array, augment=augment), on_device(array, augment=replace(augment, erase=0.0))
    theirs = on_host(array, augment=augment)
    for a, b, c in zip(ours, plain, theirs, strict=True):
        keys = (5, torch.tensor(1), a.indices, torch.zeros_like(a.indices))
        erased = inside(erase_boxes(uniforms(41, *keys, 3), 0.6, 24, 24), 24, 24).expand_as(a.images)
        assert erased.any() and not erased.all()
        assert torch.equal(
            a.images, torch.where(erased, noise(a.images.shape[1:], words(*keys, NOISE)), b.images)
        )
        torch.testing.assert_close(a.images, c.images)
    everything = torch.cat(
        [batch.images.flatten() for batch in on_device(array, augment=replace(augment, erase=1.0))]
    )
    assert everything.isfinite().all()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    world=st.integers(1, 4),
    start=st.integers(0, 3),
    epoch=st.integers(0, 3),
    batch_size=st.integers(4, 13),
    repeats=st.integers(1, 3),
    sampler=st.sampled_from(["uniform", "balanced"]),
)
def test_ranks_and_resume_change_nothing(
    array: Split, world: int, start: int, epoch: int, batch_size: int, repeats: int, sampler: Any
) -> None:
    options: dict[str, Any] = {
        "augment": replace(EVERYTHING, repeats=repeats),
        "batch_size": batch_size,
        "sampler": sampler,
    }
    whole = on_device(array, epoch, **options)
    parts = [on_device(array, epoch, start, rank=rank, world_size=world, **options) for rank in range(world)]
    assert {len(part) for part in parts} == {len(whole) - start}
    for step, expected in enumerate(whole[start:]):
        each = [part[step] for part in parts]
        assert torch.equal(torch.cat([part.indices for part in each]), expected.indices)
        torch.testing.assert_close(torch.cat([part.targets for part in each]), expected.targets)
        torch.testing.assert_close(
            torch.cat([part.images for part in each]), expected.images, atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("world", [1, 3])
def test_evaluation_is_the_hosts(array: Split, folder: Split, world: int) -> None:
    for split in (array, folder):
        for rank in range(world):
            options: dict[str, Any] = {"training": False, "rank": rank, "world_size": world}
            assert levels_apart(on_device(split, 0, **options), on_host(split, 0, **options)).max() < 1e-3


@pytest.mark.parametrize("resize", ["cover", "exact", "pad"])
def test_evaluation_of_what_is_resized_is_the_hosts(array: Split, folder: Split, resize: Any) -> None:
    options = {
        "preprocessing": Preprocessing(image_size=(16, 12), resize=resize),
        "training": False,
        "mask_step": 4,
    }
    for split in (array, folder):
        ours = on_device(split, 0, **options)
        assert levels_apart(ours, on_host(split, 0, **options)).max() < 1e-3
        assert (ours[0].mask is None) == (resize != "pad")


def test_padded_training_has_masks(folder: Split) -> None:
    options: dict[str, Any] = {
        "preprocessing": Preprocessing(image_size=(32, 32), resize="pad"),
        "mask_step": 8,
    }
    options["augment"] = Augment(flip=0.0)
    assert levels_apart(on_device(folder, **options), on_host(folder, **options)).max() < 1e-3


@pytest.fixture
def broken(tmp_path: Path) -> Split:
    root = make_folder(tmp_path, {"a": 20, "b": 20}, format="jpg")
    (root / "a" / "003.jpg").write_bytes((root / "a" / "003.jpg").read_bytes()[:300])
    (root / "b" / "007.jpg").write_bytes(b"not an image")
    return open_data(root, carve=False).splits["train"]


@pytest.mark.parametrize("augment", [MIXED, Augment(crop_scale=None)])
def test_broken_files_are_replaced_as_on_the_host(broken: Split, augment: Augment) -> None:
    loader = make_loader(broken, pixels="device", augment=augment, **OPTIONS)
    assert (
        sorted(loader.bad) == [3, 27] and "003.jpg" in loader.bad[3] and loader.files([27]) == ["b/007.jpg"]
    )
    for epoch in range(3):
        ours, theirs = list(loader.epoch(epoch)), on_host(broken, epoch, augment=augment)
        assert (levels_apart(ours, theirs) > 2.1).float().mean() < 0.01
    held = on_device(broken, training=False, batch_size=16)
    assert levels_apart(held, on_host(broken, training=False, batch_size=16)).max() < 1e-3


def test_nothing_but_broken_files_ends_with_one_line(tmp_path: Path) -> None:
    for name in ("a/1.jpg", "b/1.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"no image " + name.encode())
    split = open_data(tmp_path, carve=False).splits["train"]
    with pytest.raises(DataError, match="unreadable files in a row"):
        on_device(split, augment=Augment(), batch_size=2)
    fitting, reason = fits(split, SIZE, 10**9, augment=Augment())
    assert not fitting and "vitreous check" in reason


@pytest.mark.parametrize("augment", ["light", MIXED])
def test_a_rank_may_have_no_image_of_a_batch(array: Split, augment: Any) -> None:
    few = array.select(np.arange(2))
    parts = [on_device(few, rank=rank, world_size=4, augment=augment, batch_size=4) for rank in range(4)]
    assert sorted(len(part[0]) for part in parts) == [0, 0, 1, 1]
    whole = on_device(few, augment=augment, batch_size=4)
    held = [part[0] for part in parts if len(part[0])]
    assert torch.equal(torch.cat([each.images for each in held]), whole[0].images)


def test_several_labels_stay_floats(tmp_path: Path) -> None:
    split = pixels_file(tmp_path, 20, labels=np.random.default_rng(0).integers(0, 2, (20, 4)))
    for augment in ("none", MIXED):
        levels_apart(on_device(split, augment=augment), on_host(split, augment=augment))


def test_progress_is_told(folder: Split) -> None:
    seen: list[tuple[int, int]] = []
    make_loader(
        folder,
        pixels="device",
        augment="light",
        progress=lambda done, total: seen.append((done, total)),
        **OPTIONS,
    )
    assert seen[-1] == (len(folder), len(folder))


def test_settings_are_checked_as_on_the_host(array: Split) -> None:
    with pytest.raises(DataError, match="batch size 0"):
        make_loader(array, pixels="device", **(OPTIONS | {"batch_size": 0}))


def test_whether_it_fits(array: Split, folder: Split) -> None:
    assert fits(array, SIZE, 10**6) == (
        True,
        "pixels on the device: 61 images take about 0.1 MB of its free 1.0 MB",
    )
    fitting, reason = fits(array, SIZE, 10**5)
    assert not fitting and "more than 40% of the device's 0.1 MB" in reason
    stored = make_loader(folder, pixels="device", augment="light", **OPTIONS).store.pixels.numel()
    estimate = float(fits(folder, SIZE, 10**9, augment=Augment())[1].split("about ")[1].split()[0]) * 1e6
    assert estimate == pytest.approx(stored, rel=0.6)


def arguments(split: Split) -> tuple[BatchAugment, tuple[Any, ...]]:
    loader = make_loader(split, pixels="device", augment=EVERYTHING, **OPTIONS)
    indices = torch.arange(8)
    drawn = loader.batch_augment.draw(1, indices, torch.zeros_like(indices))
    return loader.batch_augment, (loader.store, loader.labels, indices, drawn, indices ^ 1)


@pytest.mark.parametrize("kind", ["array", "folder"])
def test_one_graph_serves_every_batch_and_epoch(kind: str, request: pytest.FixtureRequest) -> None:
    """Fully compiled, with no break and never again for other images or another epoch."""
    torch._dynamo.reset()
    augment, (store, labels, indices, _, partner) = arguments(request.getfixturevalue(kind))
    compiled = torch.compile(augment, backend="eager", fullgraph=True, dynamic=False)
    for number in range(3):
        drawn = augment.draw(number, indices, torch.zeros_like(indices))
        batch = (store, labels, indices + number, drawn, partner)
        with torch.compiler.set_stance("fail_on_recompile" if number else "default"):
            ours = compiled(*batch)
        for a, b in zip(ours, augment(*batch), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_what_is_compiled_serves_any_number_of_images(array: Split) -> None:
    """Another split, or another seed's, finds the compiled code of this one in the cache."""
    torch._dynamo.reset()
    loader = DeviceLoader(array, preprocessing=SIZE, augment=MIXED, batch_size=8, compiled=True)
    sizes: list[int | torch.SymInt] = []

    def look(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        values = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
        sizes.extend(each.shape[0] for each in values if isinstance(each, Tensor) and each.ndim)
        return graph

    indices = torch.arange(8)
    drawn = loader.batch_augment.draw(0, indices, torch.zeros_like(indices))
    compiled = torch.compile(loader.batch_augment, backend=look, dynamic=False)
    compiled(loader.store, loader.labels, indices, drawn, indices ^ 1)
    known = [size for size in sizes if not isinstance(size, torch.SymInt)]
    assert len(known) == len(sizes) - 3 and len(array) not in known  # pixels, sizes and labels


class NoWaiting(TorchDispatchMode):
    """Refuses every operation that a device would have to be waited for."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "aten.equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        assert not any(word in name for word in self.WAITING), f"{name} waits for the device"
        if "index.Tensor" in name:
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "a boolean index waits"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["array", "folder"])
def test_a_batch_never_waits_for_the_device(kind: str, request: pytest.FixtureRequest) -> None:
    augment, batch = arguments(request.getfixturevalue(kind))
    with torch.no_grad(), NoWaiting():
        augment(*batch)
    with pytest.raises(AssertionError, match="waits"), NoWaiting():
        assert torch.ones(3)[torch.ones(3) > 0].sum().item() == 3


def test_a_store_of_many_sizes_gives_back_its_images() -> None:
    images = [torch.arange(3 * h * w, dtype=torch.uint8).view(3, h, w) for h, w in ((2, 3), (4, 1), (3, 5))]
    sizes = torch.tensor([image.shape[1:] for image in images])
    ends = torch.tensor([image.numel() for image in images]).cumsum(0)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1]])
    store = Store(torch.cat([i.flatten() for i in images]), sizes, 3, (4, 5), offsets=offsets, stored=sizes)
    for index, got in zip((2, 0, 1), store.gather(torch.tensor([2, 0, 1])), strict=True):
        height, width = images[index].shape[1:]
        assert got.shape == (3, 4, 5) and torch.equal(got[:, :height, :width], images[index])
