"""Verbs that put a model to use: one function each, its signature the flags, its docstring the help.

Torch and everything that needs it is imported inside the functions, so that `--help` answers at once.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous import api, console
from vitreous.cli import flags
from vitreous.cli.arguments import (
    Checkpoint,
    Data,
    Destination,
    Json,
    Number,
    Options,
    Paths,
    Switch,
    Whole,
    optional,
)
from vitreous.config import (
    ConvertConfig,
    EmbedConfig,
    ExportConfig,
    Inference,
    Layout,
    PredictConfig,
    Runtime,
    SearchConfig,
)
from vitreous.errors import OptionError

if TYPE_CHECKING:
    from vitreous.figures import Figures


def predict(
    checkpoint: Checkpoint,
    paths: Paths,
    *,
    options: Annotated[Options, flags.of(PredictConfig)],
    json: Json = False,
    csv: Switch = False,
    out: Annotated[Path | None, optional("FILE")] = None,
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
        api.with_threshold(load(checkpoint, device=config.device).merging(config.merge), config.abstain),
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
    """Print what is known about a file that was written."""
    row = found.to_dict()
    if json:
        console.document(row)
    else:
        row.pop("lost", None)  # printed as warnings already
        console.table(list(row), [list(row.values())])


def serve(
    checkpoint: Checkpoint,
    *,
    port: Whole = 8000,
    host: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = "127.0.0.1",
    allow_host: Annotated[tuple[str, ...], optional("NAME…")] = (),
    allow_origin: Annotated[tuple[str, ...], optional("ORIGIN…")] = (),
    token_file: Annotated[Path | None, optional("FILE")] = None,
    deadline: Number = 10.0,
    queue: Whole = 256,
    max_batch: Whole = 64,
    max_body_mib: Number = 16.0,
    max_pixels: Whole = 25_000_000,
    examples: Annotated[str | None, optional("DATA")] = None,
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
