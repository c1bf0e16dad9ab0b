"""The verbs: one function each, its signature the flags, its docstring the help. Parse, call, print.

Torch and everything that needs it is imported inside the functions, so that `--help` answers at once.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitreous import api, console
from vitreous.cli import flags
from vitreous.config import (
    BenchConfig,
    CleanConfig,
    ConvertConfig,
    DistillConfig,
    EmbedConfig,
    EvaluateConfig,
    ExportConfig,
    FinetuneConfig,
    Inference,
    InspectConfig,
    Layout,
    PredictConfig,
    PretrainConfig,
    ProbeConfig,
    ReproduceConfig,
    Runtime,
    SearchConfig,
    TrainConfig,
)
from vitreous.errors import OptionError

if TYPE_CHECKING:
    from vitreous.figures import Figures

Checkpoint = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CKPT")]
Data = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
Destination = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DST")]
Paths = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(
        metavar="PATH…",
        help="Image files, folders (searched whole), 'patterns/**/*.jpg', or - for standard input: an image, "
        "or a list of files, one per line or ended by NUL.",
        help_behavior_hint="(required)",
    ),
]
Json = Annotated[
    bool,
    tyro.conf.arg(help="Write one JSON document to stdout, and nothing else there.", help_behavior_hint=""),
]
Switch = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
Whole = Annotated[int, tyro.conf.arg(metavar="N")]
Number = Annotated[float, tyro.conf.arg(metavar="X")]
Options = dict[str, Any]


def _optional(metavar: str) -> Any:
    """Return the marker of a flag that need not be given, and has no default to show."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def models(
    pattern: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="[PATTERN]", help_behavior_hint="")
    ] = "",
    *,
    json: Json = False,
) -> None:
    """List the model variants, with their sizes and costs.

    Examples:
        vitreous models 'vit_base*'
        vitreous models ViT-B/16 --json

    Args:
        pattern: Part of a name, a shell pattern (`vit_base*`) or a name of the paper (`ViT-B/16`).
    """
    from vitreous.models import zoo

    rows = [zoo.describe(name) for name in zoo.list_models(pattern)]
    if not rows:
        raise zoo.unknown(pattern)
    if json:
        console.document(rows)
    else:
        console.table(
            list(rows[0]), [list(row.values()) for row in rows], title="One GFLOP: 1e9 multiply-adds"
        )


def train(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]")] = "digits",
    *,
    options: Annotated[Options, flags.of(TrainConfig)],
) -> None:
    """Train a classifier on a folder of images, or on other data.

    Options that are not given are chosen from the data, and shown with reasons.

    Examples:
        vitreous train photos/ --time-budget 10m
        vitreous train cifar10 --model ViT-S/16 --image-size 32 --patch-size 4

    Args:
        data: A folder of class folders, a CSV or Parquet file, tar shards, .npz, or a name such as cifar10.
    """
    _show_run(api.train(data, **options))


def finetune(
    checkpoint: Checkpoint,
    data: Data,
    *,
    options: Annotated[Options, flags.of(FinetuneConfig)],
) -> None:
    """Fit a trained model to another task.

    All of it learns, or its head, its last blocks or low-rank updates.

    Examples:
        vitreous finetune hf://google/vit-base-patch16-224 photos/ --epochs 10
        vitreous finetune runs/photos flowers/ --tune lora:8 --image-size 384

    Args:
        checkpoint: A sealed file, a run folder, or weights of any layout.
        data: As for train; or a suite of data sets: a .toml file, or vtab.
    """
    found = api.finetune(checkpoint, data, **options)
    if isinstance(found, api.Run):
        _show_run(found)
    else:
        from vitreous.evals import suite

        console.table(*suite.table(found.to_dict()))


def distill(
    teacher: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEACHER")],
    data: Data,
    *,
    options: Annotated[Options, flags.of(DistillConfig)],
) -> None:
    """Teach a small model what a large one knows.

    By the teacher's answers, as DeiT does, or by its features, without labels.

    Examples:
        vitreous distill runs/bit photos/ --model deit_tiny_patch16_224 --epochs 100
        vitreous distill dinov2.pth pictures/ --model ViT-Ti/16 --match features

    Args:
        teacher: A sealed file, a run folder, or weights of any layout.
        data: As for train.
    """
    _show_run(api.distill(teacher, data, **options))


