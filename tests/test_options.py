"""Options by keyword: what a Python caller may give, and the command line that does the same."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from vitreous.config import (
    BenchConfig,
    CleanConfig,
    ConvertConfig,
    EmbedConfig,
    EvaluateConfig,
    ExportConfig,
    FinetuneConfig,
    InspectConfig,
    PredictConfig,
    ProbeConfig,
    SearchConfig,
    TrainConfig,
)
from vitreous.errors import OptionError
from vitreous.options import command, descriptions, from_keywords, takes


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({"image_size": 224}, {"image_size": (224,)}),
        ({"image_size": [224, 384]}, {"image_size": (224, 384)}),
        ({"image_size": "auto", "lr": "auto", "optimizer": "auto"}, {}),
        ({"epochs": np.int64(3), "lr": 1}, {"epochs": 3, "lr": 1.0}),
        ({"out": Path("runs/a"), "time_budget": "10m"}, {"out": "runs/a", "time_budget": "10m"}),
        ({"compile": "auto", "device": "auto", "shard": True}, {"shard": True}),
    ],
)
def test_values_take_the_type_of_their_field(given: dict[str, Any], held: dict[str, Any]) -> None:
    assert from_keywords(TrainConfig, given, "train") == TrainConfig(**held)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epoch": 3}, "train has no option 'epoch'; did you mean epochs?"),
        (
            {"optimizer": "adamm"},
            "optimizer='adamm' is not allowed: expected adamw or adam or sgd or muon or auto",
        ),
        ({"epochs": 1.5}, "epochs=1.5 is not allowed: expected a whole number or auto"),
        ({"epochs": True}, "epochs=True is not allowed: expected a whole number or auto"),
        ({"keep": None}, "keep=None is not allowed: expected a whole number"),
        ({"shard": 1}, "shard=1 is not allowed: expected True or False"),
        ({"time_budget": 600}, "time_budget=600 is not allowed: expected text or None"),
        (
            {"image_size": "224"},
            "image_size='224' is not allowed: expected one or more of: a whole number or auto",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        from_keywords(TrainConfig, given, "train")
    assert str(caught.value) == message


def test_a_name_that_is_near_nothing_gets_the_whole_list() -> None:
    with pytest.raises(
        OptionError, match="predict has no option 'zzzz': the options are top, abstain, batch"
    ):
        from_keywords(PredictConfig, {"zzzz": 1}, "predict")


def test_a_tuple_of_fixed_length_is_counted() -> None:
    assert from_keywords(InspectConfig, {"patch": [1, 2]}, "inspect").patch == (1, 2)
    with pytest.raises(OptionError, match="expected 2 of: a whole number"):
        from_keywords(InspectConfig, {"patch": 1}, "inspect")


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(image_size=(32, 48), lr=1e-3, shard=True, out="a folder", augment="none"),
        FinetuneConfig(tune="lora:8", recipe="paper", keep_head=True),
        EvaluateConfig(split="val", resolutions=(8, 16), calibrate=True, abstain=0.5),
        ProbeConfig(method="knn", shots=(1, 2), layer=-2),
        ConvertConfig(num_classes=3, patch_size=(8,)),
        ExportConfig(pixels=True, images=("a.png", "b c.png"), precision="fp16"),
        InspectConfig(class_name="goldfish", patch=(0, 3), own_aspect=True),
        PredictConfig(top=3, abstain=0.25),
        EmbedConfig(out="a b.npz", pooling="gap", layer=3, image_size=(64,)),
        SearchConfig(top=3, others=True, checkpoint="runs/a", out="found", batch_size=8),
        CleanConfig(top=7, out="found", seed=3, image_size=(48, 64)),
        BenchConfig(job=("load", "start"), model=("ViT-S/16",), batch_size=(1, 8), profile=True),
        BenchConfig(image_size=("224,256", 384), precision=("bf16",), against=("timm",), workers=2),
    ],
    ids=lambda config: type(config).__name__,
)
def test_the_command_gives_the_same_options(config: Any) -> None:
    """The command that a report prints is read back as the options that the report was made with."""
    import tyro

    from vitreous.cli import flags

    words = shlex.split(command("verb", ("a b",), config))
    assert words[:3] == ["vitreous", "verb", "a b"]

    def verb(*, options: Any) -> dict[str, Any]:
        return options

    verb.__annotations__["options"] = Annotated[dict[str, Any], flags.of(type(config))]
    parsed = tyro.cli(verb, args=words[3:], config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes))
    assert from_keywords(type(config), parsed, "verb") == config


@dataclass(frozen=True, kw_only=True)
class Base:
    size: int = 1
    """How
    large."""
    bare: int = 2


@dataclass(frozen=True, kw_only=True)
class Derived(Base):
    kind: Literal["a", "b"] = "a"
    """Which."""


def test_field_docstrings_are_found_those_of_bases_too() -> None:
    assert descriptions(Derived) == {"size": "How large.", "kind": "Which."}


def test_a_function_shows_the_fields_that_it_takes() -> None:
    import inspect

    @takes(Derived)
    def work(data: str, **options: Any) -> None:
        """Do the work."""

    assert str(inspect.signature(work)) == (
        "(data: str, *, size: int = 1, bare: int = 2, kind: Literal['a', 'b'] = 'a') -> None"
    )
    assert "kind: Which." in (work.__doc__ or "")
