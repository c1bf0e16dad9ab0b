"""A model whose shape the caller gives: its configuration beyond the options, and a part of what a run is."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.runs import plan_of
from vitreous.config import DistillConfig, PretrainConfig, TrainConfig
from vitreous.errors import ModelError, ResumeError
from vitreous.training import distill, pretrain, train

SHAPE = {"width": 16, "depth": 1, "heads": 2, "mlp_width": 16, "positions": "sincos2d"}
OPTIONS = TrainConfig(
    model="ViT-Ti/16", image_size=(8,), patch_size=(4,), epochs=1, batch_size=256, lr=1e-3, device="cpu"
)


def test_every_verb_that_starts_from_scratch_takes_a_shape(tmp_path: Path) -> None:
    teacher = train("digits", replace(OPTIONS, out=str(tmp_path / "a")), shape=SHAPE)
    given = vars(OPTIONS)
    student = DistillConfig(**{**given, "out": str(tmp_path / "b")})
    distill(str(teacher.folder / "best.safetensors"), "digits", student, shape=SHAPE)
    pretrain("digits", PretrainConfig(**{**given, "out": str(tmp_path / "c"), "init": None}), shape=SHAPE)
    for name in "abc":
        model = plan_of(tmp_path / name).architecture
        assert {field: getattr(model, field) for field in SHAPE} == SHAPE
    assert plan_of(tmp_path / "b").architecture.distilled
    assert plan_of(tmp_path / "c").architecture.num_classes == 0


def test_another_shape_is_another_run_and_an_unknown_field_is_refused(tmp_path: Path) -> None:
    options = replace(OPTIONS, out=str(tmp_path / "run"))
    first = train("digits", options, shape=SHAPE)
    again = train("digits", options, shape=SHAPE)
    assert again.figures == first.figures
    with pytest.raises(ResumeError, match="shape was"):
        train("digits", options, shape={**SHAPE, "depth": 2})
    with pytest.raises(ModelError, match="no option 'widht'; did you mean width"):
        train("digits", replace(options, out=str(tmp_path / "other")), shape={"widht": 16})
