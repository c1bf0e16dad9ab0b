"""What people can set, as frozen dataclasses; a field's docstring is its `--help`. No torch, no work done.

An option that is None is chosen for the user and written `auto`, unless its metadata is `NOT_GIVEN`.
"""

from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from reprlib import repr as shown  # what a file says may be long
from typing import Any, Literal, TypeGuard, get_args

from vitreous.errors import OptionError

Resize = Literal["cover", "exact", "pad", "none"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Optimizer = Literal["adamw", "adam", "sgd", "muon"]
Schedule = Literal["cosine", "linear", "rsqrt", "constant"]
Precision = Literal["bf16", "float32"]
Balance = Literal["none", "loss", "sampler"]
Fit = Literal["cover", "pad", "stretch"]
Compile = Literal["none", "blocks", "whole"]
Loss = Literal["softmax", "sigmoid"]
Initialization = Literal["paper", "mimetic"]
Layout = Literal["vitreous", "timm", "hf", "google", "torchvision"]
ReproduceScale = Literal["quick", "gpu", "paper"]

NOT_GIVEN: dict[str, Any] = {"auto": False}
"""Metadata of a field whose None means that there is no such thing, rather than one that is chosen."""

MOST_SIDE, MOST_PIXELS = 1 << 14, 1 << 26
"""The longest side and the largest area of what a model sees, for which memory is taken unseen."""
LEAST_SPREAD, MOST_SPREAD = 1e-6, 1e6
"""The range of mean and std, of pixels from 0 to 1: beyond it their quotient is no use as a float32."""


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a value is a finite number, and no boolean."""
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


def _check_size(name: str, size: Any) -> None:
    whole = isinstance(size, tuple) and len(size) == 2 and all(type(side) is int for side in size)
    if not whole or min(size) < 1:
        raise OptionError(f"{name} {shown(size)} is not a size: give height and width, at least 1 each")
    if max(size) > MOST_SIDE or size[0] * size[1] > MOST_PIXELS:
        raise OptionError(
            f"{name} {shown(size)} is too large: a side is at most {MOST_SIDE:,} pixels, "
            f"all of it {MOST_PIXELS:,}"
        )


def _check_numbers(name: str, values: Any, least: float) -> None:
    """Refuse what a channel can't be normalised by."""
    if (
        not isinstance(values, tuple)
        or not values
        or not all(is_number(value) and least <= value <= MOST_SPREAD for value in values)
    ):
        raise OptionError(
            f"{name} {shown(values)} can't be used: give numbers from {least:g} to {MOST_SPREAD:g}, "
            "one for each channel"
        )


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """From a decoded image to the model's input; sealed into the checkpoint, and read from there alone."""

    image_size: tuple[int, int] = (224, 224)
    """Height and width that the model sees."""
    resize: Resize = "cover"
    """cover: keep the aspect, scale until `resize_size` is covered, then crop the centre; exact: stretch to
    `resize_size`, then crop; pad: keep the aspect, fit inside `image_size`, pad the rest; none: as it is."""
    resize_size: tuple[int, int] | None = None
    """Size before the crop; None: the image size (nothing is cropped of a square image)."""
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Subtracted from each channel, of pixels scaled to [0, 1]; as many entries as channels."""
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Each channel is divided by it."""

    def __post_init__(self) -> None:
        _check_size("image_size", self.image_size)
        if self.resize_size is not None:
            _check_size("resize_size", self.resize_size)
        for name, kind in (("resize", Resize), ("interpolation", Interpolation)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise OptionError(
                    f"unknown {name} {shown(value)}: expected one of {', '.join(get_args(kind))}"
                )
        _check_numbers("mean", self.mean, -MOST_SPREAD)
        _check_numbers("std", self.std, LEAST_SPREAD)
        if len(self.mean) != len(self.std):
            raise OptionError(
                f"{len(self.mean)} of mean and {len(self.std)} of std: give one of each for every channel"
            )

    @property
    def channels(self) -> int:
        """1: images are read as gray; 3: as RGB; more: arrays."""
        return len(self.mean)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """How training images are varied. Every draw is a function of (seed, epoch, image), never of a state."""

    crop_scale: tuple[float, float] | None = (0.08, 1.0)
    """Inception crop: the part of the image's area that is kept; None: the evaluation transform, no crop."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Inception crop: width over height of the part that is kept."""
    flip: float = 0.5
    """Probability of a mirrored image."""
    randaugment: tuple[int, int] = (0, 0)
    """RandAugment(n, m): n operations per image, at magnitude m of torchvision's 0 to 30. n = 0: none."""
    three_augment: bool = False
    """DeiT III's 3-Augment: one of gray, solarize and blur for each image."""
    color_jitter: float = 0.0
    """Brightness, contrast and saturation are each scaled by a factor from 1 - x to 1 + x."""
    erase: float = 0.0
    """Probability that a random rectangle is replaced with noise (random erasing)."""
    mixup: float = 0.0
    """Mixup: the Beta distribution's alpha; 0: none."""
    cutmix: float = 0.0
    """CutMix: the Beta distribution's alpha; 0: none. With Mixup too, each image takes one of them, half and
    half."""
    mix_probability: float = 1.0
    """Probability that an image is mixed at all, where Mixup or CutMix is on."""
    unmixed: float = 0.0
    """Part of the run, at its end, in which no image is mixed: the last steps see what evaluation sees."""
    repeats: int = 1
    """Repeated augmentation: so many differently varied copies of an image in the same global batch."""
    geometry: float = 0.0
    """One affine map per image, for many epochs on small images. At strength 1: a shift by up to an eighth of
    the side, and with probabilities of 40, 25 and 50 % a turn by up to 20 degrees, a shear by up to 0.3 and a
    scaling by up to a quarter. Another strength scales the amounts. 0: none."""
    color: float = 0.0
    """One change of colours per image, likewise. At strength 1: brightness, contrast and saturation by up to
    40 %, each for 40 % of the images; autocontrast for 10 %, solarize and posterize for 5 %, invert for 4 %.
    Another strength scales the amounts of the first and the probabilities of the others. 0: none."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained. What is auto is chosen from data and hardware, and shown with its reason."""

    out: str | None = None
    """The run folder; auto: runs/NAME-OF-DATA, numbered where that holds a run of other options. The same
    command again goes on where it stopped."""
    recipe: str | None = field(default=None, metadata=NOT_GIVEN)
    """A run folder or a sealed file: everything of its plan that no other option says otherwise."""
    model: str | None = None
    """A name of `vitreous models`, by timm or the paper; auto: a size that fits the data."""
    init: str | None = None
    """A trained model to start from: any CKPT, or none; auto: the bundled `tiny` for colour photographs that
    are too few to learn from scratch, where no option says which model to train."""
    image_size: tuple[int, ...] | None = None
    """Height and width that the model sees; one number: a square."""
    patch_size: tuple[int, ...] | None = None
    """Height and width of a patch; one number: a square."""
    drop_path: float | None = None
    """Stochastic depth of the last block."""
    initialization: Initialization | None = None
    """How a ViT starts that is trained from scratch; mimetic: attention to what is like and near, as in
    pre-trained models (arXiv 2305.09828)."""
    epochs: int | None = None
    """Passes over the training images."""
    time_budget: str | None = field(default=None, metadata=NOT_GIVEN)
    """Train as long as fits into this time, such as 90s, 10m or 1.5h, instead of a number of epochs."""
    extend: int | str | None = field(default=None, metadata=NOT_GIVEN)
    """Go on with a run that has ended: so many more epochs, or a time such as 10m, with the other options of
    that run. The learning rate rises again to half of its peak, and falls to 0."""
    batch_size: int | None = None
    """Images per step, over all ranks and micro-batches."""
    optimizer: Optimizer | None = None
    """auto: AdamW, or what the recipe says."""
    lr: float | None = None
    """Peak learning rate."""
    find_lr: bool = False
    """Only sweep over learning rates, in a hundred steps of a model that is thrown away, and suggest one."""
    schedule: Schedule | None = None
    """How the learning rate falls; auto: cosine, as all recipes."""
    warmup: float | None = None
    """Part of all steps over which the learning rate rises; auto: 0.1."""
    weight_decay: float | None = None
    """As AdamW takes it (big_vision's wd over its learning rate); norms, biases, positions don't decay."""
    layer_decay: float | None = None
    """Each layer below the head learns at this times the rate of the one above; auto: 1, or the recipe's."""
    clip: float | None = None
    """Largest norm of the gradient; 0: any; auto: 1."""
    ema: float | None = None
    """Decay of the weights' moving average, which is what is evaluated and kept; 0: none."""
    loss: Loss | None = None
    """softmax: one class per image; sigmoid: a yes or no for each class. auto: by the kind of labels."""
    label_smoothing: float | None = None
    """Share of each target that is spread over all classes."""
    binary_targets: bool = False
    """With --loss sigmoid: every class that is mixed into an image counts as fully there (DeiT III)."""
    seed: int | None = None
    """Of the order, the augmentation, dropout and the held-out part; auto: 0, or the recipe's."""
    augment: Literal["none", "mix", "light", "medium", "strong", "small"] | None = None
    """How strongly training images are varied; mix: only mixed with each other, for very small ones; small:
    for small images that are seen hundreds of times. The options below change parts of it."""
    crop_scale: tuple[float, float] | None = None
    """Part of an image's area that a random crop keeps, from and to; 0 0: no crop."""
    flip: float | None = None
    """Probability that an image is mirrored."""
    randaugment: tuple[int, int] | None = None
    """RandAugment: operations per image, and their magnitude from 0 to 30; 0 0: none."""
    three_augment: bool = False
    """DeiT III's 3-Augment: one of gray, solarize and blur for each image."""
    color_jitter: float | None = None
    """Brightness, contrast and saturation are each scaled by a factor from 1 - x to 1 + x."""
    erase: float | None = None
    """Probability that a random rectangle is replaced with noise."""
    mixup: float | None = None
    """Mixup: the Beta distribution's alpha; 0: none."""
    cutmix: float | None = None
    """CutMix: the Beta distribution's alpha; 0: none."""
    mix_probability: float | None = None
    """Probability that an image is mixed at all, where Mixup or CutMix is on."""
    unmixed: float | None = None
    """Part of the run, at its end, in which no image is mixed."""
    repeats: int | None = None
    """Repeated augmentation: so many differently varied copies of an image in the same batch."""
    geometry: float | None = None
    """One affine map per image (shift, turn, shear, scale) of this strength; 1: as for CIFAR; 0: none."""
    color: float | None = None
    """One change of colours per image (brightness, contrast, saturation, …) of this strength; 0: none."""
    fit: Fit | None = None
    """cover: crop what is not square; pad: show all, padded and masked; stretch: to the model's size."""
    balance: Balance | None = None
    """Against rare classes: weigh them in the loss, or draw them more often."""
    data_root: str | None = field(default=None, metadata=NOT_GIVEN)
    """Where data sets that are given by name lie."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    workers: int | None = None
    """Processes that read images."""
    pixels: Literal["auto", "device", "decode", "host"] = "auto"
    """Where images are decoded, kept and varied. device: all pixels are kept there; decode: JPEGs are decoded
    there, batch by batch; auto: on a GPU where they fit into its memory, else by whichever decodes faster."""
    precision: Precision | Literal["auto"] = "auto"
    """bf16: matrix products in bf16; auto: that where the hardware has it and it is faster."""
    compile: Compile | Literal["auto"] = "auto"
    """auto: on for GPUs. blocks compiles faster, whole runs faster."""
    micro_batch: int | None = None
    """Images that a rank computes at a time; auto: the whole of its share, less where memory is short."""
    checkpointing: bool = False
    """Keep only each block's input and compute the rest again: less memory, a third more time."""
    shard: bool = False
    """With several ranks: split parameters, gradients and optimizer state among them (FSDP2)."""
    save_every: int | None = None
    """Steps between checkpoints; auto: one every five minutes."""
    keep: int = 3
    """How many checkpoints to keep."""
    on_nan: Literal["stop", "rollback"] = "stop"
    """A loss or gradient that is not finite: stop, or go back a checkpoint and leave that batch out."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run folder."""
    wandb: bool = False
    """Also log to Weights & Biases."""
    mlflow: bool = False
    """Also log to MLflow."""
    thumbnails: int = 0
    """How many small pictures of the training data to seal with the model, for the explorer: up to 16."""


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TrainConfig):
    """How a trained model is fitted to another task; else as in training."""

    tune: str | None = None
    """What learns: full, head, last:N (the head and the last N blocks), lora or lora:RANK; auto: full, or
    with a time budget what it is enough for."""
    recipe: str | None = "auto"
    """paper: SGD with momentum, cosine, no decay; modern: AdamW with layer-wise decay; auto: by the number of
    images; none: only what the other options say; or a run folder or sealed file, to repeat its plan."""
    train_limit: int | None = field(default=None, metadata=NOT_GIVEN)
    """Use at most so many training images, a fifth of them to choose with; a suite: 1,000, as VTAB does."""
    keep_head: bool = False
    """Keep the head's rows of classes that both know; else the head starts at zero."""
    fit_head: Literal["yes", "no"] | None = None
    """Start with the head that logistic regression on the frozen features gives, instead of zeros; auto:
    where time decides what learns."""
    heads: int | None = field(default=None, metadata=NOT_GIVEN)
    """Attention heads, for bare weights of a shape that nobody published."""


@dataclass(frozen=True, kw_only=True)
class DistillConfig(TrainConfig):
    """How a student learns from a teacher; else as in training."""

    match: Literal["token", "logits", "features"] = "token"
    """token: DeiT, the teacher teaches a distillation token, the labels the class token; logits: both teach
    the same scores; features: the student gives the teacher's features, and labels take no part."""
    targets: Literal["hard", "soft"] | None = None
    """hard: the teacher's best class; soft: its scores; auto: hard for token, soft for logits."""
    temperature: float = 1.0
    """Scores are divided by it on both sides, where targets are soft."""
    teacher_share: float | None = None
    """The teacher's part of the loss, beside the labels; auto: 0.5 for token, 1 for logits."""
    distance: Literal["cosine", "smooth_l1"] = "cosine"
    """How far features are apart."""


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(TrainConfig):
    """How a model learns from pictures alone; else as in training."""

    objective: Literal["masked", "mae", "dino"] = "mae"
    """masked: the paper's, colours of patches that are hidden; mae: a masked autoencoder, which sees a
    quarter of the patches and paints the rest; dino: small and large crops of an image look alike."""
    init: str | None = field(default=None, metadata=NOT_GIVEN)
    """A trained model to go on from: any CKPT."""
    target: Literal["color", "small", "pixels"] = "color"
    """What masked predicts of a patch: its mean colour of 3 bits for each channel, the same for each pixel of
    the patch downsized to 4x4, or all of its pixels."""
    mask_ratio: float = 0.75
    """Part of the patches that mae hides."""
    decoder_width: int | None = None
    """Of the blocks with which mae paints; auto: half of the model's."""
    decoder_depth: int = 2
    """How many blocks mae paints with."""
    prototypes: int = 1024
    """How many answers dino's teacher can give."""
    local_crops: int = 8
    """Small crops of each image that dino shows beside two large ones."""
    local_scale: tuple[float, float] | None = None
    """Part of an image's area that a small crop keeps, from and to; auto: 0.2 to 0.5, of large images 0.05 to
    0.4."""
    on_collapse: Literal["warn", "stop"] = "warn"
    """Where all images have become alike to the model: say so, or end the run too."""
    preview: bool = False
    """Draw what the model makes of some images at each evaluation, into the run folder's preview/."""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """What is measured, and on what."""

    split: str | None = None
    """train, val, test or all; auto: test, else val."""
    out: str | None = field(default=None, metadata=NOT_GIVEN)
    """Write `evaluation.json` and `report.html` into this folder."""
    batch_size: int = 64
    """Images that are computed at a time."""
    workers: int | None = None
    """Processes that read images; auto: by the number of processors."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    data_root: str | None = field(default=None, metadata=NOT_GIVEN)
    """Folder of the data sets that are given by name."""
    seed: int = 0
    """Of the held-out part, of bootstraps and of corruptions."""
    restrict: bool = False
    """Choose only among the data's classes, as is usual for ImageNet-A and -R."""
    real_labels: str | None = field(default=None, metadata=NOT_GIVEN)
    """ImageNet's real.json: also measure against reassessed labels."""
    compare: str | None = field(default=None, metadata=NOT_GIVEN)
    """A second checkpoint, measured on the same images, with a paired test."""
    calibrate: bool = False
    """Fit a temperature (or each label's threshold) on the val split; write it into the sealed file if it
    helps on the split that is measured."""
    abstain: float | None = field(default=None, metadata=NOT_GIVEN)
    """Measure with no label given below this probability; --calibrate writes it into the sealed file."""
    corruptions: bool = False
    """Also measure under ImageNet-C's fifteen corruptions at five severities."""
    resolutions: tuple[int, ...] = ()
    """Also measure at these image sizes; positions are resampled."""


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """How features are taken and measured."""

    method: Literal["knn", "fewshot", "linear", "all"] = "all"
    """Nearest neighbours, least squares on few images per class, logistic regression, or all three."""
    image_size: tuple[int, ...] | None = None
    """Height and width that the model sees (one number: a square); positions are resampled."""
    layer: int = -1
    """Take the tokens after this block; -1: the last."""
    pooling: Literal["model", "cls", "gap", "cls_gap"] = "model"
    """How tokens become one vector: the model's own way, or another."""
    shots: tuple[int, ...] = (1, 5, 10, 25)
    """Images per class, for fewshot."""
    seeds: int = 5
    """Draws of those images."""
    metric: Literal["accuracy", "mean_per_class_accuracy", "mean_average_precision"] | None = None
    """auto: accuracy; mean average precision where images have several labels."""
    train_limit: int | None = field(default=None, metadata=NOT_GIVEN)
    """Use at most so many training images, a fifth of them to choose with; a suite: 1,000, as VTAB does."""
    batch_size: int = 64
    """Images that are computed at a time."""
    workers: int | None = None
    """Processes that read images; auto: by the number of processors."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    data_root: str | None = field(default=None, metadata=NOT_GIVEN)
    """Folder of the data sets that are given by name."""
    seed: int = 0
    """Of the held-out part, of the draws and of bootstraps."""
    cache: str | None = None
    """Keep features in this folder; auto: the user's cache."""


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """How images are labelled."""

    top: int = 5
    """How many labels to give for each image."""
    abstain: float | None = None
    """Give no label below this probability; auto: the checkpoint's own threshold."""
    batch_size: int | None = None
    """Images computed at a time; auto: what suits the device."""
    workers: int = 0
    """Threads that decode; 0: one per core."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What is exported, and how it is proven."""

    precision: Literal["fp32", "fp16", "int8"] = "fp32"
    """fp16 for .onnx and .xml, int8 for .onnx."""
    pixels: bool = False
    """Take uint8 pixels of the model's size; normalising them is then part of the file."""
    images: tuple[str, ...] = ()
    """Files, folders or patterns to prove it with; without them, bundled images."""
    tolerance: float | None = None
    """Largest difference in probability (auto: 1e-4 for fp32, 1e-2 for fp16); for int8, largest share of
    labels that differ (auto: 0.02)."""


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """What is changed on the way from one layout to another."""

    num_classes: int | None = field(default=None, metadata=NOT_GIVEN)
    """Give it a fresh, zero head of so many classes."""
    image_size: tuple[int, ...] | None = field(default=None, metadata=NOT_GIVEN)
    """Height and width (one number: a square); position embeddings are resampled in 2D."""
    patch_size: tuple[int, ...] | None = field(default=None, metadata=NOT_GIVEN)
    """Resize the patch embedding to this height and width (one number: a square)."""
    in_channels: int | None = field(default=None, metadata=NOT_GIVEN)
    """Adapt the first filters to another number of channels."""
    heads: int | None = field(default=None, metadata=NOT_GIVEN)
    """Attention heads, for bare weights of a shape that nobody published."""


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """What is drawn of a model, and where it is written."""

    out: str = "inspection"
    """Folder for the figures, inspection.json and report.html."""
    compare: str | None = field(default=None, metadata=NOT_GIVEN)
    """Another checkpoint, whose layers are compared with these through the images."""
    class_name: str | None = field(default=None, metadata={"flag": "class"})
    """The class that Grad-CAM and gradient rollout explain; auto: the model's answer."""
    head_fusion: Literal["mean", "max", "min"] = "mean"
    """How rollout makes one map of a layer's heads."""
    discard_ratio: float = 0.0
    """The share of each token's weakest links that rollout cuts, 0 to less than 1."""
    patch: tuple[int, int] | None = None
    """Row and column of a patch to look from, counted from 0; auto: what the model pools."""
    own_aspect: bool = False
    """Show each image in its own aspect, with as many patches; positions are resampled."""
    image_size: tuple[int, ...] | None = None
    """Height and width (one number: a square) that the model sees; positions are resampled; auto: its own."""
    device: str = "cpu"
    """cpu, cuda, cuda:N or mps; auto takes a GPU where there is one."""


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What is timed, and beside whom. Lists are written with commas or spaces: all combinations are timed."""

    job: tuple[str, ...] = ("train", "predict")
    """train: the step that `vitreous train` takes; predict: the call that `predict` and `serve` make; load:
    from files to batches; start: from nothing to a first prediction, in a fresh process."""
    against: tuple[str, ...] = ()
    """timm, transformers, torchvision: timed in turn with ours, with the same weights, in one process."""
    model: tuple[str, ...] = ("ViT-Ti/16",)
    """Names of `vitreous models`, by timm or the paper."""
    image_size: tuple[int | str, ...] | None = None
    """Height and width that the model sees; one number: a square; several with commas: 224,384 or
    224,256 384; auto: the model's own, 224 to load."""
    batch_size: tuple[int | str, ...] | None = None
    """Images of a step or call; auto: 256 on a GPU, else 16 to train and 8 to predict; 64 to load."""
    precision: tuple[str, ...] = ("auto",)
    """bf16, float32, or auto: what `train`, and what `predict`, takes here."""
    rounds: int = 5
    """How often each is timed in turn; the median counts."""
    profile: bool = False
    """Also show where the time of train and predict goes, by the kind of work."""
    out: str | None = field(default=None, metadata=NOT_GIVEN)
    """Write bench.json and bench.svg into this folder."""
    workers: int | None = None
    """Processes that load images; auto: by the number of processors."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig:
    """At which scale an experiment of the paper is repeated, and on what."""

    scale: ReproduceScale = "quick"
    """quick: minutes on two cores; gpu: minutes on one GPU; paper: the paper's own setting."""
    out: str | None = None
    """Folder of the runs, table and plot; auto: runs/reproduce/NAME-SCALE."""
    data: str | None = None
    """What to learn from, as for train; auto: the experiment's own, at quick the bundled digits."""
    data_root: str | None = field(default=None, metadata=NOT_GIVEN)
    """Folder of the data sets that are given by name."""
    seeds: int = 1
    """Runs of each point; more can be added later."""
    epochs: int | None = None
    """Passes over the images, of every run; auto: the experiment's own."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""


GROUPS: dict[str, tuple[str, ...]] = {
    "main": (
        *(
            "job",
            "against",
            "objective",
            "model",
            "match",
            "init",
            "tune",
            "recipe",
            "method",
            "split",
            "image_size",
        ),
        *("epochs", "time_budget", "extend", "batch_size", "lr", "out", "seed", "device"),
    ),
    "model": (
        "patch_size",
        "drop_path",
        "initialization",
        "keep_head",
        "fit_head",
        "heads",
        "layer",
        "pooling",
    ),
    "data and augmentation": (
        *("data_root", "train_limit", "balance", "augment", "resize", "crop_scale", "crop_ratio", "flip"),
        *(
            "randaugment",
            "three_augment",
            "color_jitter",
            "erase",
            "mixup",
            "cutmix",
            "mix_probability",
            "unmixed",
        ),
        *("repeats", "geometry", "color", "fit", "local_crops", "local_scale"),
    ),
    "optimisation": (
        *("optimizer", "find_lr", "schedule", "warmup", "weight_decay", "layer_decay", "clip", "ema"),
        *("loss", "label_smoothing", "binary_targets", "on_nan"),
        *("targets", "temperature", "teacher_share", "distance"),
        *("target", "mask_ratio", "decoder_width", "decoder_depth", "prototypes", "on_collapse"),
    ),
    "measurement": (
        *("metric", "shots", "seeds", "compare", "calibrate", "abstain", "restrict", "real_labels"),
        *("resolutions", "corruptions", "rounds", "profile"),
    ),
    "hardware": ("micro_batch", "workers", "precision", "pixels", "compile", "checkpointing", "shard"),
    "logging and file": (
        "save_every",
        "keep",
        "cache",
        "thumbnails",
        "preview",
        "tensorboard",
        "wandb",
        "mlflow",
    ),
}
"""The options of the large configs, as `--help` shows them: the few that matter first."""
