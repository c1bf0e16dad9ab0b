"""Which options to take where the user named none: from data and hardware, each with its reason. No torch.

The measurements behind these rules are in docs/train.md.
"""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, TypeVar

from vitreous.config import Augment, Initialization, Optimizer, Precision, Preprocessing, Resize, TrainConfig
from vitreous.data.augment import resolve
from vitreous.errors import OptionError
from vitreous.models import architecture, zoo
from vitreous.models.architecture import Architecture, ViTConfig
from vitreous.options import refuse_unused
from vitreous.training import recipes
from vitreous.training.chosen import RATES
from vitreous.training.plan import LABELLED, SUPERVISED, Plan, Task, seconds
from vitreous.training.recipes import SHORT, Recipe

Value = TypeVar("Value")
MIMETIC_PATCHES = 16
"""Fewest patches of a ViT that starts with mimetic attention: on a smaller grid all is near."""
SMALLEST = 16
"""Side below which images are too small to crop, and are learned in a few hundred steps."""
MOST_PIXELS = {"cuda": 224, "mps": 128, "cpu": 64}
"""Side of the largest image that a model made here sees, unless larger patches were asked for."""
LITTLE = 2048
"""Numbers in an image's embedded patches below which bf16 gains little on a CPU: the digits have 1,024."""
RECONSTRUCT = 2.5
"""Weight of painting what is left out, beside the labels, for a model that would learn them by heart."""
WIDE = 384
"""Width from which a model learns tens of thousands of small images by heart."""
UNMIXED = 0.02
"""Part of the run without mixing for such a model: within an eighth of it it learns the images by heart."""
FITS: dict[str, Resize] = {"cover": "cover", "pad": "pad", "stretch": "exact"}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the choices depend on."""

    images: int
    classes: int
    multilabel: bool
    size: tuple[int, int]
    """Median height and width of the training images."""
    channels: int
    mirror: bool = True
    """Whether a mirrored image is still of its class."""
    device: str
    """cpu, cuda or mps."""
    bf16: bool
    """Whether the device multiplies bf16 natively."""
    cores: int
    """Processors for each rank."""


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A trained model that a run starts from: its shape and preprocessing stay, and part of it may learn."""

    architecture: Architecture
    preprocessing: Preprocessing
    source: str = ""
    tune: str = "full"
    fit_head: bool = False


