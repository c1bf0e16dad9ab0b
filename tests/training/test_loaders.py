"""What feeds a run: how many images at a time, where their pixels are kept, how many processes read them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.runs import OPTIONS, plan_of
from vitreous import parallel
from vitreous.config import Augment, TrainConfig
from vitreous.data import SmallViews, open_data
from vitreous.errors import OptionError
from vitreous.training import Result, loaders
from vitreous.training.plan import Plan

CPU = parallel.World(device=torch.device("cpu"))


def cropping(run: Result) -> Plan:
    """The plan of a run, for pictures in colour that are cropped."""
    plan = replace(plan_of(run.folder), augment=Augment(crop_scale=(0.5, 1.0)))
    colours = replace(plan.preprocessing, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic")
    return replace(plan, preprocessing=colours)


def test_an_evaluation_takes_two_batches_at_a_time(data: str, undisturbed: Result) -> None:
    """Each image once and in order; without gradients there is room for twice as many."""
    plan, dataset = plan_of(undisturbed.folder), open_data(data)
    loader = loaders.evaluation_loader(dataset.splits["test"], replace(plan, batch_size=8), OPTIONS, CPU)
    batches = list(loader.epoch())
    assert [len(batch) for batch in batches] == [16, 15]
    assert torch.cat([batch.indices for batch in batches]).tolist() == list(range(31))
    many = parallel.World(
        device=torch.device("cpu"), rank=3, size=5
    )  # more ranks than a small batch has images
    loader = loaders.evaluation_loader(dataset.splits["test"], replace(plan, batch_size=1), OPTIONS, many)
    assert [len(batch) for batch in loader.epoch()] == [1] * 6 + [0]


def test_training_images_come_once_unless_views_are_asked_for(data: str, undisturbed: Result) -> None:
    plan, dataset = plan_of(undisturbed.folder), open_data(data)
    batch = next(loaders.training_loader(dataset, plan, OPTIONS, CPU, "host").epoch())
    assert (batch.views, len(batch.images)) == (1, 16)
    batch = next(loaders.training_loader(dataset, plan, OPTIONS, CPU, "host", views=2).epoch())
    assert (batch.views, len(batch.images)) == (2, 32)


def test_files_are_read_by_processes_and_arrays_are_not(
    data: str, pictures: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, files = (open_data(Path(source)).splits["train"] for source in (data, pictures))
    for cores, expected in ((3, 3), (20, 16)):
        monkeypatch.setattr(loaders, "cores", lambda cores=cores: cores)
        assert loaders.reading_workers(files, TrainConfig()) == expected
        assert loaders.reading_workers(array, TrainConfig()) == 0
    assert loaders.reading_workers(files, TrainConfig(workers=1)) == 1


def test_a_cpu_keeps_pixels_as_they_are_unless_asked(data: str, undisturbed: Result) -> None:
    plan, split = plan_of(undisturbed.folder), open_data(data).splits["train"]
    for asked, expected in (("auto", "host"), ("host", "host"), ("device", "device"), ("decode", "decode")):
        options = replace(OPTIONS, pixels=asked)
        found, reason = loaders.where(split, plan, options, CPU, None)
        assert found == expected and "pixels" in reason


def test_what_does_not_fit_is_decoded_where_that_is_faster(
    data: str, pictures: str, undisturbed: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = cropping(undisturbed)
    array, photographs = (open_data(Path(source)).splits["train"] for source in (data, pictures))
    gpu = parallel.World(device=torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 1000))
    for device, host, expected in ((900.0, 800.0, "decode"), (800.0, 900.0, "host")):
        rates = {"decode": device, "host": host}
        monkeypatch.setattr(loaders, "decoding_rates", lambda *_, rates=rates: rates)
        found, reason = loaders.where(photographs, plan, TrainConfig(), gpu, plan.augment)
        assert found == expected and "900 images/s" in reason or "900 by" in reason
        assert loaders.where(photographs, plan, TrainConfig(), gpu, None)[0] == "host"  # an evaluation
        assert loaders.where(array, plan, TrainConfig(), gpu, plan.augment)[0] == "host"  # nothing to decode


def test_a_run_that_goes_on_keeps_its_pixels_where_they_were(
    data: str, pictures: str, undisturbed: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another place gives another grey level here and there, and so other weights."""
    plan = cropping(undisturbed)
    array, photographs = (open_data(Path(source)).splits["train"] for source in (data, pictures))
    gpu = parallel.World(device=torch.device("cuda"))
    monkeypatch.setattr(loaders, "decoding_rates", lambda *_: {"decode": 1.0, "host": 2.0})
    for free, split, before, expected in (
        (1000, photographs, "decode", "decode"),  # now the host is faster
        (10**9, photographs, "decode", "decode"),  # now there would be room
        (10**9, photographs, "host", "host"),
        (1000, photographs, "device", "host"),  # no room any more
        (10**9, array, "decode", "device"),  # of other data: an array needs no decoding
    ):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        assert loaders.where_to_train(split, plan, TrainConfig(), gpu, before=before) == expected


def test_decoding_on_the_device_is_refused_where_it_can_not_be(
    data: str, pictures: str, undisturbed: Result
) -> None:
    plan = cropping(undisturbed)
    array, photographs = (open_data(Path(source)).splits["train"] for source in (data, pictures))
    asked, colours = TrainConfig(pixels="decode"), plan.preprocessing
    small = SmallViews(size=(8, 8), count=2, scale=(0.2, 0.5))
    assert loaders.where_to_train(photographs, plan, asked, CPU) == "decode"
    for split, changes, views, reason in (
        (array, {}, None, "the images are arrays"),
        (photographs, {}, small, "crops of one size only"),
        (photographs, {"augment": Augment(crop_scale=None)}, None, "no random crops"),
        (photographs, {"preprocessing": replace(colours, resize="pad")}, None, "no random crops"),
        (photographs, {"preprocessing": replace(colours, mean=(0.5,), std=(0.5,))}, None, "colours only"),
        (photographs, {"preprocessing": replace(colours, interpolation="nearest")}, None, "by nearest"),
    ):
        with pytest.raises(OptionError, match=f"--pixels decode has no effect here: .*{reason}"):
            loaders.where_to_train(split, replace(plan, **changes), asked, CPU, small=views)


def test_decoding_is_timed_for_both(pictures: str, undisturbed: Result) -> None:
    plan = replace(plan_of(undisturbed.folder), augment=Augment(crop_scale=(0.5, 1.0)))
    split = open_data(Path(pictures)).splits["train"]
    one, many = (loaders.decoding_rates(split, plan, CPU, workers) for workers in (1, 1000))
    assert min(*one.values(), *many.values()) > 0
    assert many["host"] > 100 * many["decode"] / 10 > 10 * one["host"] / 10
