"""Before the loop: whether the options are allowed, and which plan a run follows; nothing is trained here."""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous import checkpoint, console, files, parallel
from vitreous.config import Augment, Compile, FinetuneConfig, TrainConfig
from vitreous.data import Dataset, require_readable, thumbnails, typical_size
from vitreous.data.bad import noted, nothing_to_learn
from vitreous.data.images import ArrayImages, is_utf8
from vitreous.data.pictures import said
from vitreous.errors import DataError, OptionError
from vitreous.models import adapt, cost, zoo
from vitreous.models.architecture import Architecture
from vitreous.models.weights import Model
from vitreous.options import command as command_line
from vitreous.options import refuse_foreign
from vitreous.training import defaults, extension, folder, pace, portability, recipes, transfer
from vitreous.training.chosen import RATES
from vitreous.training.facts import Facts, Pretrained
from vitreous.training.plan import SUPERVISED, Plan, Task, seconds
from vitreous.written import encodable

# What may differ between the command that started a run and the one that goes on with it.
FREE = {
    *("out", "extend", "find_lr", "device", "pixels", "workers", "micro_batch", "compile", "checkpointing"),
    *("shard", "save_every", "keep", "thumbnails", "on_nan", "data_root", "tensorboard", "wandb", "mlflow"),
    *("on_collapse", "preview"),
}


LEAST = {
    **dict.fromkeys(("epochs", "batch_size", "micro_batch", "save_every", "keep", "repeats"), 1),
    **dict.fromkeys(("seed", "warmup", "weight_decay", "clip", "thumbnails", "reconstruct", "workers"), 0),
}
"""The smallest value that an option may have."""


def check_options(options: TrainConfig) -> None:
    """Refuse options that the verb has no use for and numbers that no training can use, before anything is
    read or written."""
    refuse_foreign(options)
    for name, least in LEAST.items():
        value = getattr(options, name)
        if value is not None and not least <= value < math.inf:
            raise OptionError(f"--{name.replace('_', '-')} {value} is out of range: give {least} or more")
    if options.extend is not None:
        extension.parse(options.extend)
        if options.find_lr:
            raise OptionError(
                "--find-lr sweeps for a new run and --extend goes on with one: give one of them"
            )
    if options.thumbnails > thumbnails.MOST:
        raise OptionError(
            f"--thumbnails {options.thumbnails} is out of range: give {thumbnails.MOST} or fewer"
        )
    if options.lr is not None and not 0.0 < options.lr < math.inf:
        raise OptionError(f"--lr {options.lr} is out of range: give more than 0, such as 1e-3")
    for name in RATES:
        value = getattr(options, name)
        if value is not None and not 0.0 <= value < 1.0:
            raise OptionError(
                f"--{name.replace('_', '-')} {value} is out of range: give 0 up to, not including, 1"
            )
    if options.epochs is not None and options.time_budget is not None:
        raise OptionError("--epochs and --time-budget both say when to end: give one of them")
    if options.warmup is not None and options.warmup > 1.0:
        raise OptionError(f"--warmup {options.warmup} is out of range: a part of all steps, from 0 to 1")


@dataclass(frozen=True)
class Start:
    """What a run starts from: a trained model with a head for the task."""

    source: str
    """The checkpoint that it was read from."""
    pretrained: Pretrained
    tensors: Mapping[str, Tensor]
    by_time: bool = False
    """Whether the available time decides which part of it learns."""
    by_train: bool = False
    """Whether `vitreous train` starts from it: then the time also decides the image size, unless that was
    given."""

    def model(self, wanted: Architecture) -> Model:
        """Build it as the plan wants it: perhaps of another size, or with another stochastic depth."""
        size = self.pretrained.architecture.image_size
        model = zoo.build(replace(wanted, image_size=size))
        model.load_state_dict(dict(self.tensors))
        if wanted.image_size != size:
            model.set_image_size(wanted.image_size)
        return model