class _Chooser:
    """Takes the user's value, else the recipe's, else the rule's; notes the reason for the last two."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.reasons: dict[str, str] = {}

    def __call__(self, name: str, given: Value | None, otherwise: Value, reason: str = "") -> Value:
        if given is not None:
            return given
        if (value := self.recipe.values.get(name)) is not None:
            self.reasons[name] = f"recipe {self.recipe.source}"
            return value
        if reason:
            self.reasons[name] = reason
        return otherwise


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
    if recipe is None and pretrained is None and _seen_often(facts, options):
        limit = None if options.time_budget is None else seconds(options.time_budget)
        recipe = recipes.for_small_images(options.batch_size, limit)
    pick = _Chooser(recipe or Recipe())
    epochs, budget = _duration(options, facts, pick)
    model, preprocessing = _model(options, facts, pretrained, budget, pick, task)
    arithmetic, why = precision(options, facts, model)
    if why:
        pick.reasons["precision"] = why
    trained = pretrained is not None
    by_heart = model.kind == "vit" and _by_heart(model.width, options, facts, task)
    plan = Plan(
        architecture=model,
        preprocessing=preprocessing,
        objective=task.objective,
        settings=task.settings,
        init=pretrained.source if trained else "",
        tune=pretrained.tune if trained else "full",
        fit_head=pretrained.fit_head if trained else False,
        initialization=_initialization(options, model, trained, pick),
        epochs=epochs,
        time_budget=budget,
        **_optimization(options, facts, model, trained, pick),
        **_loss(options, facts, pick, learned=task.labels),
        reconstruct=_reconstruct(options, model, pick, often=by_heart and not trained, task=task),
        augment=_augment(options, facts, preprocessing, pick, by_heart=by_heart),
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
    pick: _Chooser,
    task: Task,
) -> tuple[Architecture, Preprocessing]:
    """Return the model and how it sees images: made here, or that of a trained one."""
    if pretrained is None:
        model = _architecture(options, facts, budget, pick, task)
        preprocessing = Preprocessing(
            image_size=model.image_size, mean=(0.5,) * facts.channels, std=(0.5,) * facts.channels
        )
    else:
        model, preprocessing = pretrained.architecture, pretrained.preprocessing
        changes = {name: value for name in RATES if (value := getattr(options, name)) is not None}
        if model.kind == "vit":
            changes = {"patch_drop": 0.0, **changes}  # for the task that it was trained on
        model = architecture.override(model, changes)
    if (resize := FITS[options.fit] if options.fit else pick.recipe.resize) is not None:
        preprocessing = replace(preprocessing, resize=resize)
    if model.kind == "vit" and model.patch_drop and preprocessing.resize == "pad":
        raise OptionError("--patch-drop can't be used with --fit pad: leave one of them out")
    return model, preprocessing


def _optimization(
    options: TrainConfig, facts: Facts, model: Architecture, trained: bool, pick: _Chooser
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


def _loss(options: TrainConfig, facts: Facts, pick: _Chooser, *, learned: bool) -> dict[str, Any]:
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


def _duration(options: TrainConfig, facts: Facts, pick: _Chooser) -> tuple[int | None, float | None]:
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
    options: TrainConfig, facts: Facts, model: Architecture, trained: bool, pick: _Chooser
) -> Optimizer:
    """Return Muon for a model made here on a CPU, which takes few steps."""
    made = options.model is None and not trained and model.kind == "vit"
    if made and facts.device == "cpu":
        return pick("optimizer", options.optimizer, "muon", "few steps on a CPU: it learns more from each")
    return pick("optimizer", options.optimizer, "adamw")


def _learning_rate(
    options: TrainConfig, optimizer: Optimizer, model: Architecture, batch: int, pick: _Chooser
) -> float:
    if optimizer == "sgd":
        return pick(
            "lr", options.lr, 0.03 * sqrt(batch / 256), "the paper's range for SGD, by the batch's root"
        )
    narrow = model.kind == "vit" and model.width < 128
    rate = min(3e-3, (6e-3 if narrow else 1e-3) * sqrt(batch / 256))
    why = f"{'6e-3, a narrow model,' if narrow else '1e-3'} at batch 256, by the batch's root, at most 3e-3"
    return pick("lr", options.lr, rate, why)


def _architecture(
    options: TrainConfig, facts: Facts, budget: float | None, pick: _Chooser, task: Task
) -> Architecture:
    changes: dict[str, Any] = {"num_classes": facts.classes, "in_channels": facts.channels}
    changes |= {**task.asked, **task.shape}
    if options.image_size is not None:
        changes["image_size"] = architecture.pair(options.image_size, "image size")
    if options.patch_size is not None:
        changes["patch_size"] = architecture.pair(options.patch_size, "patch size")
    changes |= {name: value for name in RATES if (value := getattr(options, name)) is not None}
    if options.model is not None:
        return zoo.get_config(options.model, **changes)
    if pick.recipe.architecture is not None:
        pick.reasons["model"] = f"recipe {pick.recipe.source}"
        return architecture.override(pick.recipe.architecture, changes)
    if "patch_size" not in changes:
        changes["patch_size"] = _patch_size(changes.get("image_size"), facts, pick)
    if "image_size" not in changes:
        changes["image_size"] = _image_size(facts, changes["patch_size"], pick)
        if options.patch_size is None and _seen_often(facts, options) and not _short(budget):
            changes["image_size"] = _enlarged(changes["image_size"], changes["patch_size"], pick)
    width, depth, heads = _size(facts, budget)
    by_heart = _by_heart(width, options, facts, task)
    if "drop_path" not in changes and by_heart:
        changes["drop_path"] = pick("drop_path", None, 0.2, "a wide model that sees its images often")
    if "patch_drop" not in changes and by_heart and options.fit != "pad":
        reason = "twice the images in the same time, and harder to learn by heart"
        changes["patch_drop"] = pick("patch_drop", None, 0.5, reason)
    shape = {"width": width, "depth": depth, "heads": heads, "mlp_width": 4 * width}
    pick("model", None, None, f"{facts.images:,} images on a {facts.device}: {depth} layers of width {width}")
    return ViTConfig(**{**shape, "pooling": "gap", "class_token": False, **changes})


def _patch_size(size: tuple[int, int] | None, facts: Facts, pick: _Chooser) -> tuple[int, int]:
    """Aim at some 50 to 200 patches: fewer see too little, more cost too much."""
    side = min(size) if size else min(*facts.size, MOST_PIXELS[facts.device])
    size = size or facts.size
    patch = 1 if side < 8 else 2 if side < 24 else 4 if side < 48 else 8 if side < 96 else 16
    return pick("patch_size", None, (patch, patch), f"images of {size[0]}x{size[1]}")


def _image_size(facts: Facts, patch: tuple[int, int], pick: _Chooser) -> tuple[int, int]:
    height, width = facts.size
    most = min(224, max(MOST_PIXELS[facts.device], 8 * min(patch)))
    if min(height, width) <= most:
        fitted = (max(1, round(height / patch[0])) * patch[0], max(1, round(width / patch[1])) * patch[1])
        if max(fitted) <= 1.5 * min(fitted):
            return pick("image_size", None, fitted, f"the images' own size, {height}x{width}")
    side = min(most, min(height, width))
    fitted = (max(1, side // patch[0]) * patch[0], max(1, side // patch[1]) * patch[1])
    return pick("image_size", None, fitted, f"images of {height}x{width} on a {facts.device}")


def _enlarged(size: tuple[int, int], patch: tuple[int, int], pick: _Chooser) -> tuple[int, int]:
    """Return half as much again in each direction where that makes some 150 patches of some 65."""
    rows, columns = size[0] // patch[0], size[1] // patch[1]
    if rows * columns >= 100:
        return size
    more = (rows + rows // 2, columns + columns // 2)
    reason = f"{more[0] * more[1]} patches instead of {rows * columns}, which pay off from four minutes on"
    return pick("image_size", None, (more[0] * patch[0], more[1] * patch[1]), reason)


def _initialization(
    options: TrainConfig, model: Architecture, trained: bool, pick: _Chooser
) -> Initialization:
    if trained:
        if options.initialization is not None:
            raise OptionError(
                f"--initialization {options.initialization} is for training from scratch: "
                "this model starts from trained weights"
            )
        return "paper"
    if model.kind != "vit":
        if options.initialization == "mimetic":
            raise OptionError("--initialization mimetic is for ViTs: a ResNet has no attention")
        return "paper"
    plain = model.stem is None and model.frames is None and model.positions in ("learned", "sincos2d")
    if not plain or model.patches < MIMETIC_PATCHES:
        reason = f"{model.patches} patches: too few to tell near from far" if plain else "not a plain ViT"
        return pick("initialization", options.initialization, "paper", reason)
    return pick("initialization", options.initialization, "mimetic", "attention starts local, as it ends")


def _short(budget: float | None) -> bool:
    return budget is not None and budget < SHORT


def _seen_often(facts: Facts, options: TrainConfig) -> bool:
    """Tell whether a GPU will see these images hundreds of times: they are small, and not very many."""
    small = facts.device == "cuda" and 16 <= min(facts.size) <= 64 and 10_000 <= facts.images < 200_000
    return small and options.optimizer in (None, "muon")


def _by_heart(width: int, options: TrainConfig, facts: Facts, task: Task) -> bool:
    """Tell whether a ViT of this width could learn its images by heart, which it sees hundreds of times."""
    return width >= WIDE and task.labels and _seen_often(facts, options)


def _reconstruct(
    options: TrainConfig, model: Architecture, pick: _Chooser, task: Task, *, often: bool
) -> float:
    """Return the weight of painting the patches that are left out, where a plain ViT leaves out some."""
    if model.kind != "vit" or model.stem or model.frames or model.pooling == "map":
        if options.reconstruct:
            raise OptionError("--reconstruct is for a plain ViT, which this model is not: leave it out")
        return 0.0
    if not model.patch_drop:
        if options.reconstruct:
            raise OptionError(
                "--reconstruct paints the patches that --patch-drop leaves out, and it leaves out none: "
                "add --patch-drop 0.5, or leave --reconstruct out"
            )
        return 0.0
    if not often or task.objective != SUPERVISED.objective:
        return pick("reconstruct", options.reconstruct, 0.0)
    reason = "the patches that are left out are painted from the others: less is learned by heart"
    return pick("reconstruct", options.reconstruct, RECONSTRUCT, reason)


def _size(facts: Facts, budget: float | None) -> tuple[int, int, int]:
    """Return width, depth and heads."""
    if facts.device == "cpu":
        return (64, 4, 4) if facts.images < 20_000 else (96, 6, 4)
    if _short(budget):
        return 192, 7, 3
    if facts.images < 20_000:
        return 192, 9, 3
    return (384, 9, 6) if facts.images < 200_000 else (384, 12, 6)


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
    options: TrainConfig, facts: Facts, preprocessing: Preprocessing, pick: _Chooser, *, by_heart: bool
) -> Augment:
    """Return the augmentation in full: a preset fitted to the images, with what the user set otherwise.

    `by_heart`: how the model learns what is not mixed."""
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
    if preset == "small" and by_heart:
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
