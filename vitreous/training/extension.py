"""Extending a run that has ended, by more epochs or more time: what was asked, and what is written down.

An extension starts from the last state, with the optimizer's memory and the average of the weights; its
learning rate is in `schedule.py`.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from vitreous import console, files, parallel
from vitreous.errors import OptionError, ResumeError
from vitreous.training import folder
from vitreous.training.plan import Plan, seconds
from vitreous.training.schedule import PEAK, Stage

FILE = "extensions.json"


def parse(asked: int | str) -> tuple[int | None, float | None]:
    """Read the value of `--extend`: a whole number of epochs, or a time such as 10m."""
    text = str(asked)
    if text.isdecimal() and int(text) > 0:
        return int(text), None
    if text[-1:] in "smhd" and text[:-1]:
        return None, seconds(text)
    raise OptionError(f"--extend {text} is not understood: give epochs, such as 10, or a time, such as 10m")


def ended(run: Path, extensions: int) -> bool:
    """Tell whether the run in this folder has ended, extended this many times."""
    results = run / "results.json"
    return results.exists() and folder.read_json(results).get("extensions", 0) == extensions


def require_run(run: Path) -> None:
    """Refuse to extend what does not exist, before a plan is made."""
    if not (run / "config.json").exists():
        raise ResumeError(
            f"{run} holds no run to extend: repeat the options of a run that has ended, or name it with --out"
        )


def agree(run: Path, asked: int | str | None, plan: Plan, world: parallel.World) -> list[Stage]:
    """Return the stages of the run in this folder, with a new one if it has ended and one is asked for."""
    found: list[list[Stage]] = []
    parallel.on_main(lambda: found.append(_decide(run, asked)), world)
    known = parallel.broadcast(found[0] if found else None, world)
    assert known is not None
    return [Stage(epochs=plan.epochs, seconds=plan.time_budget), *known]


def _decide(run: Path, asked: int | str | None) -> list[Stage]:
    known = _known(run)
    if asked is None:
        return known
    epochs, budget = parse(asked)
    if ended(run, len(known)):
        results = folder.read_json(run / "results.json")
        about = {"start": results["steps"], "spent": results["seconds"], "asked": str(asked)}
        return [*known, Stage(epochs=epochs, seconds=budget, **about)]
    if not known:
        raise ResumeError(f"{run} has not ended: the same command without --extend goes on with it")
    if known[-1].asked != str(asked):
        raise ResumeError(
            f"{run} is being extended by {known[-1].asked}: repeat that, then --extend {asked} adds to it"
        )
    return known


def begin(run: Path, stages: Sequence[Stage]) -> None:
    """Write down that the last of these stages has begun: from now on the run has not ended."""
    files.write_json(run / FILE, [asdict(each) for each in stages[1:]])


def _known(run: Path) -> list[Stage]:
    path = run / FILE
    return [Stage(**each) for each in folder.read_json(path)] if path.exists() else []


def describe(plan: Plan, stage: Stage) -> str:
    """Return what an extension does, and its schedule, in a sentence."""
    length = f"{stage.epochs:,} epochs" if stage.epochs else console.duration(stage.seconds or 0.0)
    if plan.schedule == "constant":
        rate = f"the learning rate stays at {plan.lr:.3g}"
    else:
        rate = (
            f"the learning rate rises again, to {PEAK * plan.lr:.3g} ({PEAK:g} of its peak) over a tenth of "
            "that, and falls to 0 along a cosine"
        )
    return f"extending by {length} from step {stage.start:,}: {rate}"