def pretrain(data: Data, *, options: Annotated[Options, flags.of(PretrainConfig)]) -> None:
    """Learn from pictures alone: no labels needed.

    What it gives is fine-tuned, or probed. Labels, where there are any, only watch.

    Examples:
        vitreous pretrain photos/ --objective mae --time-budget 1h
        vitreous pretrain photos/ --objective dino --init tiny --epochs 50

    Args:
        data: As for train; folders without classes too.
    """
    _show_run(api.pretrain(data, **options))


def _show_sweep(run: api.Run) -> None:
    """Print what `--find-lr` found."""
    none = "none: the loss did not fall"
    suggested = none if run.suggestion is None else f"--lr {run.suggestion:g}"
    rows = [["suggested", suggested], ["planned without it", f"{run.planned:.3g}"], ["page", str(run.report)]]
    console.table(["learning rate", "value"], rows)


SHOWN = {"mean_average_precision": ".2%", "accuracy": ".2%", "top5": ".2%", "knn": ".2%", "loss": ".4f"}
SHOWN |= {"effective_rank": ".1f", "mean_cosine": ".3f"}
"""The figures of a run's final table, and how they are written."""


def _show_run(run: api.Run) -> None:
    """Print the final table of a run, in the one process that prints."""
    if not run.is_main:
        return
    if api.is_sweep(run):
        _show_sweep(run)
        return
    rows: list[list[console.Cell]] = []
    for split in ("val", "test"):
        for name, form in SHOWN.items():
            if (value := run.get(split, {}).get(name)) is not None:
                rows.append([f"{split} {name.replace('_', ' ')}", f"{value:{form}}"])
    rows.append(["best at step", f"{run.step:,} of {run.steps:,}"])
    start = run.get("start_seconds")
    until = f", {console.duration(start)} of it before the first step" if start else ""
    rows.append(["time", console.duration(run.seconds) + until])
    if run.get("images_per_second"):
        rows.append(["images/s", f"{run.images_per_second:,.0f}"])
    if run.get("mfu") is not None:
        rows.append(["MFU (of the measured matrix rate)", f"{run.mfu:.1%}"])
    if run.get("bottleneck") == "loader":
        rows.append(["waited for data", f"{run.waited_for_data:.0%} of the steps' time"])
    rows.append(["peak memory", console.size(run.peak_memory_bytes)])
    rows.append(["model", str(run.folder / "best.safetensors")])
    console.table(["result", "value"], rows)
    for line in run.get("advice", []):
        console.note(line)


def evaluate(
    checkpoint: Checkpoint,
    data: Data,
    *,
    options: Annotated[Options, flags.of(EvaluateConfig)],
    json: Json = False,
) -> None:
    """Measure a checkpoint on a data set.

    Accuracy with its interval, per class, confusion, calibration, worst mistakes.

    Examples:
        vitreous evaluate runs/photos photos/ --out evaluation/
        vitreous evaluate model.safetensors photos/ --compare runs/photos --json

    Args:
        checkpoint: A sealed file, a run folder, or weights of any layout.
        data: A folder, CSV, Parquet, shards, .npz, or a name such as digits.
    """
    document = api.evaluate(checkpoint, data, **options).to_dict()
    if json:
        console.document(document)
    else:
        from vitreous.evaluate import summary

        console.table(["figure", "value"], [list(row) for row in summary(document)])


def probe(
    checkpoint: Checkpoint,
    data: Data,
    *,
    options: Annotated[Options, flags.of(ProbeConfig)],
    json: Json = False,
) -> None:
    """Measure how good a model's frozen features are.

    By nearest neighbours, few-shot least squares and logistic regression.

    Examples:
        vitreous probe hf://facebook/dinov2-small photos/
        vitreous probe runs/photos vtab --method linear --json

    Args:
        checkpoint: A sealed file, a run folder, or weights of any layout.
        data: A data set; or a suite of them: a .toml file, or vtab.
    """
    document = api.probe(checkpoint, data, **options).to_dict()
    if json:
        console.document(document)
    else:
        from vitreous.evals import suite
        from vitreous.probe import summary

        console.table(*(suite.table(document) if suite.is_suite(data) else summary(document)))


