"""What is done in batches on an accelerator is what is done image by image on the host."""

import pytest
import torch

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
