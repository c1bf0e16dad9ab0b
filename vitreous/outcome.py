"""After the loop: sealed files, final figures, model card and table; nothing is trained here."""

import json
import platform
import statistics
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitreous import checkpoint, console, files, parallel, planning, resume, tuning
from vitreous.config import TrainConfig
from vitreous.data import Dataset
from vitreous.defaults import Plan
from vitreous.evals import validation
from vitreous.models import cost
from vitreous.models.weights import Weights
from vitreous.objectives import Objective
from vitreous.objectives.supervised import Supervised
from vitreous.session import Clock, Log, Progress, State


@dataclass
class Result:
    """What came of a run."""

    folder: Path
    dataset: Dataset
    """What it learned from and was measured on."""
    figures: dict[str, Any]
    """What `results.json` holds: loss and accuracy by split, time, speed, memory."""
    leads: bool = True
    """Whether this process is the one that prints and writes."""


def finished(folder: Path, dataset: Dataset, world: parallel.World) -> Result | None:
    """Return what came of the run in this folder, if it has ended."""
    path = folder / "results.json"
    known = parallel.from_leader(resume.read_json(path) if world.leads and path.exists() else None, world)
    return None if known is None else Result(folder, dataset, known, world.leads)


def seal(
    path: Path,
    state: State,
    plan: Plan,
    dataset: Dataset,
    at: Progress,
    world: parallel.World,
    results: dict[str, Any],
) -> None:
    """Write the model, as it would be used, into one sealed file."""
    objective = state.module
    assert isinstance(objective, Objective)
    with state.ema.applied() if state.ema else nullcontext():
        tensors = tuning.merged(parallel.whole_tensors(objective.model.state_dict()))
    about = {"recipe": _recipe(plan), "results": results, "data": dataset.fingerprint, "step": at.step}
    if dataset.multilabel:
        about["multilabel"] = True
    weights = Weights(
        config=plan.architecture,
        tensors=tensors,
        preprocessing=plan.preprocessing,
        labels=dataset.labels,
        about=about,
    )
    parallel.leader_does(lambda: checkpoint.write(weights, path), world)


def _recipe(plan: Plan) -> dict[str, Any]:
    return {k: v for k, v in plan.to_json().items() if k not in ("architecture", "preprocessing", "reasons")}


def conclude(
    folder: Path,
    state: State,
    plan: Plan,
    options: TrainConfig,
    dataset: Dataset,
    at: Progress,
    clock: Clock,
    log: Log,
    world: parallel.World,
    micro: int,
) -> Result:
    """Seal the last weights, judge the best ones on images that had no say, and write it all down."""
    objective = state.module
    assert isinstance(objective, Objective)
    best, results = folder / "best.safetensors", folder / "results.json"
    seal(folder / "last.safetensors", state, plan, dataset, at, world, {})
    if at.best is None:
        seal(best, state, plan, dataset, at, world, {})
    weights = checkpoint.read(best)
    parallel.load_whole(objective.model, tuning.unmerged(weights.tensors, objective.model))
    figures: dict[str, Any] = {"step": int(at.best[2]) if at.best else at.step, "steps": at.steps}
    details: dict[str, Any] = {}
    split = next((name for name in ("test", "val") if name in dataset.splits), None)
    if split is not None and isinstance(objective, Supervised):
        loader = planning.judging(dataset, split, plan, world, 0)
        seen = validation.Details(loader.split)
        found = validation.validate(
            objective.model,
            loader,
            objective.losses,
            world,
            precision=plan.precision,
            micro_batch=micro,
            details=seen,
        )
        details = seen.gather(world)
        if found is not None and not dataset.multilabel:
            found["mean_per_class_accuracy"] = _mean_per_class(details["confusion"])
        figures[split] = found
        log.evaluation(at, split, found or {})
    if "val" in weights.about["results"]:
        figures["val"] = weights.about["results"]["val"]
    figures |= _speed(plan, clock, log, world, at)
    weights.about["results"] = {name: figures[name] for name in ("val", "test") if name in figures}

    def write() -> None:
        checkpoint.write(weights, best)
        resume.write_json(folder / "evaluation.json", {"split": split, "labels": dataset.labels, **details})
        files.write_text(folder / "model_card.md", _card(plan, options, dataset, figures))
        resume.write_json(results, figures)  # last: it says that all of it is done

    parallel.leader_does(write, world)
    return Result(folder, dataset, figures, world.leads)


