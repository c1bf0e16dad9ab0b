"""The command line: one function a verb, its signature the flags, its docstring the help. No work here.

Torch and everything that needs it is imported inside the verbs, so that `--help` answers at once.
"""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitreous import console
from vitreous.config import EvaluateConfig, FinetuneConfig, ProbeConfig, TrainConfig
from vitreous.errors import VitreousError
from vitreous.version import __version__

if TYPE_CHECKING:
    from vitreous.training import Result

Json = Annotated[bool, tyro.conf.arg(help="Write one JSON document to stdout, and nothing else there.")]


def models(pattern: tyro.conf.Positional[str] = "", *, json: Json = False) -> None:
    """List every variant: layers, width, MLP size, heads, parameters, GFLOPs, tokens.

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


def predict(
    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CKPT")],
    paths: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATH…")],
    *,
    json: Json = False,
    csv: bool = False,
    out: Path | None = None,
    top: int = 5,
    abstain: float | None = None,
    strict: bool = False,
    batch_size: int | None = None,
    workers: int = 0,
    device: str = "auto",
) -> None:
    """Label images: files, folders, patterns, standard input. A bad file is reported and the rest go on.

    Args:
        checkpoint: A model: file, folder or hf://owner/name.
        paths: Image files, folders (searched whole), 'patterns/**/*.jpg', or - for standard input:
            an image, or a list of files, one a line or ended by NUL.
        csv: Write CSV to stdout.
        out: Write CSV to this file; run again to go on where an earlier run stopped.
        top: How many labels to give for each image.
        abstain: Give no label below this probability; without it, the checkpoint's own threshold.
        strict: Exit 1 if any file could not be read, not only if all could not.
        batch_size: Images computed at once; without it, what suits the device.
        workers: Threads that decode; 0: one a core.
        device: cpu, cuda, cuda:1, mps; auto takes a GPU where there is one.
    """
    from vitreous.errors import DataError
    from vitreous.predict import load
    from vitreous.predict.verb import predict_files

    if json and csv or (json or csv) and out is not None:
        raise DataError("--json, --csv and --out exclude each other: choose one")
    classifier = load(checkpoint, device=device)
    if abstain is not None:
        classifier.about = {**classifier.about, "abstain": abstain}
    form = "json" if json else "csv" if csv else "table"
    predict_files(
        classifier, paths, form=form, out=out, top=top, batch=batch_size, workers=workers, strict=strict
    )


def export(
    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CKPT")],
    destination: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DST")],
    *,
    precision: Literal["fp32", "fp16", "int8"] = "fp32",
    pixels: bool = False,
    images: tuple[str, ...] = (),
    tolerance: float | None = None,
    json: Json = False,
) -> None:
    """Export to ONNX, torch.export or OpenVINO, and prove it: real images, from file to label, through both.

    Args:
        checkpoint: A model: file, folder or hf://owner/name.
        destination: The file to write: .onnx, .pt2 (torch.export) or .xml (OpenVINO).
        precision: fp16 for .onnx and .xml, int8 for .onnx.
        pixels: Take uint8 pixels of the model's size; normalising them is then part of the file.
        images: Files, folders or patterns to prove it with; without them, bundled images.
        tolerance: Largest difference in probability (fp32: 1e-4, fp16: 1e-2); of int8, largest share of
            labels that differ (0.02).
    """
    from vitreous.export import export
    from vitreous.predict import load
    from vitreous.predict.inputs import find

    files = [Path(item.file) for item in find(images)]
    result = export(
        load(checkpoint), destination, precision=precision, pixels=pixels, images=files, tolerance=tolerance
    )
    _written({**vars(result), "path": str(result.path)}, json)


def serve(
    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CKPT")],
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    allow_host: tuple[str, ...] = (),
    allow_origin: tuple[str, ...] = (),
    token_file: Path | None = None,
    deadline: float = 10.0,
    queue: int = 256,
    max_batch: int = 64,
    max_body_mib: float = 16.0,
    max_pixels: int = 25_000_000,
    device: str = "auto",
) -> None:
    """Serve predictions and attention over HTTP, with a page to explore them.

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
        device: cpu, cuda, cuda:1, mps; auto takes a GPU where there is one.
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
    )
    start.serve(load(checkpoint, device=device), Path(checkpoint).name, host, port, settings)