def embed(
    checkpoint: Checkpoint,
    data: Data,
    *,
    options: Annotated[Options, flags.of(EmbedConfig)],
) -> None:
    """Write the features of every picture into a file.

    With its file, label and split; for `search`, or for numpy.

    Examples:
        vitreous embed tiny photos/ --out photos.npz
        vitreous embed runs/photos archive/ --image-size 224 --pooling gap

    Args:
        checkpoint: A sealed file, a run folder, or weights of any layout.
        data: A data set as for train; or a folder of pictures without classes, or an image file.
    """
    from vitreous.features.embed import summary

    document = api.embed(checkpoint, data, **options).to_dict()
    console.table(["features", "value"], [list(row) for row in summary(document)])


def search(
    index: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="INDEX")],
    queries: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="QUERY…", help_behavior_hint="(required)"),
    ],
    *,
    options: Annotated[Options, flags.of(SearchConfig)],
    json: Json = False,
) -> None:
    """Find the nearest pictures to others, in an index of embed.

    By cosine; the index knows the model that made it.

    Examples:
        vitreous search photos.npz new.jpg --top 3
        vitreous search photos.npz new/*.jpg --others --out found/

    Args:
        index: The .npz file that `vitreous embed` wrote.
        queries: Image files, folders (searched whole) or 'patterns/**/*.jpg'.
    """
    if not queries:
        console.fail("no query: name image files, folders or patterns after INDEX")
        raise SystemExit(2)
    from vitreous.features.search import require_some, summary

    found = api.search(index, queries, **options)
    if json:
        console.document(list(found))
    else:
        console.table(*summary(found))
    require_some(found)


def clean(
    checkpoint: Checkpoint,
    data: Data,
    *,
    options: Annotated[Options, flags.of(CleanConfig)],
    json: Json = False,
) -> None:
    """Find copies, outliers and wrong labels; nothing is changed.

    By a model's features, and by pixels: cropped and mirrored copies too.

    Examples:
        vitreous clean tiny photos/ --out suspicious/
        vitreous clean runs/photos photos/ --json

    Args:
        checkpoint: A sealed file, a run folder, or weights of any layout.
        data: A data set as for train; or a folder of pictures without classes.
    """
    document = api.clean(checkpoint, data, **options).to_dict()
    if json:
        console.document(document)
        return
    from vitreous.features.clean import COLUMNS, summary, table

    console.table(["finding", "count", "of which"], summary(document))
    if rows := table(document, options["top"]):
        console.table(COLUMNS, rows)


def predict(
    checkpoint: Checkpoint,
    paths: Paths,
    *,
    options: Annotated[Options, flags.of(PredictConfig)],
    json: Json = False,
    csv: Switch = False,
    out: Annotated[Path | None, _optional("FILE")] = None,
    strict: Switch = False,
) -> None:
    """Label images: files, folders, patterns, standard input.

    A bad file is reported and the rest go on.

    Examples:
        vitreous predict runs/photos holiday/ --top 3
        vitreous predict model.safetensors 'archive/**/*.jpg' --out labels.csv

    Args:
        checkpoint: A model: file, folder or hf://owner/name.
        csv: Write CSV to stdout.
        out: Write CSV to this file; run again to go on where an earlier run stopped.
        strict: Exit 1 if any file could not be read, not only if all could not.
    """
    if not paths:
        console.fail("no images: name files, folders or patterns after CKPT, or - for standard input")
        raise SystemExit(2)
    from vitreous.options import from_keywords
    from vitreous.predict import load
    from vitreous.predict.verb import predict_files

    if json and csv or (json or csv) and out is not None:
        raise OptionError("--json, --csv and --out exclude each other: choose one")
    config = from_keywords(PredictConfig, options, "predict")
    predict_files(
        api.with_threshold(load(checkpoint, device=config.device), config.abstain),
        paths,
        form="json" if json else "csv" if csv else "table",
        out=out,
        top=config.top,
        batch=config.batch_size,
        workers=config.workers,
        strict=strict,
        runtime=config.runtime,
        precision=config.precision,
    )