def identity(
    data: str, dataset: Dataset, options: TrainConfig, start: Start | None = None, task: Task = SUPERVISED
) -> dict[str, Any]:
    """Return what identifies a run: two commands for which it is the same are the same run."""
    source = "" if start is None else start.source
    for path in (data, options.out or "", options.data_root or "", source):
        if not is_utf8(path):
            raise DataError(f"{encodable(path)}: its name is not in UTF-8: rename it")
    if "train" not in dataset.splits or not len(dataset.splits["train"]):
        raise DataError(f"{data} has no training images: a train split is needed")
    now = {name: value for name, value in asdict(options).items() if name not in FREE}
    now["data"] = dataset.fingerprint
    tuned = start is not None and not start.by_train and task.verb == SUPERVISED.verb
    now["verb"] = "finetune" if tuned else task.verb
    if start is not None:
        now["checkpoint"] = checkpoint.fingerprint(start.tensors)
    if task.settings:
        now["task"] = task.settings
    if task.asked:
        now["shape"] = task.asked
    return now


def agree_on_plan(
    run: Path,
    data: str,
    dataset: Dataset,
    options: TrainConfig,
    world: parallel.World,
    start: Start | None = None,
    task: Task = SUPERVISED,
) -> Plan:
    """Return the plan of the run in this folder, if its options are still the same, or choose one.

    A plan that is chosen is written down, except for a sweep, which starts no run.
    """
    now = identity(data, dataset, options, start, task)
    path = run / "config.json"
    chosen: list[Plan] = []

    def decide() -> None:
        if (left_out := said(dataset.left_out)) is not None:
            console.note(left_out)
        if path.exists():
            stored = folder.read_config(run)
            folder.refuse_changes(stored, now, run)
            chosen.append(_stored_plan(stored, dataset))
            return
        noticed = noted(dataset, require_readable(dataset))
        plan = _choose(dataset, options, world, start, task)
        if plan.preprocessing.image_size == (1, 1):
            raise DataError(
                "images of one pixel show nothing to learn: give larger ones, or set --image-size"
            )
        for name, reason in plan.reasons.items():
            console.note(f"{name}: {_shown(plan, name)} ({reason})")
        console.note(f"converts to: {portability.describe(plan)}")
        chosen.append(plan)
        if options.find_lr:
            return
        command = _command(data, options, start, task)
        source = {"command": command, "data": data, "data_root": options.data_root}
        files.write_json(run / "check.json", noticed)
        files.write_json(path, {**source, "options": now, "plan": plan.to_json()})

    parallel.on_main(decide, world)
    plan = parallel.broadcast(chosen[0] if chosen else None, world)
    assert plan is not None
    return plan


def _command(data: str, options: TrainConfig, start: Start | None, task: Task) -> str:
    """Return the command line that starts the same run."""
    if start is None or task is not SUPERVISED:
        return command_line(task.verb, (*task.arguments, data), options)
    if not start.by_train:
        return command_line("finetune", (start.source, data), options)
    own = {each.name: getattr(options, each.name) for each in fields(TrainConfig)}
    return command_line("train", (data,), TrainConfig(**{**own, "init": start.source, "recipe": None}))


def _choose(
    dataset: Dataset, options: TrainConfig, world: parallel.World, start: Start | None, task: Task
) -> Plan:
    facts = measure_facts(dataset, world)
    if start is not None and task is SUPERVISED:
        return _choose_transfer(dataset, options, world, start, facts)
    recipe = recipes.read(options.recipe) if options.recipe else None
    if recipe is None and task.recipe is not None:
        recipe = task.recipe(options, facts)
    return defaults.choose(options, facts, None if start is None else start.pretrained, recipe, task)


def _choose_transfer(
    dataset: Dataset, options: TrainConfig, world: parallel.World, start: Start, facts: Facts
) -> Plan:
    """Choose for a trained model; where time decides, also what of it learns, and at which size."""
    assert isinstance(options, FinetuneConfig)
    if not start.by_time:
        return defaults.choose(options, facts, start.pretrained, _recipe(options, facts))
    model, preprocessing = start.pretrained.architecture, start.pretrained.preprocessing
    precision, _ = defaults.precision(options, facts, model)
    timed = start.model(model)
    parallel.settle(timed, precision, world)
    choice = transfer.choose(
        model,
        images=facts.images,
        evaluated=sum(len(split) for name, split in dataset.splits.items() if name != "train"),
        side=min(facts.size) if start.by_train and not (options.image_size or options.patch_size) else None,
        budget=None if options.time_budget is None else seconds(options.time_budget),
        rate=pace.forward_rate(timed, world.device, precision),
        reading=pace.reading_seconds(dataset.splits["train"], preprocessing, world.device),
    )
    if choice.too_short and options.time_budget is not None:
        console.warn(
            f"--time-budget {options.time_budget} is too short: one pass over the images takes about "
            f"{console.duration(choice.pass_seconds)}, so the run will take longer"
        )
    pretrained = replace(
        start.pretrained,
        architecture=choice.architecture,
        preprocessing=adapt.refit(preprocessing, choice.architecture.image_size, preprocessing.channels),
        tune=choice.tune,
        fit_head=fits_head(options, model),
    )
    recipe = _recipe(replace(options, tune=choice.tune), facts)
    recipe = replace(recipe, values={**recipe.values, "epochs": choice.epochs})
    plan = defaults.choose(options, facts, pretrained, recipe)
    return replace(plan, reasons={**choice.reasons, **plan.reasons})


