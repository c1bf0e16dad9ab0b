"""The command line: one function a verb, its signature the flags, its docstring the help. No work here.

Torch and everything that needs it is imported inside the verbs, so that `--help` answers at once.
"""

import shlex
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
        command=shlex.join(["vitreous", *sys.argv[1:]]),
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
                    f"the figures of {document['count']} images, with how to read them",
                ],
                [str(out / "inspection.json"), "the numbers that they show"],
            ],
        )


VERBS: dict[str, Callable[..., Any]] = {
    "models": models,
    "convert": convert,
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


def _stop(error: BaseException, debug: bool, message: str, status: int = 1) -> int:
    if debug:
        raise error
    console.fail(message)
    return status
