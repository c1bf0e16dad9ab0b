"""From options to cases: lists give all combinations, and what can't be timed is refused in one line."""

from typing import Any

import pytest

from vitreous.bench import cases
from vitreous.bench.cases import Case
from vitreous.config import BenchConfig
from vitreous.errors import VitreousError


def test_a_bare_call_trains_and_predicts_with_the_smallest_vit() -> None:
    asked = cases.read(BenchConfig())
    assert [(case.job, case.model) for case in asked.cases] == [
        ("train", "vit_tiny_patch16_224"),
        ("predict", "vit_tiny_patch16_224"),
    ]
    assert {case.image_size for case in asked.cases} == {(224, 224)} and asked.peers == []


@pytest.mark.parametrize("words", [("ViT-Ti/16,ViT-S/16",), ("ViT-Ti/16", "vit_small_patch16_224")])
def test_lists_give_all_combinations_with_commas_or_spaces(words: tuple[str, ...]) -> None:
    asked = cases.read(
        BenchConfig(
            job=("predict",),
            model=words,
            batch_size=("1,8",),
            image_size=("224,384",),
            precision=("bf16", "float32"),
        )
    )
    found = [(c.model, c.image_size, c.batch_size, c.precision) for c in asked.cases]
    assert len(found) == len(set(found)) == 16
    assert found[0] == ("vit_tiny_patch16_224", (224, 224), 1, "bf16")
    assert found[-1] == ("vit_small_patch16_224", (384, 384), 8, "float32")


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ((64,), [(64, 64)]),
        (("64", "96"), [(64, 96)]),  # as everywhere: height and width
        (("64,96",), [(64, 64), (96, 96)]),
        (("64,96", "128"), [(64, 64), (96, 128)]),
    ],
)
def test_a_size_is_height_and_width_and_commas_stand_between_several(given: Any, sizes: Any) -> None:
    asked = cases.read(BenchConfig(job=("predict",), image_size=given))
    assert [case.image_size for case in asked.cases] == sizes


def test_a_job_has_the_combinations_of_what_it_depends_on() -> None:
    asked = cases.read(
        BenchConfig(job=("load,start",), model=("ViT-Ti/16,ViT-S/16",), batch_size=(8, 16), image_size=(64,))
    )
    found = [(case.job, case.data, case.image_size, case.batch_size) for case in asked.cases]
    assert found == [
        *[("load", data, (64, 64), batch) for data in ("jpegs", "npz") for batch in (8, 16)],
        ("start", None, None, None),
    ]
    assert cases.read(BenchConfig(job=("load",))).cases[0].image_size == (224, 224)


def test_a_batch_that_nobody_asked_for_suits_the_device() -> None:
    def batch(job: Any, device: str) -> int | None:
        return cases.with_batch(Case(job=job), device).batch_size

    assert [batch(job, "cpu") for job in ("train", "predict", "load", "start")] == [16, 8, 64, None]
    assert [batch(job, "cuda") for job in ("train", "predict", "load", "start")] == [256, 256, 64, None]
    assert cases.with_batch(Case(job="train", batch_size=3), "cuda").batch_size == 3


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"job": ("trian",)},
            "--job trian is not known; did you mean train? (use train, predict, load, start)",
        ),
        ({"job": ()}, "--job names nothing: give one or more, such as train"),
        ({"against": ("timn",)}, "--against timn is not known; did you mean timm? (use timm, transf"),
        (
            {"against": ("jax",)},
            "--against jax is not known (use timm, transformers, torchvision, onnxruntime",
        ),
        ({"model": ("ViT-X/3",)}, "unknown model 'ViT-X/3'"),
        ({"model": ()}, "--model names nothing"),
        ({"batch_size": (0,)}, "--batch-size 0 is not a number of images: give 1 or more"),
        ({"batch_size": ("many",)}, "--batch-size many is not a number of images"),
        ({"image_size": ("large",)}, "--image-size 'large' is not a size: give height and width"),
        ({"image_size": ("224,",)}, "--image-size '' is not a size"),
        ({"image_size": (225,)}, "image size 225x225 is not a multiple of the patch size 16"),
        (
            {"precision": ("int4",)},
            "--precision int4 is not known; did you mean int8? (use auto, bf16, float32, int8)",
        ),
        ({"precision": ("int8",)}, "--precision int8 is for predict alone, not for train and predict"),
        ({"runtime": ("tvm",)}, "--runtime tvm is not known (use torch, onnxruntime, openvino)"),
        ({"merge": ("-1",)}, "--merge -1 is not a number of patches: give 0 or more"),
        ({"merge": (2,), "job": ("train",)}, "--merge is for predict, not for train: add --job predict"),
        ({"merge": (2,), "runtime": ("openvino",)}, "--merge is computed by torch: leave --runtime out"),
        ({"runtime": ("openvino",), "job": ("train",)}, "--runtime is for predict, not for train: add --job"),
        ({"precision": ()}, "--precision names nothing"),
        ({"rounds": 0}, "--rounds 0 times nothing: give 1 or more"),
        ({"workers": -1}, "--workers -1 is out of range"),
        (
            {"profile": True, "job": ("load", "start")},
            "--profile has nothing to look into: it is for train and predict, not for load and start",
        ),
    ],
)
def test_what_cannot_be_timed_is_refused_in_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(VitreousError) as caught:
        cases.read(BenchConfig(**given))
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
