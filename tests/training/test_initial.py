"""What `vitreous train` starts from: scratch, a model that is named, or the bundled one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitreous
from tests.training.runs import plan_of
from vitreous import cli
from vitreous.config import TrainConfig
from vitreous.data import open_data
from vitreous.errors import OptionError, VitreousError
from vitreous.models import zoo
from vitreous.training import Caller, initial, setup, transfer

FRUITS = "tests/fixtures/fruits"
SEALED = "tests/fixtures/sealed_v1.safetensors"


def arrays(path: Path, *, side: int = 64, colour: bool = True, images: int = 40) -> str:
    pixels = np.random.default_rng(0).integers(0, 256, (images, side, side, 3), dtype=np.uint8)
    if not colour:
        pixels = pixels[..., :1].repeat(3, axis=3)
    np.savez(path, x_train=pixels, y_train=np.arange(images) % 2)
    return str(path)


def start(data: str, **options: Any) -> str | None:
    return initial.starting_point(TrainConfig(**options), open_data(data))[0]


def test_few_colour_photographs_start_from_tiny() -> None:
    assert start(FRUITS) == "tiny"
    assert start(FRUITS, init="none") is None
    assert start(FRUITS, init=SEALED) == SEALED


@pytest.mark.parametrize(
    "option", [{"model": "ViT-Ti/16"}, {"patch_size": (8,)}, {"recipe": SEALED}, {"initialization": "paper"}]
)
def test_who_says_what_to_train_trains_that(option: dict[str, Any]) -> None:
    assert start(FRUITS, **option) is None


def test_other_images_are_learned_from_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start("digits") is None
    assert start(arrays(tmp_path / "small.npz", side=32)) is None
    assert start(arrays(tmp_path / "gray.npz", colour=False)) is None
    colour = arrays(tmp_path / "colour.npz")
    assert start(colour) == "tiny"
    monkeypatch.setattr(initial, "FEW", 20)
    assert start(colour) is None


def test_a_named_start_has_its_own_model() -> None:
    with pytest.raises(OptionError, match="--model is for training from scratch"):
        start(FRUITS, init="tiny", model="ViT-Ti/16")
    with pytest.raises(VitreousError, match="does not exist"):
        vitreous.train(FRUITS, init="no/such.safetensors", out="nowhere")
    assert not Path("nowhere").exists()


def test_options_of_train_alone_are_refused_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--init has no effect in fine-tuning: it starts from the CKPT"):
        vitreous.finetune(SEALED, "digits", init="tiny", out=tmp_path / "a")
    with pytest.raises(OptionError, match="--init has no effect in distillation"):
        vitreous.distill(SEALED, "digits", init="tiny", out=tmp_path / "b")


@pytest.mark.parametrize(
    ("verb", "option"),
    [("finetune", "--model=ViT-B/16"), ("distill", "--init"), ("pretrain", "--binary-targets")],
)
def test_options_of_other_verbs_are_not_shown_and_are_refused_with_the_reason(
    verb: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = option.partition("=")[0]
    assert cli.main([verb, "--help"]) == 0
    assert f"{name} " not in capsys.readouterr().out
    files = [SEALED, "digits"] if verb != "pretrain" else ["digits"]
    assert cli.main([verb, *files, option, "--out", str(tmp_path / "run")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {name} has no effect in ")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_fifty_photographs_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten fruits that look alike, five pictures of each: from scratch that is guessing."""
    out = str(tmp_path / "run")
    options = TrainConfig(out=out, epochs=1, image_size=(96, 96), device="cpu", seed=3)
    run = initial.train(FRUITS, options)
    assert run.figures["test"]["accuracy"] > 0.5
    said = capsys.readouterr().err
    assert "init: tiny" in said and "--init none" in said
    plan = plan_of(run.folder)
    assert plan.init == "tiny" and plan.fit_head and plan.architecture.image_size == (96, 96)
    assert "- init: tiny" in (run.folder / "model_card.md").read_text()
    assert initial.train(FRUITS, options).figures == run.figures
    command = json.loads((run.folder / "config.json").read_text())["command"]
    assert command.startswith(f"vitreous train {FRUITS} ") and "--init tiny" in command


