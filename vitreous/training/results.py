"""What a run leaves behind: sealed files, final figures, model card; nothing is trained here."""

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vitreous import checkpoint, console, files, parallel
from vitreous.data import Dataset, Split, thumbnails
from vitreous.errors import CheckpointError, TrainingError
from vitreous.evals.outputs import Inference
from vitreous.models import cost
from vitreous.models.weights import Weights
from vitreous.objectives import Evaluation, Objective
from vitreous.predict import Classifier, load
from vitreous.training import advice, card, extension, folder, loaders, tuning, watch

if TYPE_CHECKING:
    from vitreous.training.loop import Training


@dataclass
class Result:
    """The outcome of a run, from its folder."""

    folder: Path
    dataset: Dataset
    """What it learned from and was measured on."""
    figures: dict[str, Any]
    """What `results.json` holds: loss and accuracy by split, time, speed, memory."""
    is_main: bool = True
    """Whether this process is the one that prints and writes."""
    device: str = field(default="cpu", repr=False)

    @cached_property
    def classifier(self) -> Classifier:
        """The best model, on the device that trained it."""
        return load(self.folder / "best.safetensors", device=self.device)


def finished(run: Path, dataset: Dataset, extensions: int, world: parallel.World) -> Result | None:
    """Return the result of the run in this folder, if it has ended, extended this many times."""
    ended = world.is_main and extension.ended(run, extensions)
    known = parallel.broadcast(folder.read_json(run / "results.json") if ended else None, world)
    return None if known is None else Result(run, dataset, known, world.is_main, str(world.device))


def best_score(training: "Training") -> list[float] | None:
    """Return the score of the best model so far: what its sealed file says of it."""
    path, known = training.folder / "best.safetensors", None
    if training.world.is_main and path.is_file():
        try:
            found = checkpoint.read(path).about.get("results", {}).get("val")
            known = None if found is None else training.objective.score(found)
        except CheckpointError as error:
            damaged = path.replace(path.with_name(f"{path.name}.damaged"))
            console.warn(f"{error}; kept as {damaged.name}: the best model is chosen anew from here on")
    return parallel.broadcast(known, training.world)


def seal(training: "Training", name: str, results: dict[str, Any]) -> None:
    """Write the model, as it would be used, into one sealed file of the run folder."""
    plan, dataset, objective = training.plan, training.dataset, training.objective
    with training.state.averaged():
        tensors = tuning.merged(parallel.whole_tensors(objective.kept.state_dict()))
    weights = Weights(
        config=plan.architecture,
        tensors=tensors,
        preprocessing=plan.preprocessing,
        labels=dataset.labels if plan.architecture.num_classes else [],
        about={
            "recipe": plan.recipe(),
            "results": results,
            "data": dataset.fingerprint,
            "step": training.position.step,
            **({"extended": [each.asked for each in extended]} if (extended := training.stages[1:]) else {}),
            **objective.sealed(),
        },
    )
    parallel.on_main(lambda: checkpoint.write(weights, training.folder / name), training.world)


