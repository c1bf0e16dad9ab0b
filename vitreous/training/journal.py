"""What a run records as it goes: `metrics.jsonl`, and the same for TensorBoard, W&B, MLflow. No torch."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from vitreous import console, files
from vitreous.errors import MissingDependencyError

Record = Mapping[str, Any]


class Journal:
    """Appends records, each with its `step`; a run that goes on drops those after its checkpoint.

    It drops the final `test` too, which comes after the last step.
    """

    def __init__(
        self,
        folder: Path,
        *,
        step: int = 0,
        evaluated: int | None = None,
        tensorboard: bool = False,
        wandb: bool = False,
        mlflow: bool = False,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self._sinks: list[Any] = []
        if tensorboard:
            self._sinks.append(_TensorBoard(folder, step))
        if wandb:
            self._sinks.append(_Wandb(folder, about or {}))
        if mlflow:
            self._sinks.append(_Mlflow(folder, about or {}))
        self.path = folder / "metrics.jsonl"
        self._file: TextIO | None = None
        self.rewind(step, evaluated)

    def rewind(self, step: int, evaluated: int | None = None) -> None:
        """Drop the records after the step from which the run goes on, and evaluations after the one that it
        knows of (None: of that step): they will be made again."""
        if self._file is not None:
            self._file.close()
        records, damaged = _parse(self.path)
        if damaged:
            kept_as = self.path.with_suffix(".damaged")
            files.write_bytes(kept_as, self.path.read_bytes())
            console.warn(
                f"{self.path}: {damaged} damaged lines are left out; the file is kept as {kept_as.name}"
            )
        last = {"val": step if evaluated is None else evaluated, "test": -1}
        kept = [row for row in records if row["step"] <= last.get(row.get("split", "train"), step)]
        files.write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))
        self._file = self.path.open("a", buffering=1)  # line by line: another program may be reading

    def write(self, record: Record) -> None:
        """Append one record; numbers in it go to the other sinks as `split/name`."""
        assert self._file is not None
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        prefix = f"{record['split']}/" if "split" in record else ""
        figures = {
            prefix + name: float(value)
            for name, value in record.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and name != "step"
        }
        for sink in self._sinks:
            sink.write(figures, record["step"])

    def close(self) -> None:
        """Flush and close everything."""
        with ExitStack() as closing:  # all of them, even if the disk is full for one
            for each in (self._file, *self._sinks):
                if each is not None:
                    closing.callback(each.close)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a `metrics.jsonl`, without a last line that a kill cut off, or damaged ones."""
    return _parse(path)[0]


def _parse(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the records, and how many lines before the last are none."""
    if not path.exists():
        return [], 0
    records = [_record(line) for line in path.read_text(errors="replace").splitlines()]
    return [record for record in records if record is not None], records[:-1].count(None)


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


class _TensorBoard:
    def __init__(self, folder: Path, step: int) -> None:
        _need("tensorboard", "tensorboard")
        writer = import_module("torch.utils.tensorboard").SummaryWriter
        self._writer = writer(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def write(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        wandb = _need("wandb", "wandb")
        # The run's id is the folder's name, so that a run that goes on is the same run there.
        self._run = wandb.init(
            project="vitreous", dir=str(folder), id=folder.name, resume="allow", config=dict(about)
        )

    def write(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._mlflow = _need("mlflow", "mlflow")
        self._mlflow.set_experiment("vitreous")
        marker = folder / "mlflow-run"
        known = marker.read_text().strip() if marker.exists() else None
        run = self._mlflow.start_run(run_id=known, run_name=None if known else folder.name)
        if known is None:
            marker.write_text(run.info.run_id + "\n")
            self._mlflow.log_dict(dict(about), "config.json")

    def write(self, figures: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(figures), step=step)

    def close(self) -> None:
        self._mlflow.end_run()


def _need(package: str, extra: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise MissingDependencyError(
            f"--{package} needs the package {package}: pip install 'vitreous[{extra}]'"
        ) from None
