"""Going on with a run that has ended: more epochs or more time, with a schedule of their own.

A run is a list of stages: the one of its plan, and one for each `--extend`. An extension starts from the
last state, with the optimizer's memory and the average of the weights. Its learning rate rises again, to a
share of the peak, and falls to zero along a cosine: at the rate at which a run ends, next to zero, nothing
more would be learned.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from vitreous import console, files, optim, parallel
from vitreous.errors import OptionError, ResumeError
from vitreous.training import folder
from vitreous.training.plan import Plan, seconds
from vitreous.training.state import Position

PEAK = 0.5
"""Share of the plan's peak that the learning rate rises to again."""
WARMUP = 0.1
"""Part of the extension over which it rises."""
FILE = "extensions.json"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a run with a length and a schedule of its own."""

    start: int = 0
    """The step that it begins with."""
    epochs: int | None
    """None: as many as fit into the time."""
    seconds: float | None
    """Its time budget."""
    spent: float = 0.0
    """Seconds that the run had taken before it."""
    asked: str = ""
    """The value of `--extend`."""


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


def progress(stages: Sequence[Stage], position: Position) -> float:
    """Return the part of the plan, or of its last extension, that is behind the next step: 0 to 1."""
    _, step, steps = _within(stages, position)
    return min(1.0, step / max(1, steps))


def _within(stages: Sequence[Stage], position: Position) -> tuple[int, float, int]:
    """Return the number of the stage that the next step is in, how many steps into it that step is (by the
    share of its time that has passed, where it has a time), and how many steps the stage has."""
    number = max(number for number, stage in enumerate(stages) if stage.start <= position.step)
    stage, last = stages[number], number == len(stages) - 1
    steps = (position.steps if last else stages[number + 1].start) - stage.start
    by_time = last and stage.seconds is not None
    return number, position.share * steps if by_time else position.step - stage.start, steps


def learning_rate(plan: Plan, stages: Sequence[Stage], position: Position) -> float:
    """Return the rate of the next step."""
    number, step, steps = _within(stages, position)
    if not number or plan.schedule == "constant":
        cooldown = steps // 5 if plan.schedule == "rsqrt" else 0
        warmup = 0 if number else round(plan.warmup * steps)
        about = {"warmup": warmup, "schedule": plan.schedule, "cooldown": cooldown}
        return optim.learning_rate(step, peak=plan.lr, steps=steps, **about)
    return optim.learning_rate(step, peak=PEAK * plan.lr, steps=steps, warmup=round(WARMUP * steps))


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