def conclude(training: "Training") -> Result:
    """Seal the last weights, evaluate the best ones on held-out images, and write it all down."""
    run, plan, world, objective = training.folder, training.plan, training.world, training.objective
    seal(training, "last.safetensors", {})
    painted = watch.pictures(training)  # by the last weights, all of which are still there
    best = run / "best.safetensors"
    if best_score(training) is None:
        seal(training, best.name, {})
    weights = checkpoint.read(best)
    parallel.load_whole(objective.kept, tuning.unmerged(weights.tensors, objective.kept))
    results: dict[str, Any] = {"step": weights.about["step"], "steps": training.position.steps}
    results |= {"val": found} if (found := weights.about["results"].get("val")) else {}
    document: dict[str, Any] = {"labels": training.dataset.labels}
    split = next((name for name in ("test", "val") if name in training.dataset.splits), None)
    if split is not None:
        images = training.dataset.splits[split]
        evaluation = _evaluate(training, images, split)
        document |= {"split": split, "seed": plan.seed, **evaluation.document()}
        for row in document.get("worst", []):
            row["file"] = images.name(row["index"])
        results[split] = _known(objective, evaluation.figures, results.get(split, {}))
        if objective.sealed_figures is not None:
            document = {name: value for name, value in document.items() if name not in evaluation.figures}
            document |= results[split]
        if split == "test":
            training.log.evaluation(training.position.step, split, results[split])
    if objective.headline in advice.SHARES:
        train = training.dataset.splits["train"]
        known = train.select(train.sample(advice.SAMPLE))
        results["train"] = dict(_evaluate(training, known, "train").figures)
    results |= _speed(training)
    passes = training.position.step / training.loader.steps_per_epoch
    results["advice"] = advice.advise(results, document, plan, objective.headline, passes, training.options)
    if len(training.stages) > 1:
        results["extensions"] = len(training.stages) - 1
    weights.about["results"] = {name: results[name] for name in ("val", "test") if name in results}

    def write() -> None:
        if painted is not None:
            files.write_bytes(run / "preview.png", painted)
        if training.options.thumbnails:
            split, channels = training.dataset.splits["train"], plan.preprocessing.channels
            made = thumbnails.make(split, training.dataset.labels, training.options.thumbnails, channels)
            weights.about[thumbnails.ENTRY] = made
        checkpoint.write(weights, best)
        files.write_json(run / "evaluation.json", document)
        files.write_text(run / "model_card.md", card.write(training, results, weights.about))
        files.write_json(run / "results.json", results)  # last: that it exists says that all is done

    parallel.on_main(write, world)
    return Result(run, training.dataset, results, world.is_main, str(world.device))


def _known(objective: Objective, found: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Return an evaluation's figures as far as they follow from the sealed model; the others as they were
    when it was the best (`before`), together with the parts that are thrown away."""
    if objective.sealed_figures is None:
        return dict(found)
    return {**before, **{name: found[name] for name in objective.sealed_figures if name in found}}


def _evaluate(training: "Training", images: Split, split: str) -> Evaluation:
    plan, world = training.plan, training.world
    loader = loaders.evaluation_loader(images, plan, training.options, world)
    micro_batch = training.step.gradients.micro_batch
    inference = Inference(world=world, precision=plan.precision, micro_batch=micro_batch)
    with parallel.uncompiled():
        found = training.objective.evaluate(loader, inference)
    require_finite(found.figures, f"on the {split} images")
    return found


def require_finite(figures: Mapping[str, float], where: str) -> None:
    """Refuse an evaluation that is not a number: no later one would be, and none can be written down."""
    if wrong := [name for name, value in figures.items() if not math.isfinite(value)]:
        raise TrainingError(
            f"the evaluation {where} is not finite ({', '.join(wrong)}): "
            f"lower --lr in another --out, or try --precision float32"
        )


def _speed(training: "Training") -> dict[str, Any]:
    world, plan = training.world, training.plan
    peaks = parallel.gather(parallel.peak_memory(world.device), world)
    speed, share = training.log.images_per_second, None
    if speed and training.objective.whole_passes:
        flops = 2 * cost.training_flops(plan.architecture)  # the table counts multiply-adds
        rate = parallel.matrix_rate(world.device, plan.precision) * world.size
        passes = tuning.passes(plan.architecture, plan.tune)
        share = round(parallel.utilization(speed, flops, rate, passes), 4)
    clock, seconds = training.clock, training.log.seconds
    waited = min(1.0, clock.waited / seconds) if seconds else None
    return {
        "seconds": round(training.seconds, 1),
        "start_seconds": None if clock.start is None else round(clock.start, 2),
        "waited_for_data": None if waited is None else round(waited, 4),
        "bottleneck": None if waited is None else "loader" if waited > 0.5 else "model",
        "images_per_second": None if speed is None else round(speed, 1),
        "mfu": share,
        "peak_memory_bytes": max(peaks),
        "ranks": world.size,
        "device": _device(world),
    }


def _device(world: parallel.World) -> str:
    if world.device.type == "cuda":
        return torch.cuda.get_device_name(world.device)
    threads = torch.get_num_threads()
    return f"{platform.processor() or platform.machine()}, {threads} thread" + "s" * (threads != 1)
