"""`vitreous pretrain`: a model learns from pictures alone, through the same loop as training."""

from collections.abc import Mapping
from dataclasses import asdict
from math import sqrt
from typing import Any

from vitreous import objectives
from vitreous.config import Augment, PretrainConfig
from vitreous.data import InMemory, open_pictures
from vitreous.errors import OptionError
from vitreous.models.architecture import ViTConfig, pair
from vitreous.objectives import mae, masked, patches
from vitreous.options import refuse_unused
from vitreous.predict import load
from vitreous.training import defaults, setup
from vitreous.training.caller import Caller
from vitreous.training.facts import Facts, Pretrained
from vitreous.training.plan import Plan, Task
from vitreous.training.recipes import Recipe
from vitreous.training.results import Result
from vitreous.training.run import train
from vitreous.training.setup import Start
from vitreous.training.watch import Watch

SMALL_IMAGES = 96
"""Side of an image below which crops must keep more of it, or hardly anything is left."""
CROPS = {"small": ((0.7, 1.0), (0.2, 0.5)), "large": ((0.4, 1.0), (0.05, 0.4))}
"""Parts of an image's area that DINO's large and small crops keep, by the images' size."""

SETTINGS = {
    "masked": ("target",),
    "mae": ("mask_ratio", "decoder_width", "decoder_depth"),
    "dino": ("prototypes", "local_crops", "local_scale"),
}
"""The options that each objective takes for itself."""


def pretrain(
    data: str | InMemory,
    options: PretrainConfig,
    *,
    shape: Mapping[str, Any] | None = None,
    make_objective: objectives.Build | None = None,
    caller: Caller | None = None,
) -> Result:
    """Teach a model what pictures look like, or go on with a run that was stopped.

    `shape`: fields of the model's configuration, beyond the options. `make_objective`: a task of one's own,
    which sees the images as that of the options does.
    """
    caller = caller or Caller()
    setup.check_options(options)
    _check(options)
    dataset = open_pictures(data, data_root=options.data_root, seed=setup.seed(options))
    task = Task(
        objective=options.objective,
        settings=_settings(options),
        shape={"num_classes": 0, "pre_logits": None, "patch_drop": 0.0},
        asked=dict(shape or {}),
        labels=False,
        verb="pretrain",
        recipe=recipe,
        fill=lambda plan: filled(options, plan),
        refuse=_refuse,
    )
    watch = Watch(stop=options.on_collapse == "stop", preview=options.preview)
    start = _start(options)
    more: dict[str, Any] = {"make_objective": make_objective, "caller": caller, "watch": watch}
    return train(data, options, task=task, dataset=dataset, start=start, **more)


def _check(options: PretrainConfig) -> None:
    if options.balance == "loss":
        raise OptionError(
            "--balance loss weighs the loss of labels, which pre-training does not have: leave it out"
        )
    others = (
        name for objective, names in SETTINGS.items() if objective != options.objective for name in names
    )
    refuse_unused(options, others, f"with --objective {options.objective}")
    if not 0.0 < options.mask_ratio < 1.0:
        raise OptionError(f"--mask-ratio {options.mask_ratio} is out of range: more than 0, less than 1")
    for name, least in (("decoder_depth", 1), ("prototypes", 2), ("local_crops", 0)):
        if (value := getattr(options, name)) < least:
            raise OptionError(f"--{name.replace('_', '-')} {value} is out of range: give {least} or more")
    if options.decoder_width is not None and (options.decoder_width < 4 or options.decoder_width % 4):
        raise OptionError(f"--decoder-width {options.decoder_width} is not a multiple of 4: give one, as 128")
    low, high = options.local_scale or (0.1, 1.0)
    if not 0.0 < low <= high <= 1.0:
        raise OptionError(f"--local-scale {low} {high} is out of range: parts of an image, up to 1")
    if options.preview and options.objective == "dino":
        raise OptionError("--preview shows what masked or mae paint, dino paints nothing: leave it out")
    if options.shard:  # parts of the model are called by themselves, and only the whole gathers its shards
        raise OptionError("--shard splits models that are trained with labels: leave it out")


def _refuse(plan: Plan) -> None:
    """Refuse what pre-training can't use, from whichever option, recipe or checkpoint it came."""
    if plan.objective == "mae":
        mae.seen_patches(patches.require_plain(plan.architecture), plan.settings["mask_ratio"])
    if plan.objective == "masked":
        masked.predicted_values(patches.require_plain(plan.architecture), plan.settings["target"])
    if plan.preprocessing.resize == "pad":
        raise OptionError(
            "--fit pad leaves patches that show nothing: pre-training needs --fit cover or stretch"
        )
    for name in ("mixup", "cutmix"):
        if value := getattr(plan.augment, name):
            raise OptionError(f"--{name} {value:g} mixes images that are to be told apart: add --{name} 0")


def _settings(options: PretrainConfig) -> dict[str, Any]:
    """Return the task's settings as they were asked for; those that are None follow from the model."""
    given = asdict(options)
    return {name: given[name] for name in SETTINGS[options.objective]}


def filled(options: PretrainConfig, plan: Plan) -> dict[str, Any]:
    """Return the settings that depend on the model, where they were left open."""
    model = plan.architecture
    if options.objective == "mae" and options.decoder_width is None and isinstance(model, ViTConfig):
        return {"decoder_width": max(32, model.width // 2 // 32 * 32)}
    if options.objective == "dino":
        kind = "small" if min(model.image_size) < SMALL_IMAGES else "large"
        halves = tuple(
            max(1, round(side / 2 / step)) * step
            for side, step in zip(model.image_size, model.step, strict=True)
        )
        return {"local_scale": options.local_scale or CROPS[kind][1], "local_size": halves}
    return {}


def _start(options: PretrainConfig) -> Start | None:
    """Return the trained model to go on from, without its head."""
    if options.init in (None, "none"):
        return None
    if options.model is not None:
        raise OptionError(f"--model is for training from scratch: --init {options.init} has its own model")
    size = pair(options.image_size, "--image-size") if options.image_size else None
    patch = pair(options.patch_size, "--patch-size") if options.patch_size else None
    classifier = load(options.init, image_size=size, patch_size=patch)
    classifier.model.reset_classifier(0)
    pretrained = Pretrained(
        architecture=classifier.model.config,
        preprocessing=classifier.preprocess.preprocessing,
        source=options.init,
    )
    return Start(options.init, pretrained, dict(classifier.model.state_dict()))


def recipe(options: PretrainConfig, facts: Facts) -> Recipe:
    """Return an objective's defaults, for what the user left open."""
    batch = options.batch_size or defaults.batch_size(facts)
    crops = min(facts.size) >= 16
    mirror = 0.5 if facts.mirror else 0.0
    values: dict[str, Any] = {"batch_size": batch, "optimizer": "adamw", "label_smoothing": 0.0}
    if options.objective == "dino":
        large, _ = CROPS["small" if min(facts.size) < SMALL_IMAGES else "large"]
        jitter = 0.4 if facts.channels == 3 else 0.0
        values |= {
            "lr": 5e-4 * sqrt(batch / 256),
            "weight_decay": 0.04,
            "final_weight_decay": 0.4,
            "clip": 3.0,
            "ema": 0.0,  # the teacher is an average already
            "augment": Augment(crop_scale=large, flip=mirror, color_jitter=jitter),
        }
    else:
        scale = (0.2, 1.0) if crops else None
        values |= {"weight_decay": 0.05, "augment": Augment(crop_scale=scale, flip=mirror)}
    return Recipe(f"for {options.objective}", values)