def _mean_per_class(confusion: list[list[int]]) -> float:
    return statistics.fmean(row[i] / sum(row) for i, row in enumerate(confusion) if any(row))


def _speed(plan: Plan, clock: Clock, log: Log, world: parallel.World, at: Progress) -> dict[str, Any]:
    peaks = parallel.gather(parallel.peak_memory(world.device), world)
    speed = statistics.median(log.speeds) if log.speeds else None
    share = None
    if speed:
        flops = 2 * cost.flops(plan.architecture)  # the table counts multiply-adds
        rate = parallel.matrix_rate(world.device, plan.precision) * world.size
        share = round(parallel.utilization(speed, flops, rate), 4)
    return {
        "seconds": round(clock.seconds, 1),
        "images_per_second": None if speed is None else round(speed, 1),
        "mfu": share,
        "peak_memory_bytes": max(peaks),
        "ranks": world.size,
        "device": _device(world),
    }


def _device(world: parallel.World) -> str:
    if world.device.type == "cuda":
        return torch.cuda.get_device_name(world.device)
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def show(result: Result) -> None:
    """Draw the final table."""
    figures = result.figures
    rows: list[list[console.Cell]] = []
    for split in ("val", "test"):
        if split in figures:
            found = figures[split]
            for name in ("mean_average_precision", "accuracy", "top5", "loss"):
                if name in found:
                    text = f"{found[name]:.4f}" if name == "loss" else f"{found[name]:.2%}"
                    rows.append([f"{split} {name.replace('_', ' ')}", text])
    rows.append(["best at step", f"{figures['step']:,} of {figures['steps']:,}"])
    rows.append(["time", console.duration(figures["seconds"])])
    if figures.get("images_per_second"):
        rows.append(["images/s", f"{figures['images_per_second']:,.0f}"])
    if figures.get("mfu") is not None:
        rows.append(["MFU (of the measured matrix rate)", f"{figures['mfu']:.1%}"])
    rows.append(["peak memory", console.size(figures["peak_memory_bytes"])])
    rows.append(["model", str(result.folder / "best.safetensors")])
    console.table(["result", "value"], rows)


def _card(plan: Plan, options: TrainConfig, dataset: Dataset, figures: dict[str, Any]) -> str:
    """Return the model card: what it is, what it was trained on, how good it is, what it is not for."""
    splits = ", ".join(f"{len(split):,} {name}" for name, split in dataset.splits.items())
    judged = "mean_average_precision" if dataset.multilabel else "accuracy"
    measured = "\n".join(
        f"| {name} | {each[judged]:.2%} | {each['loss']:.4f} | {each['count']:,.0f} |"
        for name in ("val", "test")
        if (each := figures.get(name))
    )
    recipe = "\n".join(f"- {name}: {json.dumps(value)}" for name, value in _recipe(plan).items())
    size = plan.preprocessing.image_size
    labels = ", ".join(label.replace("|", "\\|") for label in dataset.labels[:20])
    more = f" and {len(dataset.labels) - 20:,} more" if len(dataset.labels) > 20 else ""
    carved = f" Carved from the training images: {', '.join(dataset.carved)}." if dataset.carved else ""
    taken = f"{figures['device']}, {figures['ranks']} rank(s), in {console.duration(figures['seconds'])}"
    answers = "scores each of them" if dataset.multilabel else "answers with one of them"
    return f"""# Model card

An image classifier of {cost.parameters(plan.architecture):,} parameters.
Input: {plan.preprocessing.channels} channels of {size[0]}x{size[1]} pixels; it holds its preprocessing.
Its {len(dataset.labels):,} classes: {labels}{more}.

## Data

{splits} images; fingerprint `{dataset.fingerprint}`.{carved}

## Results

| split | {judged.replace("_", " ")} | loss | images |
|---|---|---|---|
{measured}

Taken on {taken}. The best step was chosen on `val`.

## Recipe

{recipe}
- seed: {options.seed}

## Limits

It knows these classes only, and {answers} for any picture. How it does on images that differ
from its training images (other cameras, other light, other people) was not measured.
"""