def inspect(
    checkpoint: Checkpoint,
    images: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[IMAGE…]", help_behavior_hint="")
    ] = (),
    *,
    options: Annotated[Options, flags.of(InspectConfig)],
    json: Json = False,
) -> None:
    """Look inside a model: attention, filters, positions.

    The paper's figures are written as pictures, numbers and a page.

    Examples:
        vitreous inspect runs/photos a.jpg b.jpg
        vitreous inspect hf://google/vit-base-patch16-224 photos/ --class goldfish

    Args:
        checkpoint: A file, a folder or hf://owner/name[@revision]; its layout is recognised from the weights.
        images: Image files, or folders of them. Without any, the figures that the weights alone give.
    """
    found = api.inspect(checkpoint, images, **options)
    if json:
        console.document(found.to_dict())
        return
    assert found.folder is not None
    for path in sorted(found.folder.glob("*.png")):
        console.note(f"wrote {path}")
    rows = [
        [str(found.folder / "report.html"), "the figures, with how to read them"],
        [str(found.folder / "inspection.json"), "the numbers that they show"],
    ]
    console.table(["wrote", "holds"], rows)


def convert(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")],
    destination: Destination,
    *,
    to: Layout,
    options: Annotated[Options, flags.of(ConvertConfig)],
    json: Json = False,
) -> None:
    """Convert weights between layouts, and prove it.

    The target's own library must give the same logits.

    Examples:
        vitreous convert hf://google/vit-base-patch16-224 vit.npz --to google
        vitreous convert runs/photos photos-hf/ --to hf

    Args:
        source: A file, a folder or hf://owner/name[@revision]; its layout is recognised from the weights.
        destination: A folder (hf, timm), .safetensors (not hf), .pth (torchvision, timm) or .npz (google).
        to: The layout to write.
    """
    _written(api.convert(source, destination, to, **options), json)


def export(
    checkpoint: Checkpoint,
    destination: Destination,
    *,
    options: Annotated[Options, flags.of(ExportConfig)],
    json: Json = False,
) -> None:
    """Export to ONNX, torch.export or OpenVINO, and prove it.

    Real images go through both, from file to label; what disagrees is not kept.

    Examples:
        vitreous export runs/photos photos.onnx --pixels
        vitreous export runs/photos small.onnx --precision int8 --images photos/test

    Args:
        checkpoint: A model: file, folder or hf://owner/name.
        destination: The file to write: .onnx, .pt2 (torch.export) or .xml (OpenVINO).
    """
    _written(api.export(checkpoint, destination, **options), json)


def _written(found: "Figures", json: bool) -> None:
    """Print what is known of a file that was written."""
    row = found.to_dict()
    if json:
        console.document(row)
    else:
        row.pop("lost", None)  # was said on the way
        console.table(list(row), [list(row.values())])


def serve(
    checkpoint: Checkpoint,
    *,
    port: Whole = 8000,
    host: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = "127.0.0.1",
    allow_host: Annotated[tuple[str, ...], _optional("NAME…")] = (),
    allow_origin: Annotated[tuple[str, ...], _optional("ORIGIN…")] = (),
    token_file: Annotated[Path | None, _optional("FILE")] = None,
    deadline: Number = 10.0,
    queue: Whole = 256,
    max_batch: Whole = 64,
    max_body_mib: Number = 16.0,
    max_pixels: Whole = 25_000_000,
    examples: Annotated[str | None, _optional("DATA")] = None,
    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = "auto",
    runtime: Runtime = "torch",
    precision: Inference = "float32",
) -> None:
    """Serve predictions over HTTP, with a page to explore them.

    Examples:
        vitreous serve runs/photos
        vitreous serve model.safetensors --host 0.0.0.0 --token-file token.txt

    Args:
        checkpoint: A model: file, folder or hf://owner/name.
        port: Where to listen; 0 takes any free port.
        host: The address to listen on; 0.0.0.0 lets others in.
        allow_host: Host names to answer to, besides localhost and the address.
        allow_origin: Sites whose pages may use the server (CORS), as https://example.org.
        token_file: A file with the bearer token that requests must carry (or the variable VITREOUS_TOKEN).
        deadline: Seconds in which a request is answered or refused.
        queue: Images inside at once; more are refused with 429.
        max_batch: Images computed at once at most; the warm-up finds how many pay.
        max_body_mib: The largest request, in MiB.
        max_pixels: The largest image, in pixels.
        examples: Data whose pictures the page offers to try; all who reach the page see them.
        device: auto, cpu, cuda, cuda:N or mps.
        runtime: What computes: torch, onnxruntime or openvino (on a CPU, proven against torch first); auto:
            the fastest that is installed, by measurement.
        precision: float32; bf16; int8 (not by torch); auto: bf16 where the processor has it and it is faster.
    """
    from vitreous.predict import load
    from vitreous.serve import start

    settings = start.settings(
        host=host,
        allow_host=allow_host,
        allow_origin=allow_origin,
        token_file=token_file,
        deadline=deadline,
        queue=queue,
        max_batch=max_batch,
        max_body_mib=max_body_mib,
        max_pixels=max_pixels,
        runtime=runtime,
        precision=precision,
    )
    start.serve(load(checkpoint, device=device), Path(checkpoint).name, host, port, settings, examples)


