"""DeiT's claim in small (arXiv 2012.12877): what a CNN as a teacher brings a ViT, for equal time.

    python benchmarks/distilling.py cifar100.npz [--teacher 20m] [--student 20m] [--out runs/distilling]

A BiT is trained first, on the images enlarged by half; then one ViT alone, one with a distillation token that
learns the teacher's hard labels, one with the teacher's scores in place of labels: the same images, options
and time, in which the teacher's answers are made as well. Runs that have ended are read from `--out`, and one
that was stopped goes on.
"""

import argparse
from pathlib import Path
from typing import Any

from vitreous import console, files, training
from vitreous.config import DistillConfig, TrainConfig
from vitreous.data import open_data
from vitreous.options import from_keywords
from vitreous.training import Result

ALONE = "student alone"
LESSONS = {"hard labels, token": "token", "soft labels": "logits"}


def measure(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Make what runs are missing; return a row for each learner."""
    out, data = Path(given.out), open_data(given.data, seed=given.seed)
    side = int(1.5 * min(data.splits["train"].read(0).size))
    common: dict[str, Any] = {"seed": given.seed, "device": given.device}
    student = {
        "width": given.width,
        "depth": given.depth,
        "heads": given.width // 32,
        "mlp_width": 4 * given.width,
        "class_token": True,
        "pooling": "cls",
    }

    def taught(name: str, match: str | None) -> Result:
        """Train the student, by a teacher or alone."""
        options = {**common, "time_budget": given.student, "out": str(out / (match or "alone"))}
        if match is None:
            config = from_keywords(TrainConfig, {**options, "init": "none"}, "train")
            return training.train(given.data, config, dataset=data, shape=student)
        config = from_keywords(DistillConfig, {**options, "match": match}, "distill")
        return training.distill(str(out / "teacher"), given.data, config, data, shape=student)

    options = {**common, "time_budget": given.teacher, "model": "BiT-R50x1", "image_size": (side,)}
    config = from_keywords(TrainConfig, {**options, "init": "none", "out": str(out / "teacher")}, "train")
    shape = {"layers": (2, 2, 2), "stem_width": 32}
    rows = [row("teacher (BiT)", training.train(given.data, config, dataset=data, shape=shape))]
    for name, match in {ALONE: None, **LESSONS}.items():
        rows.append(row(name, taught(name, match)))
        table(rows)
    return rows


def row(learner: str, result: Result) -> dict[str, Any]:
    """Return the figures of one run."""
    figures = result.figures
    return {
        "learner": learner,
        "test": figures["test"]["accuracy"],
        "val": figures["val"]["accuracy"],
        "images/s": figures["images_per_second"],
        "steps": figures["steps"],
        "seconds": figures["seconds"],
    }


def table(rows: list[dict[str, Any]]) -> None:
    """Show what is there so far: a session that ends early has it then."""
    shown = {"test": "{:.2%}", "val": "{:.2%}", "images/s": "{:.0f}", "seconds": "{:.0f}"}
    console.table(
        list(rows[0]),
        [[shown.get(name, "{}").format(value) for name, value in each.items()] for each in rows],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--teacher", default="20m", help="the teacher's time")
    parser.add_argument("--student", default="20m", help="the time of each student")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--out", default="runs/distilling")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    rows = measure(given)
    files.write_json(Path(given.out) / "rows.json", rows)


if __name__ == "__main__":
    main()
