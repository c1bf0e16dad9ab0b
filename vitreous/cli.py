"""The command line: one function a verb, its signature the flags, its docstring the help. No work here.

Torch and everything that needs it is imported inside the verbs, so that `--help` answers at once.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vitreous import __version__, console
from vitreous.errors import VitreousError

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
    row = {**vars(result), "path": str(result.path)}
    if json:
        console.document(row)
    else:
        console.table(list(row), [list(row.values())])


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
    row = {**vars(result), "path": str(result.path)}
    if json:
        console.document(row)
    else:
        console.table(list(row), [list(row.values())])


VERBS: dict[str, Callable[..., Any]] = {
    "models": models,
    "predict": predict,
    "export": export,
    "serve": serve,
    "convert": convert,
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


def _stop(error: BaseException, debug: bool, message: str, status: int = 1) -> int:
    if debug:
        raise error
    console.fail(message)
    return status
