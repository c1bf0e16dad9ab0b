"""What is done in batches on an accelerator is what is done image by image on the host."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.data_batches import SIZE, batches, digits_loader, split
from tests.data_images import own_cache
from vitreous.config import Augment
from vitreous.data import Split
from vitreous.data.host import HostLoader

__all__ = ["own_cache", "split"]


def as_on_an_accelerator(split: Split, augment: Augment) -> HostLoader:
    """Return a loader that does colour operations in batches after the transfer, as it does for an
    accelerator."""
    loader = HostLoader(split, preprocessing=SIZE, augment=augment, batch_size=12, seed=5, cache=None)
    loader.on_device, loader.pipeline.operate = True, False
    return loader


def test_operations_in_batches_are_those_of_single_images(split: Split) -> None:
    """Same draws, same operations, image by image: so the distribution is the same too."""
    augment = Augment(crop_scale=(0.3, 1.0), randaugment=(2, 15), three_augment=True)
    apart = total = 0.0
    for epoch in range(4):
        singly = batches(split, epoch, augment=augment)
        for one, many in zip(singly, as_on_an_accelerator(split, augment).epoch(epoch), strict=True):
            assert torch.equal(one.indices, many.indices)
            levels = ((one.images - many.images).abs() * 127.5).flatten(1)
            apart += float((levels > 4).float().mean(1).sum())
            total += len(levels)
            assert levels.mean(1).median() < 1.5
    assert apart / total < 0.05


class Crossings(TorchDispatchMode):
    """Notes what goes from the host to another device, and whether the host would wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[str] = []
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        sources = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        results = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
        if any(each.is_meta for each in results) and any(each.is_cpu and each.ndim for each in sources):
            self.count += 1
            if not (kwargs.get("non_blocking") and all(hasattr(each, "pinned") for each in sources)):
                self.waited.append(str(function))
        return found


def test_the_host_waits_for_nothing_that_it_sends(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """All goes through pinned memory, and is not waited for: pixels, targets, draws, shares, partners, noise.

    The device is one that computes nothing (meta); pinning, which needs a real one, is noted instead."""

    def pinned(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        copy.pinned = True
        return copy

    monkeypatch.setattr(Tensor, "pin_memory", pinned)
    monkeypatch.setattr(Tensor, "is_pinned", lambda tensor: hasattr(tensor, "pinned"))
    augment = Augment(crop_scale=(0.3, 1.0), mixup=0.4, cutmix=1.0, erase=0.9, geometry=0.5, color=0.5)
    loader = HostLoader(split, preprocessing=SIZE, augment=augment, batch_size=12, device="meta", cache=None)
    list(loader.epoch(0))  # constants go over once, before any step
    with Crossings() as crossings:
        batches = list(loader.epoch(1))
    assert len(batches) == 3 and all(each.images.is_meta and each.targets.is_meta for each in batches)
    assert crossings.waited == []
    assert crossings.count == len(batches) * 7  # not one for each image


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_cuda_device_gets_the_same_batches(split: Split, workers: int) -> None:
    plain = Augment(crop_scale=(0.3, 1.0), mixup=0.4, cutmix=1.0, erase=0.3)
    expected = batches(split, augment=plain)
    for got, want in zip(
        batches(split, augment=plain, device="cuda", workers=workers), expected, strict=True
    ):
        assert got.images.is_cuda and got.targets.is_cuda and torch.equal(got.indices, want.indices)
        torch.testing.assert_close(got.images.cpu(), want.images, atol=1e-5, rtol=0)
        torch.testing.assert_close(got.targets.cpu(), want.targets)
    operated = Augment(crop_scale=(0.3, 1.0), randaugment=(2, 15))
    accelerated = as_on_an_accelerator(split, operated)
    for got, want in zip(
        batches(split, augment=operated, device="cuda", workers=workers), accelerated.epoch(1), strict=True
    ):
        levels = (got.images.cpu() - want.images).abs() * 127.5
        assert (levels > 1.5).float().mean() < 0.02


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_arrays_on_a_cuda_device() -> None:
    for got, want in zip(digits_loader(device="cuda").epoch(1), digits_loader().epoch(1), strict=True):
        assert got.images.is_cuda
        assert ((got.images.cpu() - want.images).abs() * 127.5 > 2.5).float().mean() < 0.02