@pytest.mark.parametrize("named", [True, False])
def test_a_run_that_began_from_scratch_goes_on(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an earlier version, which knew no other start."""
    data = arrays(tmp_path / "photos.npz")
    monkeypatch.chdir(tmp_path)
    options = TrainConfig(epochs=1, device="cpu", out="run" if named else None)
    with monkeypatch.context() as earlier:
        earlier.setattr(initial, "starting_point", lambda *_: (None, ""))
        first = initial.train(data, options)
    again = initial.train(data, options)
    assert again.folder == first.folder and plan_of(again.folder).init == ""
    if not named:
        other = initial.train(data, replace(options, seed=1, out="other", image_size=(64, 64)))
        assert plan_of(other.folder).init == "tiny"


TINY = zoo.get_config("ViT-Ti/16", image_size=(160, 160))
FEW: dict[str, Any] = {"images": 3000, "evaluated": 1500, "side": 400, "rate": 110e9, "reading": 0.0}


def test_more_time_gives_larger_images_then_more_that_learns() -> None:
    choices = [transfer.choose(TINY, **{**FEW, "budget": 60.0 * minutes}) for minutes in (1, 4, 15, 60)]
    sizes = [choice.architecture.image_size[0] for choice in choices]
    assert sizes == sorted(sizes) and sizes[0] == 96 and sizes[-1] == 224
    assert choices[0].tune == "head" and choices[-1].tune == "full"
    fast = transfer.choose(TINY, **{**FEW, "budget": 60.0, "rate": 5e14})
    assert (fast.architecture.image_size, fast.tune) == ((224, 224), "full")


def test_images_that_are_slow_to_read_leave_less_time() -> None:
    """Reading costs the same at every size, and once in each pass."""
    about = {**FEW, "budget": 240.0, "rate": 300e9}
    quick, slow, slower = (transfer.choose(TINY, **{**about, "reading": each}) for each in (0.0, 0.02, 0.1))
    assert (quick.architecture.image_size, quick.tune) == ((224, 224), "last:6")
    assert slow.architecture.image_size == (224, 224) and slow.tune == "head"
    assert slower.architecture.image_size == (96, 96) and slower.epochs == 1


def test_a_time_that_is_too_short_for_one_pass_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not transfer.choose(TINY, **{**FEW, "budget": 60.0}).too_short
    choice = transfer.choose(TINY, **{**FEW, "budget": 60.0, "side": None})
    assert choice.too_short and 45 < choice.pass_seconds < 60  # start and report take their time as well
    monkeypatch.setattr(setup.pace, "reading_seconds", lambda *_: 3.0)
    monkeypatch.setattr(setup.defaults, "choose", lambda *_: pytest.exit("that much suffices"))
    with pytest.raises(pytest.exit.Exception):
        vitreous.finetune("tiny", FRUITS, time_budget="20s", device="cpu", out=tmp_path / "run")
    told = capsys.readouterr().err
    assert "warning: --time-budget 20s is too short: one pass over the images takes about" in told


def test_images_are_not_blown_up_and_a_size_that_was_given_stays() -> None:
    small = transfer.choose(TINY, **{**FEW, "side": 100, "budget": 3600.0})
    assert small.architecture.image_size == (128, 128)
    assert transfer.choose(TINY, **{**FEW, "side": None, "budget": 60.0}).architecture is TINY
    resnet = zoo.get_config("BiT-R50x1")
    assert transfer.choose(resnet, **{**FEW, "budget": 60.0}).architecture is resnet


@pytest.mark.parametrize(
    ("budget", "images", "evaluated", "side", "expected"),
    [
        (60, 2697, 1803, 400, (96, "head", 1)),
        (120, 2697, 1803, 400, (160, "head", 1)),
        (180, 2697, 1803, 400, (192, "head", 1)),
        (240, 2697, 1803, 400, (224, "head", 1)),
        (440, 2697, 1803, 400, (224, "last:6", 1)),
        (600, 2697, 1803, 400, (224, "last:6", 2)),
        (1200, 2697, 1803, 400, (224, "full", 4)),
        (None, 6552, 1637, 400, (224, "head", 1)),
        (600, 300, 60, 100, (128, "full", 30)),
    ],
)
def test_the_rule_as_it_is_documented(
    budget: float | None, images: int, evaluated: int, side: int, expected: tuple[int, str, int]
) -> None:
    """At the speed of two cores; whoever changes the rule changes docs/transfer.md."""
    about: dict[str, Any] = {"images": images, "evaluated": evaluated, "side": side}
    choice = transfer.choose(TINY, **about, budget=budget, rate=93e9, reading=0.0)
    assert (choice.architecture.image_size[0], choice.tune, choice.epochs) == expected
    minutes = (budget or 600) / 60
    assert f"of {minutes:.1f} minutes for {images:,} images" in choice.reasons["image_size"]
    assert "epochs fit into" in choice.reasons["tune"]


def test_where_photographs_begin(tmp_path: Path) -> None:
    """As docs/train.md has it: 48 pixels, fewer than 20,000, colours 8 of 255 apart."""
    assert start(arrays(tmp_path / "least.npz", side=48)) == "tiny"
    assert start(arrays(tmp_path / "less.npz", side=47)) is None
    assert (initial.FEW, transfer.PASS, transfer.USUAL, transfer.MOST_EPOCHS) == (20_000, 0.6, 600.0, 30)
    for apart, expected in ((7, None), (8, "tiny")):
        pixels = np.full((8, 64, 64, 3), 100, np.uint8)
        pixels[..., 0] += np.uint8(apart)
        pixels[:, 0, 0, 1] = np.arange(8)  # no two alike
        np.savez(tmp_path / f"{apart}.npz", x_train=pixels, y_train=np.arange(8) % 2)
        assert start(str(tmp_path / f"{apart}.npz")) == expected


def test_the_time_that_was_spent_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(initial.run, "train", lambda *_, **about: told.update(about))
    monkeypatch.setattr(initial, "finetune", lambda *_, **about: told.update(about))
    caller = Caller(started=12.5, afterwards=3.0)
    for data in ("digits", FRUITS):
        told.clear()
        initial.train(data, TrainConfig(), caller=caller)
        assert told["caller"] is caller
