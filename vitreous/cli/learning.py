"""Verbs that train: one function each, its signature the flags, its docstring the help. Parse, call, print.

Torch and everything that needs it is imported inside the functions, so that `--help` answers at once.
"""

from typing import Annotated

import tyro

from vitreous import api, console
from vitreous.cli import flags
from vitreous.cli.arguments import Checkpoint, Data, Json, Options
from vitreous.config import DistillConfig, FinetuneConfig, PretrainConfig, ReproduceConfig, TrainConfig

SHOWN = {"mean_average_precision": ".2%", "accuracy": ".2%", "top5": ".2%", "knn": ".2%", "loss": ".4f"}
SHOWN |= {"effective_rank": ".1f", "mean_cosine": ".3f"}
"""The figures of a run's final table, and how they are written."""


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

    Fine-tune or probe the result. Labels, if there are any, only measure it.

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
        name: The experiment; the same command again goes on where it stopped.
    """
    found = api.reproduce(name, **options)
    if json:
        console.document(found.to_dict())
    elif name is None:
        rows = [
            [row["name"], f"{row['claim']} ({row['source']}; {row['cost']})", row["result"]]
            for row in found.to_dict().values()
        ]
        console.table(["name", "claim", "result"], rows, wrap=True)
    else:
        from vitreous.reproduce import table

        console.table(*table(found.to_dict()))
        console.result(f"{found.sentence}.")
        console.note(f"table, plot and runs: {found.folder}")
