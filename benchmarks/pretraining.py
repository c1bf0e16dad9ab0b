"""What pre-training without labels brings, for equal time in all: fine-tuned, linear and by neighbours.

    python benchmarks/pretraining.py cifar100.npz [--pretrain 2m] [--finetune 2m] [--out runs/pretraining]

One model from scratch for the time of the fine-tuning, one for the time of both stages together; and for
each objective one that was pre-trained on the same pictures and then fine-tuned, all by the plan of the
first. Runs that have ended are read from `--out`, and one that was stopped goes on.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import vitreous
from vitreous import console, files
from vitreous.training.plan import seconds

OBJECTIVES = ("masked", "mae", "dino")
SCRATCH, LONGER = "scratch", "scratch, the time of both stages"


def minutes(value: float) -> str:
    """Return seconds as `--time-budget` takes them."""
    return f"{value:g}s"


def measure(data: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Make what runs are missing; return a row for each start."""
    out, before, after = Path(given.out), seconds(given.pretrain), seconds(given.finetune)
    common: dict[str, Any] = {"seed": given.seed, "device": given.device}
    shape = {} if given.patch_drop is None else {"patch_drop": given.patch_drop}
    scratch = out / "scratch"
    rows = []
    for name, folder, time in ((SCRATCH, scratch, after), (LONGER, out / "longer", before + after)):
        recipe = {} if folder == scratch else {"recipe": scratch}
        options = {**common, **recipe, "init": "none", "time_budget": minutes(time)}
        run = vitreous.train(data, out=folder, **options, **(shape if folder == scratch else {}))
        rows.append(row(name, run, time, probed(folder, data, given)))
        table(rows)
    for objective in given.objectives.split(","):
        source = out / f"pre-{objective}"
        pretrained = vitreous.pretrain(
            data, objective=objective, out=source, time_budget=minutes(before), **model_of(scratch), **common
        )
        found = probed(source, data, given)
        options = {**common, **shape, "recipe": scratch, "tune": "full", "fit_head": "no"}
        run = vitreous.finetune(str(source), data, out=out / objective, time_budget=minutes(after), **options)
        rows.append(row(objective, run, before + after, found, pretrained))
        table(rows)
    return rows


def model_of(run: Path) -> dict[str, Any]:
    """Return the options by which pre-training makes a model of the same size on the same images."""
    shape = json.loads((run / "config.json").read_text())["plan"]["architecture"]
    return {"image_size": shape["image_size"], "patch_size": shape["patch_size"]}


def probed(run: Path, data: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return how good the frozen features of a run's best model are, from the run's folder where known."""
    path = run / "probe.json"
    if not path.exists():
        found = {
            method: vitreous.probe(str(run), data, method=method, device=given.device, precision="auto")
            for method in ("knn", "linear")
        }
        files.write_json(path, {name: each.to_dict()[name]["accuracy"] for name, each in found.items()})
    return json.loads(path.read_text())


def row(
    start: str, run: vitreous.Run, time: float, features: dict[str, Any], before: vitreous.Run | None = None
) -> dict[str, Any]:
    """Return the figures of one start."""
    return {
        "start": start,
        "seconds": time,
        "fine-tuned": run.test.accuracy,
        **features,
        "steps before": None if before is None else before.steps,
        "steps": run.steps,
    }


def table(rows: list[dict[str, Any]]) -> None:
    """Show what is there so far: a session that ends early has it then."""
    share = ("fine-tuned", "knn", "linear")
    console.table(
        list(rows[0]),
        [
            [
                "" if value is None else f"{value:.2%}" if name in share else str(value)
                for name, value in each.items()
            ]
            for each in rows
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--pretrain", default="2m")
    parser.add_argument("--finetune", default="2m")
    parser.add_argument("--objectives", default=",".join(OBJECTIVES))
    parser.add_argument("--patch-drop", type=float, help="in supervised training")
    parser.add_argument("--out", default="runs/pretraining")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    rows = measure(given.data, given)
    files.write_json(Path(given.out) / "rows.json", rows)


if __name__ == "__main__":
    main()
