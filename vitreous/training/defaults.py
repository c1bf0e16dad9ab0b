"""Which options to take where the user named none: from data and hardware, each with its reason. No torch.

The measurements behind these rules are in docs/train.md.
"""

from dataclasses import replace
from math import sqrt
from typing import Any

from vitreous.config import Augment, Optimizer, Precision, Preprocessing, Resize, TrainConfig
from vitreous.data.augment import resolve
from vitreous.errors import OptionError
from vitreous.models import architecture
from vitreous.models.architecture import Architecture
from vitreous.options import refuse_unused
from vitreous.training import recipes, sizing
from vitreous.training.chosen import RATES
from vitreous.training.facts import Chooser, Facts, Pretrained, by_heart, seen_often
from vitreous.training.plan import LABELLED, SUPERVISED, Plan, Task, seconds
from vitreous.training.recipes import Recipe

SMALLEST = 16
"""Side below which images are too small to crop, and are learned in a few hundred steps."""
LITTLE = 2048
"""Numbers in an image's embedded patches below which bf16 gains little on a CPU: the digits have 1,024."""
RECONSTRUCT = 10.0
"""Weight of painting what is left out, beside the labels, for a model that would learn them by heart."""
UNMIXED = 0.02
"""Part of the run without mixing for such a model: within an eighth of it it learns the images by heart."""
FITS: dict[str, Resize] = {"cover": "cover", "pad": "pad", "stretch": "exact"}


def choose(
    options: TrainConfig,
    facts: Facts,
    pretrained: Pretrained | None = None,
    recipe: Recipe | None = None,
    task: Task = SUPERVISED,
) -> Plan:
    """Fill in what the user left open; the architecture too, unless a trained model brings one."""
    if options.patch_drop and not task.labels:
        raise OptionError("--patch-drop is for learning from labels: leave it out")
    if recipe is None and pretrained is None and seen_often(facts, options):
        limit = None if options.time_budget is None else seconds(options.time_budget)
        recipe = recipes.for_small_images(options.batch_size, limit)
    pick = Chooser(recipe or Recipe())
    epochs, budget = _duration(options, facts, pick)
    model, preprocessing = _model(options, facts, pretrained, budget, pick, task)
    arithmetic, why = precision(options, facts, model)
    if why:
        pick.reasons["precision"] = why
    trained = pretrained is not None
    often = model.kind == "vit" and by_heart(model.width, options, facts, task)
    plan = Plan(
        architecture=model,
        preprocessing=preprocessing,
        objective=task.objective,
        settings=task.settings,
        init=pretrained.source if trained else "",
        tune=pretrained.tune if trained else "full",
        fit_head=pretrained.fit_head if trained else False,
        initialization=sizing.initialization(options, model, trained, pick),
        epochs=epochs,
        time_budget=budget,
        **_optimization(options, facts, model, trained, pick),
        **_loss(options, facts, pick, learned=task.labels),
        reconstruct=_reconstruct(options, model, pick, task, trained, often=often),
        augment=_augment(options, facts, preprocessing, pick, often=often),
        precision=arithmetic,
        seed=pick("seed", options.seed, 0),
    )
    unused = () if task.labels else LABELLED
    reasons = {name: reason for name, reason in pick.reasons.items() if name not in unused}
    task.refuse(plan)
    return replace(plan, settings=task.filled(plan), reasons=reasons)


def _model(
    options: TrainConfig,
    facts: Facts,
    pretrained: Pretrained | None,
    budget: float | None,
    pick: Chooser,
    task: Task,
) -> tuple[Architecture, Preprocessing]:
    """Return the model and how it sees images: made here, or that of a trained one."""
    if pretrained is None:
        model = sizing.choose_model(options, facts, budget, pick, task)
        preprocessing = Preprocessing(
            image_size=model.image_size, mean=(0.5,) * facts.channels, std=(0.5,) * facts.channels
        )
    else:
        model, preprocessing = pretrained.architecture, pretrained.preprocessing
        sizing.refuse_rates(options, model)
        changes = {name: value for name in RATES if (value := getattr(options, name)) is not None}
        if model.kind == "vit":
            changes = {"patch_drop": 0.0, **changes}  # for the task that it was trained on
        model = architecture.override(model, changes)
    if (resize := FITS[options.fit] if options.fit else pick.recipe.resize) is not None:
        preprocessing = replace(preprocessing, resize=resize)
    if model.kind == "vit" and model.patch_drop and preprocessing.resize == "pad":
        if options.patch_drop:
            raise OptionError("--patch-drop can't be used with --fit pad: leave one of them out")
        model = architecture.override(model, {"patch_drop": 0.0})  # a recipe's
    if options.patch_drop and model.kind == "vit" and model.trained_patches == model.patches:
        raise OptionError(
            f"--patch-drop {options.patch_drop:g} leaves out none of the {model.patches:,} patches: "
            "give a larger one, or leave it out"
        )
    return model, preprocessing


