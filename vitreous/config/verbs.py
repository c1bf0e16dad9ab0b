"""The options of the verbs that train nothing of their own."""

from dataclasses import dataclass, field
from typing import Literal

from vitreous.config.choices import NOT_GIVEN, Inference, Precision, ReproduceScale, Runtime


@dataclass(frozen=True, kw_only=True)
class ReadingConfig:
    """How the images of a data set are read and computed."""

    batch_size: int = 64
    """Images that are computed at a time."""
    workers: int | None = None
    """Processes that read images; auto: by the number of processors."""
    precision: Precision | Literal["auto"] = "float32"
    """float32; bf16, faster and less exact; auto: bf16 where the hardware has it."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    data_root: str | None = field(default=None, metadata=NOT_GIVEN)
    """Folder of the data sets that are given by name."""


@dataclass(frozen=True, kw_only=True)
class FeatureConfig(ReadingConfig):
    """How the features of images are taken."""

    image_size: tuple[int, ...] | None = None
    """Height and width that the model sees (one number: a square); positions are resampled."""
    layer: int = -1
    """Take the tokens after this block; -1: the last."""
    pooling: Literal["model", "cls", "gap", "cls_gap"] = "model"
    """How tokens become one vector: the model's own way, or another."""
    cache: str | None = None
    """Keep features in this folder; auto: the user's cache."""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(ReadingConfig):
    """What is measured, and on what."""

    split: str | None = None
    """train, val, test or all; auto: test, else val."""
    out: str | None = field(default=None, metadata=NOT_GIVEN)
    """Write `evaluation.json` and `report.html` into this folder."""
    seed: int | None = None
    """Seed of the held-out part, the interval of --compare and corruptions; auto: that of the training."""
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
    merge: int = 0
    """Merge this many similar patches in each block, as `predict --merge` does; the checkpoint of --compare
    merges none."""


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(FeatureConfig):
    """How features are taken and measured."""

    method: Literal["knn", "fewshot", "linear", "all"] = "all"
    """Nearest neighbours, least squares on few images per class, logistic regression, or all three."""
    shots: tuple[int, ...] = (1, 5, 10, 25)
    """Images per class, for fewshot."""
    seeds: int = 5
    """How often those images are drawn."""
    metric: Literal["accuracy", "mean_per_class_accuracy", "mean_average_precision"] | None = None
    """auto: accuracy; mean average precision where images have several labels."""
    train_limit: int | None = field(default=None, metadata=NOT_GIVEN)
    """Use at most this many training images, a fifth of them for validation; a suite: 1,000, as in VTAB."""
    seed: int | None = None
    """Seed of the held-out part, the draws and bootstraps; auto: that of the checkpoint's training."""


@dataclass(frozen=True, kw_only=True)
class EmbedConfig(FeatureConfig):
    """How features are taken, and where they are written."""

    out: str = field(default="features.npz", metadata={"placeholder": "FILE"})
    """The .npz file to write."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """What is looked for, and by which model."""

    top: int = 5
    """How many pictures to give for each query."""
    others: bool = False
    """Leave out the query itself, where the index has it: files with the same bytes."""
    checkpoint: str | None = None
    """The model that made the index; auto: from where it was loaded then."""
    out: str | None = field(default=None, metadata=NOT_GIVEN)
    """Write search.json and a page with the pictures into this folder."""
    batch_size: int | None = None
    """Images computed at a time; auto: what suits the device."""
    workers: int | None = None
    """Threads that decode; auto: one per core."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""


@dataclass(frozen=True, kw_only=True)
class CleanConfig(FeatureConfig):
    """How features are taken, and what is shown of the findings."""

    out: str | None = field(default=None, metadata=NOT_GIVEN)
    """Write clean.json, suspicious.csv and a page with the pictures into this folder."""
    top: int = 20
    """How many of each finding the tables show; the page shows five times as many, the files all."""
    seed: int = 0
    """Seed of the parts in which labels are judged."""


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """How images are labelled."""

    top: int = 5
    """How many labels to give for each image."""
    abstain: float | None = None
    """Give no label below this probability; auto: the checkpoint's own threshold."""
    batch_size: int | None = None
    """Images computed at a time; auto: what suits the device."""
    workers: int | None = None
    """Threads that decode; auto: one per core."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    runtime: Runtime = "torch"
    """What computes: torch, onnxruntime or openvino (on a CPU, proven against torch first); auto: the fastest
    that is installed, where there are images enough for it to pay."""
    precision: Inference = "float32"
    """float32; bf16; int8 (not by torch); auto: bf16 where the processor has it and it is faster."""
    merge: int = 0
    """Merge this many similar patches in each block of a ViT (ToMe): faster, and less accurate."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What is exported, and how it is proven."""

    precision: Literal["fp32", "fp16", "bf16", "int8"] = "fp32"
    """fp16 and int8 for .onnx and .xml, bf16 for .xml."""
    pixels: bool = False
    """Take uint8 pixels of the model's size; normalising them is then part of the file."""
    images: tuple[str, ...] = ()
    """Files, folders or patterns to prove it with; without them, bundled images."""
    tolerance: float | None = None
    """Largest difference in probability (auto: 1e-4 for fp32, 1e-2 for fp16); for bf16 and int8, largest
    share of labels that differ (auto: 0.02)."""


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """What is changed on the way from one layout to another."""

    num_classes: int | None = field(default=None, metadata=NOT_GIVEN)
    """Give it a fresh, zero head with this many classes."""
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
    """How rollout joins a layer's heads into one map."""
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
    """What is timed, beside which libraries. Lists take commas or spaces: all combinations are timed."""

    job: tuple[str, ...] = ("train", "predict")
    """train: the step that `vitreous train` takes; predict: the call that `predict` and `serve` make; load:
    from files to batches; start: from nothing to a first prediction, in a fresh process."""
    against: tuple[str, ...] = ()
    """timm, transformers, torchvision; to predict also onnxruntime, openvino: timed in turn with ours, with
    the same weights, in one process."""
    model: tuple[str, ...] = ("ViT-Ti/16",)
    """Names of `vitreous models`, by timm or the paper."""
    image_size: tuple[int | str, ...] | None = None
    """Height and width that the model sees; one number: a square; several with commas: 224,384 or
    224,256 384; auto: the model's own, 224 for load."""
    batch_size: tuple[int | str, ...] | None = None
    """Images of a step or call; auto: 256 on a GPU, else 16 for train and 8 for predict; 64 for load."""
    precision: tuple[str, ...] = ("auto",)
    """bf16, float32, or auto: what `train`, and what `predict`, takes here; int8 for predict alone."""
    runtime: tuple[str, ...] = ("torch",)
    """What ours predicts with: torch, onnxruntime, openvino; ratios are those of the first."""
    merge: tuple[int | str, ...] = (0,)
    """Patches that ours merges in each block of a ViT when it predicts: a row for each number."""
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