def fits_head(options: FinetuneConfig, model: Architecture) -> bool:
    """Tell whether the head is fitted first where time decides: as asked, else wherever it can be."""
    if options.fit_head is not None:
        return options.fit_head == "yes"
    # A ResNet's head is a convolution, a shard is no matrix, and a head to be kept is not replaced.
    return model.kind == "vit" and not options.shard and not options.keep_head


def _recipe(options: FinetuneConfig, facts: Facts) -> recipes.Recipe:
    """Return the recipe for fine-tuning, and print which it is if nobody named it."""
    recipe = recipes.for_finetuning(options, facts.images, facts.device == "cuda")
    if recipe.reason:
        console.note(f"recipe: {recipe.source} ({recipe.reason})")
    return recipe


def require_classes(dataset: Dataset) -> None:
    """Refuse data whose training images teach no classes: "100 %" would be its result."""
    split = dataset.splits.get("train")
    if split is not None and len(split) and (reason := nothing_to_learn(split)) is not None:
        raise DataError(reason)


def _stored_plan(stored: Mapping[str, Any], dataset: Dataset) -> Plan:
    """Read the plan of a run; for one of an earlier version, add what only its options held then."""
    values, options = dict(stored["plan"]), stored["options"]
    if isinstance(values["augment"], str):
        split, preprocessing = dataset.splits["train"], values["preprocessing"]
        size = tuple(split.images.pixels.shape[1:3]) if isinstance(split.images, ArrayImages) else (224, 224)
        about = {"mirror": split.mirror, "size": size, "channels": len(preprocessing["mean"])}
        values["augment"] = asdict(
            defaults.resolve(values["augment"], **about, resize=preprocessing["resize"])
        )
        given = {name: options.get(name, value) for name, value in folder.DEFAULTS.items()}
        values |= {**given, "tune": options.get("tune", "full"), "binary_targets": False}
    return Plan.from_json(values)


def measure_facts(dataset: Dataset, world: parallel.World) -> Facts:
    """Measure what the choices depend on."""
    split = dataset.splits["train"]
    channels = split.images.pixels.shape[3] if isinstance(split.images, ArrayImages) else 3
    return Facts(
        images=len(split),
        classes=split.classes,
        multilabel=dataset.multilabel,
        size=typical_size(split),
        channels=int(channels),
        mirror=split.mirror,
        device=world.device.type,
        bf16=parallel.has_bf16(world.device),
        cores=cores(),
    )


def _shown(plan: Plan, name: str) -> str:
    if name == "model":
        kind = {"vit": "ViT", "resnet": "ResNet"}[plan.architecture.kind]
        return f"{kind} of {cost.parameters(plan.architecture):,} parameters"
    value = getattr(plan, name) if hasattr(plan, name) else getattr(plan.architecture, name)
    if name == "augment":
        nothing = asdict(Augment(crop_scale=None, flip=0.0))
        varied = {key: each for key, each in asdict(value).items() if each != nothing[key]}
        return ", ".join(f"{key} {_text(each)}" for key, each in varied.items()) or "nothing is varied"
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ("x" if all(isinstance(each, int) for each in value) else " to ").join(map(_text, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def seed(options: TrainConfig) -> int:
    """Return the seed: the data is split by it before there is a plan."""
    named = options.recipe in (*recipes.TABLE, "auto", "none")  # whatever lies in this folder
    if options.seed is None and options.recipe and not named and Path(options.recipe).exists():
        return recipes.read(options.recipe).values.get("seed", 0)
    return options.seed or 0


def cores() -> int:
    """Return the processors for each rank of this machine."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def compile_mode(options: TrainConfig, world: parallel.World) -> Compile:
    """Return how to compile: on GPUs, unless the user says otherwise."""
    if options.compile != "auto":
        return options.compile
    return "blocks" if world.device.type == "cuda" else "none"