def convert(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")],
    destination: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DST")],
    *,
    to: Literal["vitreous", "timm", "hf", "google", "torchvision"],
    num_classes: int | None = None,
    image_size: tuple[int, ...] | None = None,
    patch_size: tuple[int, ...] | None = None,
    in_channels: int | None = None,
    heads: int | None = None,
    json: Json = False,
) -> None:
    """Convert weights between layouts, and prove it: the target's own library must give the same logits.

    Args:
        source: A file, a folder or hf://owner/name[@revision]; its layout is recognised from the weights.
        destination: Where to write: a folder (hf, timm), a .safetensors (vitreous, timm, torchvision), a .pth
            (torchvision, timm) or an .npz (google).
        to: The layout to write.
        num_classes: Give it a fresh, zero head of so many classes.
        image_size: Height and width (one number: square); position embeddings are resampled in 2D.
        patch_size: Resize the patch embedding to this height and width (one number: square).
        in_channels: Adapt the first filters to another number of channels.
        heads: Attention heads, for bare weights of a shape that nobody published.
    """
    from vitreous.convert import convert
    from vitreous.models.architecture import pair

    result = convert(
        source,
        destination,
        to,
        num_classes=num_classes,
        image_size=pair(image_size, "--image-size") if image_size else None,
        patch_size=pair(patch_size, "--patch-size") if patch_size else None,
        in_channels=in_channels,
        heads=heads,
    )
    _written({**vars(result), "path": str(result.path)}, json)


def inspect(
    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CKPT")],
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")] = (),
    *,
    out: Path = Path("inspection"),
    compare: str | None = None,
    class_name: Annotated[str | None, tyro.conf.arg(name="class")] = None,
    head_fusion: Literal["mean", "max", "min"] = "mean",
    discard_ratio: float = 0.0,
    patch: tuple[int, int] | None = None,
    own_aspect: bool = False,
    image_size: tuple[int, ...] | None = None,
    device: str = "cpu",
    json: Json = False,
) -> None:
    """Look inside a model: the paper's figures, as pictures, numbers and a page.

    Args:
        checkpoint: A file, a folder or hf://owner/name[@revision]; its layout is recognised from the weights.
        images: Image files, or folders of them. Without any, the figures that the weights alone give.
        out: Where to write the figures, inspection.json and report.html.
        compare: Another checkpoint, whose layers are compared with these through the images.
        class_name: The class that Grad-CAM and gradient rollout explain; the model's answer by default.
        head_fusion: How rollout makes one map of a layer's heads.
        discard_ratio: The share of each token's weakest links that rollout cuts, 0 to less than 1.
        patch: Row and column of a patch to look from, counted from 0; what the model pools by default.
        own_aspect: Show each image in its own aspect, with as many patches; positions are resampled.
        image_size: Height and width (one number: square) that the model sees; positions are resampled.
        device: Where to compute: cpu, cuda, cuda:1, mps.
    """
    from vitreous.models.architecture import pair
    from vitreous.report import InspectOptions
    from vitreous.report import inspect as run

    document = run(
        checkpoint,
        images,
        out,
        InspectOptions(
            fusion=head_fusion,
            discard=discard_ratio,
            patch=patch,
            class_name=class_name,
            own_aspect=own_aspect,
        ),
        compare=compare,
        image_size=pair(image_size, "--image-size") if image_size else None,
        device=device,
        command=_command(),
    )
    if json:
        console.document(document)
    else:
        for path in sorted(out.glob("*.png")):
            console.note(f"wrote {path}")
        console.table(
            ["wrote", "holds"],
            [
                [
                    str(out / "report.html"),
                    "the figures, with how to read them",
                ],
                [str(out / "inspection.json"), "the numbers that they show"],
            ],
        )


def train(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]")] = "digits",
    *,
    options: TrainConfig = TrainConfig(),  # noqa: B008
) -> None:
    """Train a classifier; options that are not given are chosen from the data, and said with their reasons.

    Args:
        data: A folder of class folders, a CSV or Parquet file, tar shards, .npz, or a name such as cifar10.
    """
    from vitreous.training import train

    _ended(train(data, options))


def finetune(
    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CKPT")],
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    *,
    options: FinetuneConfig = FinetuneConfig(),  # noqa: B008
) -> None:
    """Fit a trained model to another task: all of it, its head, its last blocks or low-rank updates.

    Args:
        checkpoint: A sealed file, a run folder, or weights of any layout.
        data: A folder of class folders, a CSV or Parquet file, tar shards, .npz, or a name such as cifar10;
            or a suite of such data: a .toml file, or vtab.
    """
    from vitreous import training
    from vitreous.evals import suite

    if suite.is_suite(data):
        console.table(*suite.table(training.suite(checkpoint, data, options, after=_ended)))
    else:
        _ended(training.finetune(checkpoint, data, options))


