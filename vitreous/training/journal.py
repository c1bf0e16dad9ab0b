"""What a run writes down as it goes: `metrics.jsonl`, and the same for TensorBoard, W&B, MLflow. No torch."""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from vitreous import files
from vitreous.errors import MissingDependencyError

Record = Mapping[str, Any]


class Journal:
    """Appends records, each with its `step`; a run that goes on forgets what came after its checkpoint.

    That is also the final `test`: a run that goes on has not come to it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        step: int = 0,
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
        self.rewind(step)

    def rewind(self, step: int) -> None:
        """Forget the records after a step that the run goes on from."""
        if self._file is not None:
            self._file.close()
        kept = [
            record for record in read(self.path) if record["step"] <= step and record.get("split") != "test"
        ]
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
        """Flush and let go of everything."""
        if self._file is not None:
            self._file.close()
        for sink in self._sinks:
            sink.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a `metrics.jsonl`; a last line that was cut by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    records = []
    for number, line in enumerate(lines):
        try:
            records.append(json.loads(line))
        except ValueError:
            if line and number < len(lines) - 1 and lines[number + 1]:
                raise  # in the middle: not ours
    return records


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
        # The identity is the folder's name, so that a run that goes on is the same run there.
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
