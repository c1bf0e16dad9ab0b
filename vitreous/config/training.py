"""The options of runs: `train`, and what `finetune`, `distill` and `pretrain` add to them."""

from dataclasses import dataclass, field
from typing import Literal

from vitreous.config.choices import (
    NOT_GIVEN,
    Balance,
    Compile,
    Fit,
    Initialization,
    Loss,
    Optimizer,
    Precision,
    Schedule,
    unused,
)

WITHOUT_LABELS = "in pre-training, which does not learn from labels"


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained. What is auto is chosen from data and hardware, and shown with its reason."""

    out: str | None = None
    """The run folder; auto: runs/NAME-OF-DATA, numbered where that holds a run of other options. The same
    command again goes on where it stopped."""
    recipe: str | None = field(default=None, metadata=NOT_GIVEN)
    """A run folder or a sealed file, whose plan is repeated except where other options differ."""
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
    patch_drop: float | None = None
    """Share of its patches that an image is trained without, different ones each time: faster, and harder to
    learn by heart; auto: 0, or 0.5 for small images that a GPU sees hundreds of times."""
    reconstruct: float | None = None
    """Weight of a second task beside the labels: what --patch-drop leaves out is painted from the rest, as in
    a masked autoencoder; auto: 0, or 10 for a wide model whose small images a GPU sees hundreds of times."""
    initialization: Initialization | None = None
    """How a ViT that is trained from scratch starts; mimetic: with attention to what is similar and near, as
    in pre-trained models (arXiv 2305.09828); torch: as torch's layers start by themselves, with positions of
    a standard normal, as in most tutorials."""
    epochs: int | None = None
    """Passes over the training images."""
    time_budget: str | None = field(default=None, metadata=NOT_GIVEN)
    """Train as long as fits into this time, such as 90s, 10m or 1.5h, instead of a number of epochs."""
    extend: int | str | None = field(default=None, metadata=NOT_GIVEN)
    """Go on with a run that has ended, for this many epochs or a time such as 10m, with the other options
    of that run. The learning rate rises again to half of its peak, and falls to 0."""
    batch_size: int | None = None
    """Images per step, over all ranks and micro-batches."""
    optimizer: Optimizer | None = None
    """auto: Muon for small images on a GPU, and for a new ViT on a CPU unless its images are tiny; else
    AdamW, or what the recipe says."""
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
    """Largest norm of the gradient, which is scaled down to it; 0: no limit; auto: 1."""
    ema: float | None = None
    """Decay of the weights' moving average, which is what is evaluated and kept; 0: none."""
    loss: Loss | None = None
    """softmax: one class per image; sigmoid: a yes or no for each class. auto: by the kind of labels."""
    label_smoothing: float | None = None
    """Share of each target that is spread over all classes."""
    binary_targets: bool = False
    """With --loss sigmoid: every class that is mixed into an image counts as fully there (DeiT III)."""
    seed: int | None = None
    """Seed of the order, the augmentation, dropout and the held-out part; auto: 0, or the recipe's."""
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
    """Repeated augmentation: this many differently varied copies of an image in the same batch."""
    geometry: float | None = None
    """One affine map per image (shift, turn, shear, scale) of this strength; 1: as for CIFAR; 0: none."""
    color: float | None = None
    """One change of colours per image (brightness, contrast, saturation, …) of this strength; 0: none."""
    fit: Fit | None = None
    """cover: crop what is not square; pad: show all, padded and masked; stretch: to the model's size."""
    balance: Balance | None = None
    """Against rare classes: weigh them in the loss, or draw them more often."""
    data_root: str | None = field(default=None, metadata=NOT_GIVEN)
    """Folder of the data sets that are given by name."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    workers: int | None = None
    """Processes that read images."""
    pixels: Literal["auto", "device", "decode", "host"] = "auto"
    """Where images are decoded, kept and varied. device: all pixels are kept there; decode: JPEGs are decoded
    there, batch by batch; auto: on a GPU where they fit into its memory, else by whichever decodes faster."""
    precision: Precision | Literal["auto"] = "auto"
    """bf16: matrix products in bf16; auto: bf16 where the hardware has it and it is faster."""
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

    model: str | None = unused("in fine-tuning: the model is that of the CKPT")
    init: str | None = unused("in fine-tuning: it starts from the CKPT")
    initialization: Initialization | None = unused("in fine-tuning: it starts from the CKPT")
    reconstruct: float | None = unused("in fine-tuning: it is for training from scratch")
    tune: str | None = None
    """What learns: full, head, last:N (the head and the last N blocks), lora or lora:RANK; auto: full, or
    with a time budget as much as fits into it."""
    recipe: str | None = "auto"
    """paper: SGD with momentum, cosine, no decay; modern: AdamW with layer-wise decay; auto: by the number of
    images; none: only what the other options say; or a run folder or sealed file, to repeat its plan."""
    train_limit: int | None = field(default=None, metadata=NOT_GIVEN)
    """Use at most this many training images, a fifth of them for validation; a suite: 1,000, as in VTAB."""
    keep_head: bool = False
    """Keep the head's rows for classes that the model knows already; else the head starts at zero."""
    fit_head: Literal["yes", "no"] | None = None
    """Start with the head that logistic regression on the frozen features gives, instead of zeros; auto: yes
    where time decides what learns."""
    heads: int | None = field(default=None, metadata=NOT_GIVEN)
    """Attention heads, for bare weights of a shape that nobody published."""


@dataclass(frozen=True, kw_only=True)
class DistillConfig(TrainConfig):
    """How a student learns from a teacher; else as in training."""

    init: str | None = unused("in distillation: a student starts from scratch")
    reconstruct: float | None = unused("in distillation: the student learns from a teacher instead")
    match: Literal["token", "logits", "features"] = "token"
    """token: DeiT, the teacher teaches a distillation token, the labels the class token; logits: both teach
    the same scores; features: the student reproduces the teacher's features, and labels take no part."""
    targets: Literal["hard", "soft"] | None = None
    """hard: the teacher's best class; soft: its scores; auto: hard for token, soft for logits."""
    temperature: float = 1.0
    """Scores are divided by it on both sides, where targets are soft."""
    teacher_share: float | None = None
    """The teacher's part of the loss, beside the labels; auto: 0.5 for token, 1 for logits."""
    distance: Literal["cosine", "smooth_l1"] = "cosine"
    """How the distance between features is measured."""


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(TrainConfig):
    """How a model learns from pictures alone; else as in training."""

    loss: Loss | None = unused(WITHOUT_LABELS)
    label_smoothing: float | None = unused(WITHOUT_LABELS)
    binary_targets: bool = unused(WITHOUT_LABELS, default=False)
    reconstruct: float | None = unused("in pre-training: --objective mae does this, without labels")
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
    """Width of the blocks with which mae paints; auto: half of the model's."""
    decoder_depth: int = 2
    """How many blocks mae paints with."""
    prototypes: int = 1024
    """How many answers dino's teacher can give."""
    local_crops: int = 8
    """Small crops of each image that dino shows beside two large ones."""
    local_scale: tuple[float, float] | None = None
    """Part of an image's area that a small crop keeps, from and to; auto: 0.2 to 0.5, or 0.05 to 0.4 for
    large images."""
    on_collapse: Literal["warn", "stop"] = "warn"
    """When all images have become alike to the model: warn, or end the run too."""
    preview: bool = False
    """Draw what the model makes of some images at each evaluation, into the run folder's preview/."""