def check(
    data: Data,
    *,
    json: Json = False,
    grid: Annotated[str | None, _optional("FILE")] = None,
    pack: Annotated[str | None, _optional("DIR")] = None,
    data_root: Annotated[str | None, _optional("DIR")] = None,
) -> None:
    """Find faults in a data set; nothing is changed.

    Unreadable files, duplicates, split leaks, thin classes and odd sizes.

    Examples:
        vitreous check photos/
        vitreous check photos/ --grid classes.png --pack shards/

    Args:
        data: A folder, CSV, Parquet, tar shards, Hugging Face folder, .npz, or a name such as digits.
        grid: Write a picture with some images of each class to this file.
        pack: Write the readable images as WebDataset tar shards into this new folder.
        data_root: Folder of the data sets that are given by name.
    """
    from vitreous.data.check import run

    run(data, json=json, grid_file=grid, pack_folder=pack, data_root=data_root)


def bench(*, options: Annotated[Options, flags.of(BenchConfig)], json: Json = False) -> None:
    """Time training, prediction, loading and start-up here.

    Beside other libraries in the same run, in turns: medians, with their spread.

    Examples:
        vitreous bench --against timm,torchvision
        vitreous bench --job predict --model ViT-S/16,ViT-B/16 --batch-size 1,8
    """
    found = api.bench(**options)
    if json:
        console.document(found.to_dict()["rows"])
        return
    from vitreous.bench import table

    console.table(*table.speeds(found.rows))
    if options["profile"]:
        console.table(*table.profiles(found.rows))


def reproduce(
    name: Annotated[
        str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]", help_behavior_hint="")
    ] = None,
    *,
    options: Annotated[Options, flags.of(ReproduceConfig)],
    json: Json = False,
) -> None:
    """Repeat an experiment of the paper, at the scale at hand.

    A table, a plot, and whether the claim held. Without a name: the list.

    Examples:
        vitreous reproduce positions
        vitreous reproduce scaling --scale gpu --data-root datasets/ --seeds 3

    Args:
        name: Of the experiment; the same command again goes on where it stopped.
    """
    found = api.reproduce(name, **options)
    if json:
        console.document(found.to_dict())
    elif name is None:
        rows = [list(row.values()) for row in found.to_dict().values()]
        console.table(["name", "source", "claim", "cost", "result"], rows)
    else:
        from vitreous.reproduce import table

        console.table(*table(found.to_dict()))
        console.result(f"{found.sentence}.")
        console.note(f"table, plot and runs: {found.folder}")


VERBS: dict[str, Callable[..., Any]] = {
    "models": models,
    "check": check,
    "train": train,
    "finetune": finetune,
    "pretrain": pretrain,
    "distill": distill,
    "evaluate": evaluate,
    "probe": probe,
    "embed": embed,
    "search": search,
    "clean": clean,
    "predict": predict,
    "inspect": inspect,
    "convert": convert,
    "export": export,
    "serve": serve,
    "bench": bench,
    "reproduce": reproduce,
}
