"""`--extend`: a run that has ended goes on from its last state, with a schedule that it says."""

import json
import shutil
from pathlib import Path

import pytest

from tests.training.runs import (
    assert_same_run,
    assert_same_weights,
    kill,
    plan_of,
    records,
    run,
    weights,
)
from vitreous import checkpoint
from vitreous.errors import OptionError, ResumeError
from vitreous.training import Result, extension, schedule
from vitreous.training.schedule import PEAK, Stage
from vitreous.training.state import Position


@pytest.fixture(scope="module")
def extended(data: str, undisturbed: Result, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The undisturbed run of 36 steps, extended by three epochs of six."""
    folder = Path(shutil.copytree(undisturbed.folder, tmp_path_factory.mktemp("extended") / "run"))
    return run(data, folder, extend=3)


def test_an_ended_run_goes_on_from_its_last_state(undisturbed: Result, extended: Result) -> None:
    before, after = records(undisturbed.folder, "train"), records(extended.folder, "train")
    assert after[: len(before)] == before
    assert [record["step"] for record in after[len(before) :]] == [42, 48, 54]
    rates = [record["lr"] for record in after[len(before) :]]
    peak = PEAK * plan_of(extended.folder).lr
    assert 0.0 < rates[2] < rates[1] < rates[0] < peak and rates[0] > 0.5 * peak
    assert extended.figures["steps"] == 54 and extended.figures["extensions"] == 1
    assert extended.figures["seconds"] > undisturbed.figures["seconds"]
    assert after[-1]["loss"] < before[-1]["loss"]  # more was learned, from where it was
    assert "extended" not in checkpoint.read(undisturbed.folder / "last.safetensors").about
    assert checkpoint.read(extended.folder / "last.safetensors").about["extended"] == ["3"]
    card = (extended.folder / "model_card.md").read_text()
    assert "After its recipe the run was extended from step 36 by 3 epochs." in card


def test_the_card_keeps_the_calibration_of_a_model_that_stays_the_best(
    data: str, undisturbed: Result, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(undisturbed.folder, tmp_path / "run"))
    weights = checkpoint.read(folder / "best.safetensors")
    weights.about["calibration"] = {"temperature": 1.5, "images": 30}
    weights.about["results"]["val"] |= {"accuracy": 1.0, "loss": 0.0}  # nothing can be better
    checkpoint.write(weights, folder / "best.safetensors")
    run(data, folder, extend=3)
    card = (folder / "model_card.md").read_text()
    assert "## Calibration\n\nProbabilities are calibrated: logits are divided by 1.5.\n\n## Recipe" in card
    assert "## Calibration" not in (undisturbed.folder / "model_card.md").read_text()


@pytest.mark.parametrize("when", [1, 9])
def test_a_kill_within_the_extension_changes_nothing(
    when: int, data: str, undisturbed: Result, extended: Result, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(undisturbed.folder, tmp_path / "run"))
    assert kill(data, folder, "step", when, extend=3, save_every=4) != 0
    assert json.loads((folder / "results.json").read_text()) == undisturbed.figures  # until the new are whole
    with pytest.raises(ResumeError, match="is being extended by 3: repeat that, then --extend 5 adds to it"):
        run(data, folder, extend=5)
    run(data, folder, save_every=4)  # the command of the run itself goes on with its extension too
    assert_same_run(folder, extended)


def test_an_ended_extension_is_shown_or_extended_again(
    data: str, extended: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(extended.folder, tmp_path / "run"))
    assert run(data, folder).figures == extended.figures
    assert "has ended: --extend goes on with it" in capsys.readouterr().err
    again = run(data, folder, extend="1s")
    said = capsys.readouterr().err
    assert "extending by 1.0s from step 54: the learning rate rises again, to 0.001 (0.5 of its peak)" in said
    assert again.figures["extensions"] == 2 and again.figures["steps"] > 54
    assert 0.0 < records(folder, "train")[-1]["lr"] <= 0.001


def test_what_can_not_be_extended_is_refused(data: str, undisturbed: Result, tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match="new holds no run to extend: repeat the options of a run that has"):
        run(data, tmp_path / "new", extend=3)
    assert not (tmp_path / "new").exists()
    assert kill(data, tmp_path / "killed", "step", 9, save_every=4) != 0
    with pytest.raises(ResumeError, match="killed has not ended: the same command without --extend goes on"):
        run(data, tmp_path / "killed", extend=3)
    bare = Path(shutil.copytree(undisturbed.folder, tmp_path / "bare"))
    shutil.rmtree(bare / "resume")
    with pytest.raises(ResumeError, match="resume holds no state to go on from: use finetune"):
        run(data, bare, extend=3)
    with pytest.raises(ResumeError, match=r"lr was 0\.002 and is now 0\.1"):
        run(data, undisturbed.folder, extend=3, lr=0.1)
    assert run(data, bare).figures == undisturbed.figures  # as if nothing had been asked
    assert_same_weights(weights(bare), weights(undisturbed.folder))


@pytest.mark.parametrize("asked", ["0", "-1", "1.5", "", "m", "10x", "-3m"])
def test_a_length_that_means_nothing_is_refused(asked: str) -> None:
    with pytest.raises(OptionError, match="is not understood: give"):
        extension.parse(asked)


def test_epochs_and_times_are_told_apart() -> None:
    assert extension.parse("10") == extension.parse(10) == (10, None)
    assert extension.parse("10m") == (None, 600.0)
    assert extension.parse("90s") == (None, 90.0)


def test_each_stage_has_its_schedule(undisturbed: Result) -> None:
    plan = plan_of(undisturbed.folder)
    stages = [Stage(epochs=6, seconds=None), Stage(start=36, epochs=10, seconds=None)]
    rates = [schedule.learning_rate(plan, stages, Position(step=step, steps=96)) for step in range(96)]
    assert rates[:36] == [
        schedule.learning_rate(plan, stages[:1], Position(step=step, steps=36)) for step in range(36)
    ]  # a run that lost its last checkpoints repeats its first stage as it was
    assert max(rates[36:]) == pytest.approx(PEAK * plan.lr)
    assert rates[36:].index(max(rates[36:])) in (5, 6) and rates[95] < 0.01 * plan.lr
    timed = [Stage(epochs=6, seconds=None), Stage(start=36, epochs=None, seconds=60.0)]
    halfway = Position(step=40, steps=96, share=0.5)
    assert schedule.learning_rate(plan, timed, halfway) == pytest.approx(rates[66])