def _ended(result: "Result") -> None:
    """Show what came of a run, and write its report."""
    from vitreous import report

    if result.is_main:
        _show(result)
        console.note(f"report: {report.write_run(result.folder, result.dataset, result.classifier)}")


def _show(result: "Result") -> None:
    """Draw the final table of a run."""
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


def evaluate(
    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CKPT")],
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    options: EvaluateConfig = EvaluateConfig(),  # noqa: B008
    *,
    json: Json = False,
) -> None:
    """Measure a checkpoint: accuracy, per class, confusion, calibration, worst mistakes.

    Args:
        checkpoint: A sealed file, a run folder, or weights of any layout.
        data: A folder, CSV, Parquet, shards, .npz, or a name such as digits.
    """
    from vitreous import evaluate

    document = evaluate.evaluate(checkpoint, data, options)
    if options.out is not None:
        from vitreous import report
        from vitreous.data import open_data

        opened = open_data(data, data_root=options.data_root, seed=options.seed)
        page = report.write_evaluation(Path(options.out), document, opened, _command())
        console.note(f"report: {page}")
    if json:
        console.document(document)
    else:
        console.table(["figure", "value"], [list(row) for row in evaluate.summary(document)])


def probe(
    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CKPT")],
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    options: ProbeConfig = ProbeConfig(),  # noqa: B008
    *,
    json: Json = False,
) -> None:
    """Measure how good frozen features are: nearest neighbours, few-shot least squares, logistic regression.

    Args:
        checkpoint: A sealed file, a run folder, or weights of any layout.
        data: A data set; or a suite of them: a .toml file, or vtab.
    """
    from vitreous import probe
    from vitreous.evals import suite

    several = suite.is_suite(data)
    document = (probe.suite if several else probe.probe)(checkpoint, data, options)
    if json:
        console.document(document)
    else:
        console.table(*(suite.table(document) if several else probe.summary(document)))


def check(
    data: tyro.conf.Positional[str],
    *,
    json: Json = False,
    grid: str | None = None,
    pack: str | None = None,
    data_root: str | None = None,
) -> None:
    """Find unreadable files, duplicates, split leaks, thin classes and odd sizes; nothing is changed.

    Args:
        data: A folder, CSV, Parquet, tar shards, Hugging Face folder, .npz, or a name such as digits.
        grid: Write a picture with some images of each class to this file.
        pack: Write the readable images as WebDataset tar shards into this new folder.
        data_root: Where named data sets are kept.
    """
    from vitreous.data.check import run

    run(data, json=json, grid_file=grid, pack_folder=pack, data_root=data_root)


VERBS: dict[str, Callable[..., Any]] = {
    "models": models,
    "train": train,
    "finetune": finetune,
    "evaluate": evaluate,
    "probe": probe,
    "predict": predict,
    "export": export,
    "serve": serve,
    "convert": convert,
    "check": check,
    "inspect": inspect,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status: 0, 1 with one line on stderr, or 2 for wrong usage."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if arguments == ["--version"]:
        print(f"vitreous {__version__}")  # noqa: T201
        return 0
    try:
        tyro.extras.subcommand_cli_from_dict(
            VERBS,
            prog="vitreous",
            description="The Vision Transformer as software: train it, measure it, look inside it, serve it.",
            args=arguments or ["--help"],
            config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
        )
    except VitreousError as error:
        return _stop(error, debug, str(error))
    except KeyboardInterrupt as error:
        return _stop(error, debug, "interrupted", status=130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone: nothing is left to say
        return 1
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except Exception as error:
        kind = type(error).__name__
        return _stop(
            error, debug, f"unexpected {kind}: {error} (this is a bug; run again with --debug to see where)"
        )
    return 0


def _written(row: dict[str, Any], json: bool) -> None:
    """Show what is known of a file that was written."""
    if json:
        console.document(row)
    else:
        console.table(list(row), [list(row.values())])


def _command() -> str:
    return shlex.join(["vitreous", *sys.argv[1:]])


def _stop(error: BaseException, debug: bool, message: str, status: int = 1) -> int:
    if debug:
        raise error
    console.fail(message)
    return status
