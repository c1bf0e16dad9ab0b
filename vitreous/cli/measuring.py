"""Verbs that look and measure: one function each, its signature the flags, its docstring the help.

Torch and everything that needs it is imported inside the functions, so that `--help` answers at once.
"""

from typing import Annotated

import tyro

from vitreous import api, console
from vitreous.cli import flags
from vitreous.cli.arguments import Checkpoint, Data, Json, Options, optional
from vitreous.config import BenchConfig, CleanConfig, EvaluateConfig, InspectConfig, ProbeConfig


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


def check(
    data: Data,
    *,
    json: Json = False,
    grid: Annotated[str | None, optional("FILE")] = None,
    pack: Annotated[str | None, optional("DIR")] = None,
    data_root: Annotated[str | None, optional("DIR")] = None,
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
    rows = [[str(found.folder / "report.html"), "the page: how to read it"]]
    rows += [[str(found.folder / each["file"]), each["title"]] for each in found.to_dict()["figures"]]
    rows += [[str(found.folder / "inspection.json"), "the numbers that the figures show"]]
    console.table(["wrote", "holds"], rows)


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