def _optimization(
    options: TrainConfig, facts: Facts, model: Architecture, trained: bool, pick: Chooser
) -> dict[str, Any]:
    """Return the fields of the plan that say how weights move."""
    reason = f"{facts.images:,} images: enough steps in an epoch"
    batch = pick("batch_size", options.batch_size, batch_size(facts), reason)
    optimizer = _optimizer(options, facts, model, trained, pick)
    decay, why = (0.0, "the paper's, for SGD") if optimizer == "sgd" else (0.05, "DeiT's, from scratch")
    ema = 0.99 if facts.images < 50_000 else 0.999
    return {
        "batch_size": batch,
        "optimizer": optimizer,
        "lr": _learning_rate(options, optimizer, model, batch, pick),
        "schedule": pick("schedule", options.schedule, "cosine"),
        "warmup": pick("warmup", options.warmup, 0.1),
        "layer_decay": pick("layer_decay", options.layer_decay, 1.0),
        "clip": pick("clip", options.clip, 1.0),
        "weight_decay": pick("weight_decay", options.weight_decay, decay, why),
        "final_weight_decay": pick("final_weight_decay", None, None),
        "ema": pick("ema", options.ema, ema, "averages over the last hundred steps or more"),
    }


def _loss(options: TrainConfig, facts: Facts, pick: Chooser, *, learned: bool) -> dict[str, Any]:
    """Return the fields of the plan that define the loss."""
    several = facts.multilabel
    loss, reason = ("sigmoid", "several labels") if several else ("softmax", "one label")
    smoothing = 0.0 if several else 0.1
    chosen = pick("loss", options.loss, loss, f"{reason} per image")
    if several and learned and chosen == "softmax":
        raise OptionError(
            "softmax chooses one class, and these images have several labels: add --loss sigmoid"
        )
    return {
        "loss": chosen,
        "label_smoothing": pick(
            "label_smoothing", options.label_smoothing, smoothing, "against overconfidence"
        ),
        "balance": pick("balance", options.balance, "none"),
        "binary_targets": pick("binary_targets", options.binary_targets or None, False),
    }


def _duration(options: TrainConfig, facts: Facts, pick: Chooser) -> tuple[int | None, float | None]:
    """Return the number of epochs, or the time budget: one of them is None."""
    if options.time_budget is not None:
        return None, seconds(options.time_budget)
    if options.epochs is None and (budget := pick.recipe.values.get("time_budget")) is not None:
        pick.reasons["time_budget"] = f"recipe {pick.recipe.source}"
        return None, budget
    return pick(
        "epochs", options.epochs, _epochs(facts), f"{facts.images:,} images on a {facts.device}"
    ), None


def _optimizer(
    options: TrainConfig, facts: Facts, model: Architecture, trained: bool, pick: Chooser
) -> Optimizer:
    """Return Muon for a model made here on a CPU, which takes few steps."""
    made = options.model is None and not trained and model.kind == "vit"
    if made and facts.device == "cpu":
        return pick("optimizer", options.optimizer, "muon", "few steps on a CPU: it learns more from each")
    return pick("optimizer", options.optimizer, "adamw")


def _learning_rate(
    options: TrainConfig, optimizer: Optimizer, model: Architecture, batch: int, pick: Chooser
) -> float:
    if optimizer == "sgd":
        return pick(
            "lr", options.lr, 0.03 * sqrt(batch / 256), "the paper's range for SGD, by the batch's root"
        )
    narrow = model.kind == "vit" and model.width < 128
    rate = min(3e-3, (6e-3 if narrow else 1e-3) * sqrt(batch / 256))
    why = f"{'6e-3, a narrow model,' if narrow else '1e-3'} at batch 256, by the batch's root, at most 3e-3"
    return pick("lr", options.lr, rate, why)


