"""What feeds a run: how many images at a time, where their pixels are kept, how many processes read them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.runs import OPTIONS, plan_of
from vitreous import parallel
from vitreous.config import TrainConfig
from vitreous.data import open_data
from vitreous.training import Result, loaders

CPU = parallel.World(device=torch.device("cpu"))


def test_an_evaluation_takes_two_batches_at_a_time(data: str, undisturbed: Result) -> None:
    """Each image once and in order; without gradients there is room for twice as many."""
    plan, dataset = plan_of(undisturbed.folder), open_data(data)
    loader = loaders.evaluation_loader(dataset, "test", replace(plan, batch_size=8), OPTIONS, CPU)
    batches = list(loader.epoch())
    assert [len(batch) for batch in batches] == [16, 15]
    assert torch.cat([batch.indices for batch in batches]).tolist() == list(range(31))
    many = parallel.World(
        device=torch.device("cpu"), rank=3, size=5
    )  # more ranks than a small batch has images
    loader = loaders.evaluation_loader(dataset, "test", replace(plan, batch_size=1), OPTIONS, many)
    assert [len(batch) for batch in loader.epoch()] == [1] * 6 + [0]


def test_training_images_come_once_unless_views_are_asked_for(data: str, undisturbed: Result) -> None:
    plan, dataset = plan_of(undisturbed.folder), open_data(data)
    batch = next(loaders.training_loader(dataset, plan, OPTIONS, CPU).epoch())
    assert (batch.views, len(batch.images)) == (1, 16)
    batch = next(loaders.training_loader(dataset, plan, OPTIONS, CPU, views=2).epoch())
    assert (batch.views, len(batch.images)) == (2, 32)


def test_files_are_read_by_processes_and_arrays_are_not(
    data: str, pictures: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, files = (open_data(Path(source)).splits["train"] for source in (data, pictures))
    for cores, expected in ((3, 3), (20, 8)):
        monkeypatch.setattr(loaders, "cores", lambda cores=cores: cores)
        assert loaders.reading_workers(files, TrainConfig()) == expected
        assert loaders.reading_workers(array, TrainConfig()) == 0
    assert loaders.reading_workers(files, TrainConfig(workers=1)) == 1


def test_a_cpu_keeps_pixels_as_they_are_unless_asked(data: str, undisturbed: Result) -> None:
    plan, split = plan_of(undisturbed.folder), open_data(data).splits["train"]
    for asked, expected in (("auto", False), ("host", False), ("device", True)):
        options = replace(OPTIONS, pixels=asked)
        found, reason = loaders.on_device(split, plan, options, CPU, None)
        assert found is expected and "pixels" in reason