def _reconstruct(
    options: TrainConfig, model: Architecture, pick: Chooser, task: Task, trained: bool, *, often: bool
) -> float:
    """Return the weight of painting the patches that are left out, where a plain ViT leaves out some."""
    if trained or task.objective != SUPERVISED.objective:  # where the option is refused
        return 0.0
    refused = _unpaintable(model, pad=options.fit == "pad")
    if refused:
        if options.reconstruct:
            raise OptionError(f"--reconstruct paints the patches that --patch-drop leaves out: {refused}")
        return 0.0
    if not often:
        return pick("reconstruct", options.reconstruct, 0.0)
    reason = "the patches that are left out are painted from the others: less is learned by heart"
    return pick("reconstruct", options.reconstruct, RECONSTRUCT, reason)


def _unpaintable(model: Architecture, *, pad: bool) -> str:
    """Return why a model has no patches to paint, and what helps; nothing if it has."""
    if model.kind != "vit" or model.stem or model.frames or model.pooling == "map":
        return "it is for a plain ViT, which this model is not; leave it out"
    if pad:
        return "with --fit pad none are; leave one of them out"
    if model.trained_patches == model.patches:
        return "none are; add --patch-drop 0.5, or leave it out"
    if model.in_channels * model.patch_size[0] * model.patch_size[1] == 1:
        return "one gray pixel has no deviation to be normalised by; use larger patches, or leave it out"
    return ""


def batch_size(facts: Facts) -> int:
    """Return the images in a batch: fewer where there are few, so that an epoch has enough steps."""
    if facts.images < 10_000:
        return 64
    if facts.device == "cpu":
        return 128
    return 256 if facts.images < 20_000 else 512 if facts.images < 200_000 else 1024


def _epochs(facts: Facts) -> int:
    views = 75_000 if facts.device == "cpu" else 10_000_000
    return min(300, max(5, round(views / facts.images)))


def _augment(
    options: TrainConfig, facts: Facts, preprocessing: Preprocessing, pick: Chooser, *, often: bool
) -> Augment:
    """Return the augmentation in full: a preset fitted to the images, with what the user set otherwise.

    `often`: a wide model sees them so often that it would learn by heart what is not mixed."""
    preset: str | Augment
    if min(facts.size) < SMALLEST:
        size = f"{facts.size[0]}x{facts.size[1]}"
        preset = pick("augment", options.augment, "mix", f"mix: images of {size} are too small to crop")
    elif facts.device == "cpu":
        preset = pick("augment", options.augment, "light", "light: few epochs on a CPU")
    else:
        preset = pick("augment", options.augment, "medium", f"medium: {facts.images:,} images, many epochs")
    about = {"mirror": facts.mirror, "size": facts.size, "channels": facts.channels}
    fitted = resolve(preset, **about, resize=preprocessing.resize)
    if preset == "small" and often:
        fitted = replace(fitted, unmixed=UNMIXED)
    names = ("crop_scale", "flip", "randaugment", "color_jitter", "erase", "mixup", "cutmix")
    names += ("mix_probability", "unmixed", "repeats", "geometry", "color")
    changes: dict[str, Any] = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.three_augment:
        changes["three_augment"] = True
    if changes.get("crop_scale") == (0.0, 0.0):
        changes["crop_scale"] = None
    elif "crop_scale" in changes and preprocessing.resize == "pad":
        raise OptionError("--crop-scale cuts images and --fit pad shows all of them: leave one of them out")
    full = resolve(replace(fitted, **changes), **about, resize=preprocessing.resize)
    if not full.mixup and not full.cutmix:
        refuse_unused(options, ("mix_probability", "unmixed"), "where no image is mixed (--mixup, --cutmix)")
    return full


def precision(options: TrainConfig, facts: Facts, model: Architecture) -> tuple[Precision, str]:
    """Return the precision, and why if the user named none: by this hardware, which no recipe knows."""
    if options.precision != "auto":
        return options.precision, ""
    if not facts.bf16:
        return "float32", f"the {facts.device} has no bf16 arithmetic"
    if facts.device == "cpu" and model.kind == "vit" and model.patches * model.width < LITTLE:
        size = f"{model.patches} patches of width {model.width}"
        return "float32", f"{size} gain little from bf16 on a CPU"
    return "bf16", f"the {facts.device} has bf16 arithmetic"
