"""The verbs as Python functions: the options and defaults of the command line, and results to compute with.

Options are the fields of the dataclasses in `vitreous.config`. Torch is imported on the first call.
"""

import errno
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous import console, files
from vitreous.config import (
    BenchConfig,
    CleanConfig,
    ConvertConfig,
    DistillConfig,
    EmbedConfig,
    EvaluateConfig,
    ExportConfig,
    FinetuneConfig,
    InspectConfig,
    Layout,
    PredictConfig,
    PretrainConfig,
    ProbeConfig,
    ReproduceConfig,
    SearchConfig,
    TrainConfig,
)
from vitreous.errors import OptionError
from vitreous.figures import Figures, html_table
from vitreous.options import command, from_keywords, takes

if TYPE_CHECKING:
    from vitreous.data import InMemory
    from vitreous.predict import Classifier, Failure, Picture, Prediction
    from vitreous.report.folder import Folder
    from vitreous.training import Result
    from vitreous.training.caller import Callback, Caller

REPORT_SECONDS = 8.0
"""Seconds of a time budget kept for the report and the end of the process; at most a sixth of the budget."""
command_started: float | None = None
"""When the process began, by `time.monotonic`, if it is a command: a time budget is the user's time."""

Text = str | os.PathLike[str]
"""A path, or the name of a data set or model."""
Data = Any
"""A `Text`; or what a program has in memory: a torch or Hugging Face `Dataset`, pairs of image and label, or
a dictionary of these by split."""


class Run(Figures):
    """The result of a training run: its figures (`run.test.accuracy`), its folder, its best classifier."""

    folder: Path
    is_main: bool
    """Whether this process is the one among several ranks that prints and writes."""

    def __init__(self, result: "Result") -> None:
        super().__init__(result.figures, folder=result.folder)
        self.is_main, self._result = result.is_main, result

    @cached_property
    def classifier(self) -> "Classifier":
        """The best model of the run, on the device that trained it."""
        return self._result.classifier


class Predictions(list["Prediction | Failure"]):
    """A prediction for each image, in order; a file that could not be read has an `error` in its place."""

    def _repr_html_(self) -> str:
        rows = []
        for each in self:
            entry = each.to_dict()
            label = entry["error"] if "error" in entry else entry["label"] or "(abstains)"
            share = "" if "error" in entry else f"{entry['probability']:.2%}"
            rows.append([entry["file"] or "", label, share])
        return html_table(["file", "label", "probability"], rows)


class Matches(list[dict[str, Any]]):
    """What `search` found for each query, in order: `{file, matches}`, or `{file, error}`."""

    folder: Path | None = None
    report: Path | None = None
    """The page with the pictures, where one was written."""

    def _repr_html_(self) -> str:
        from vitreous.features.search import summary

        return html_table(*summary(self))


class Benchmark(Figures):
    """What `bench` found: `rows`, and the `command` and `machine` that they belong to."""

    def _repr_html_(self) -> str:
        from vitreous.bench import table

        columns, rows = table.speeds(self["rows"])
        return html_table(columns, [["" if cell is None else str(cell) for cell in row] for row in rows])


@takes(TrainConfig)
def train(
    data: Data = "digits",
    *,
    on_step: "Callback | None" = None,
    on_evaluation: "Callback | None" = None,
    **options: Any,
) -> Run:
    """Train a classifier on the data, write its run folder and report, and return its figures.

    `on_step` and `on_evaluation` are called with a dictionary of figures as the run goes.
    """
    started = _now()
    from vitreous.training import train as work

    config = from_keywords(TrainConfig, options, "train")
    caller = _caller(config, started, on_step, on_evaluation)
    return _finish(work(_source(data), config, caller=caller))


@takes(FinetuneConfig)
def finetune(
    checkpoint: Text,
    data: Data,
    *,
    on_step: "Callback | None" = None,
    on_evaluation: "Callback | None" = None,
    **options: Any,
) -> Run | Figures:
    """Fit a trained model to other data as `train` does; on a suite of data sets, return a row for each."""
    started = _now()
    from vitreous.evals.suite import is_suite
    from vitreous.training import finetune as work
    from vitreous.training import suite

    config = from_keywords(FinetuneConfig, options, "finetune")
    source, opened = os.fspath(checkpoint), _source(data)
    if isinstance(opened, str) and is_suite(opened):
        return Figures(suite(source, opened, config, after=_write_report))
    caller = _caller(config, started, on_step, on_evaluation)
    return _finish(work(source, opened, config, caller=caller))


@takes(DistillConfig)
def distill(
    teacher: Text,
    data: Data,
    *,
    on_step: "Callback | None" = None,
    on_evaluation: "Callback | None" = None,
    **options: Any,
) -> Run:
    """Teach a student what a trained model knows: its answers, or its features, without labels."""
    started = _now()
    from vitreous.training import distill as work

    config = from_keywords(DistillConfig, options, "distill")
    caller = _caller(config, started, on_step, on_evaluation)
    return _finish(work(os.fspath(teacher), _source(data), config, caller=caller))


@takes(PretrainConfig)
def pretrain(
    data: Data,
    *,
    on_step: "Callback | None" = None,
    on_evaluation: "Callback | None" = None,
    **options: Any,
) -> Run:
    """Teach a model what pictures look like, without labels; labels, if there are any, only measure it."""
    started = _now()
    from vitreous.training import pretrain as work

    config = from_keywords(PretrainConfig, options, "pretrain")
    caller = _caller(config, started, on_step, on_evaluation)
    return _finish(work(_source(data), config, caller=caller))


def _source(data: Data) -> "str | InMemory":
    """Return DATA as the verbs take it: text, or what is in memory."""
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    from vitreous.data import InMemory

    return data if isinstance(data, InMemory) else InMemory(data)


def _now() -> float:
    """Return when the work began: before torch is imported, which takes seconds."""
    return time.monotonic() if command_started is None else command_started


def _caller(
    config: TrainConfig, started: float, on_step: "Callback | None", on_evaluation: "Callback | None"
) -> "Caller":
    """Return what a run needs to know about this process, which writes a report when the run has ended."""
    from vitreous.training import Caller
    from vitreous.training.plan import seconds

    budget = None if config.time_budget is None else seconds(config.time_budget)
    afterwards = REPORT_SECONDS if budget is None else min(REPORT_SECONDS, budget / 6)
    return Caller(on_step, on_evaluation, started, afterwards)


def _finish(result: "Result") -> Run:
    _write_report(result)
    return Run(result)


def is_sweep(figures: Mapping[str, Any]) -> bool:
    """Tell whether figures are those of `--find-lr`, not those of a run."""
    return "suggestion" in figures


def _write_report(result: "Result") -> None:
    """Write the report of a run that has ended, in the one process that writes."""
    if result.is_main:
        from vitreous.report import write_run, write_sweep

        if is_sweep(result.figures):
            console.note(f"report: {write_sweep(result.folder, result.figures)}")
            return
        console.note(f"report: {write_run(result.folder, result.dataset, result.classifier)}")


@takes(EvaluateConfig)
def evaluate(checkpoint: Text, data: Data, **options: Any) -> Figures:
    """Measure a checkpoint: accuracy, top5, loss, ece, per_class, confusion, worst mistakes and more."""
    from vitreous.evaluate import evaluate as work

    config = from_keywords(EvaluateConfig, options, "evaluate")
    source, name = os.fspath(checkpoint), _source(data)
    with report_folder(config.out, "evaluate", *_by_name(name, config.data_root)) as folder:
        document = work(source, name, config)
    if folder is None:
        return Figures(document)
    from vitreous.data import open_data
    from vitreous.report import write_evaluation

    opened = open_data(name, data_root=config.data_root, seed=document["seed"])
    with folder.draft() as draft:
        write_evaluation(draft, document, opened, command("evaluate", (source, str(name)), config))
    console.note(f"report: {folder.path / 'report.html'}")
    return Figures(document, folder=folder.path)


@takes(ProbeConfig)
def probe(checkpoint: Text, data: Data, **options: Any) -> Figures:
    """Measure how good frozen features are, by method; on a suite of data sets, return a row for each."""
    from vitreous.evals.suite import is_suite
    from vitreous.probe import probe as work
    from vitreous.probe import suite

    config = from_keywords(ProbeConfig, options, "probe")
    source, name = os.fspath(checkpoint), _source(data)
    if isinstance(name, str) and is_suite(name):
        return Figures(suite(source, name, config))
    return Figures(work(source, name, config))


@takes(EmbedConfig)
def embed(checkpoint: Text, data: Data, **options: Any) -> Figures:
    """Write the features of every picture, with its file, label and split, into an `.npz` file."""
    from vitreous.features import embed as work

    config = from_keywords(EmbedConfig, options, "embed")
    files.prepare_folder(Path(config.out).parent)
    if Path(config.out).is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), config.out)
    return Figures(work(os.fspath(checkpoint), _source(data), config))


@takes(SearchConfig)
def search(index: Text, queries: "Picture | Iterable[Picture]", **options: Any) -> Matches:
    """Find the pictures of an index (of `embed`) that are nearest to others, by the model that made it."""
    from vitreous.features import search as work
    from vitreous.predict.inputs import items

    config = from_keywords(SearchConfig, options, "search")
    with report_folder(config.out, "search") as folder:
        given, path = list(items(queries)), os.fspath(index)
        bank, document = work(path, given, config)
    found = Matches(document)
    if folder is None:
        return found
    from vitreous.report import write_search

    words = (path, *(item.file for item in given if item.file))
    with folder.draft() as draft:
        page = write_search(draft, bank, document, given, command("search", words, config))
    found.folder, found.report = folder.path, folder.path / page.name
    console.note(f"report: {found.report}")
    return found


@takes(CleanConfig)
def clean(checkpoint: Text, data: Data, **options: Any) -> Figures:
    """Find copies, pictures that don't belong and labels that are likely wrong; nothing is changed."""
    from vitreous.features import clean as work
    from vitreous.features.gather import open_any

    config = from_keywords(CleanConfig, options, "clean")
    source, name = os.fspath(checkpoint), _source(data)
    with report_folder(config.out, "clean", *_by_name(name, config.data_root)) as folder:
        dataset = open_any(name, config.data_root)
        document = work(source, name, dataset, config)
    if folder is None:
        return Figures(document)
    from vitreous.report import write_clean

    with folder.draft() as draft:
        write_clean(draft, document, dataset, config.top, command("clean", (source, str(name)), config))
    console.note(f"report: {folder.path / 'report.html'}")
    return Figures(document, folder=folder.path)


@takes(PredictConfig)
def predict(
    checkpoint: "Text | Classifier", images: "Picture | Iterable[Picture]", **options: Any
) -> Predictions:
    """Label images: paths, folders, patterns, bytes, Pillow images, arrays or tensors, in their order."""
    config = from_keywords(PredictConfig, options, "predict")
    if config.top < 1:
        raise OptionError(f"top={config.top} is out of range: use 1 or more")
    classifier = with_threshold(_load(checkpoint, config.device).merging(config.merge), config.abstain)
    from vitreous.predict import inputs, stream
    from vitreous.predict.choice import equip

    items = list(inputs.items(images))
    stream.require_counts(config.batch_size, config.workers)
    batch = config.batch_size or stream.batch_size(classifier)
    if (config.runtime, config.precision) != ("torch", "float32"):  # else as the classifier was loaded
        classifier = replace(classifier, engine=None)
        classifier = equip(classifier, config.runtime, config.precision, images=len(items), batch=batch)
    return Predictions(
        stream.predict_all(classifier, items, top=config.top, batch=batch, workers=config.workers)
    )


def with_threshold(classifier: "Classifier", abstain: float | None) -> "Classifier":
    """Return the classifier with another probability below which it gives no label; None: its own."""
    if abstain is None:
        return classifier
    return replace(classifier, about={**classifier.about, "abstain": abstain})


@takes(InspectConfig)
def inspect(checkpoint: Text, images: Text | Iterable[Text] = (), **options: Any) -> Figures:
    """Look inside a model: write the paper's figures and a page about them, and return their numbers."""
    from vitreous.models.architecture import pair
    from vitreous.report import InspectOptions
    from vitreous.report import inspect as work

    config = from_keywords(InspectConfig, options, "inspect")
    source, given = os.fspath(checkpoint), _paths(images)
    shown = InspectOptions(
        fusion=config.head_fusion,
        discard=config.discard_ratio,
        patch=config.patch,
        class_name=config.class_name,
        own_aspect=config.own_aspect,
    )
    with report_folder(config.out, "inspect", *given) as folder:
        assert folder is not None  # it has a default
        with folder.draft() as draft:
            document = work(
                source,
                given,
                draft,
                shown,
                compare=config.compare,
                image_size=pair(config.image_size, "--image-size") if config.image_size else None,
                device=config.device,
                command=command("inspect", (source, *given), config),
            )
    return Figures(document, folder=folder.path)


@takes(ExportConfig)
def export(checkpoint: "Text | Classifier", destination: Text, **options: Any) -> Figures:
    """Export to ONNX, torch.export or OpenVINO, and prove it with images from file to label."""
    from vitreous.export import export as work
    from vitreous.predict.inputs import find

    config = from_keywords(ExportConfig, options, "export")
    result = work(
        _load(checkpoint, "cpu"),
        Path(destination),
        precision=config.precision,
        pixels=config.pixels,
        images=[Path(item.file) for item in find(config.images)],
        tolerance=config.tolerance,
    )
    return Figures(vars(result))


@takes(ConvertConfig)
def convert(source: Text, destination: Text, to: Layout, **options: Any) -> Figures:
    """Convert weights to another layout, and prove it: the target's own library must give the same logits."""
    from vitreous.convert import convert as work
    from vitreous.models.architecture import pair

    config = from_keywords(ConvertConfig, options, "convert")
    sizes = {
        name: pair(value, f"--{name.replace('_', '-')}") if value else None
        for name, value in (("image_size", config.image_size), ("patch_size", config.patch_size))
    }
    return Figures(vars(work(os.fspath(source), Path(destination), to, **{**vars(config), **sizes})))


@takes(BenchConfig)
def bench(**options: Any) -> Benchmark:
    """Time training, prediction, loading and start-up here, beside other libraries: `rows`, and `machine`."""
    from vitreous.bench import bench as work
    from vitreous.bench import cases, table

    config = from_keywords(BenchConfig, options, "bench")
    asked = cases.read(config)  # what can't be timed is refused before a folder is made
    with report_folder(config.out, "bench") as folder:
        document = {"command": command("bench", (), config), **work(asked)}
    if folder is None:
        return Benchmark(document)
    with folder.draft() as draft:
        written = table.write(draft, document)
    console.note(f"wrote {' and '.join(str(folder.path / each.name) for each in written)}")
    return Benchmark(document, folder=folder.path)


def check(data: Data, *, data_root: str | None = None) -> Figures:
    """Find unreadable files, duplicates, split leaks, thin classes and odd sizes; nothing is changed."""
    from vitreous.data import open_data
    from vitreous.data.survey import survey

    return Figures(survey(open_data(_source(data), data_root=data_root, carve=False)).document())


@takes(ReproduceConfig)
def reproduce(name: str | None = None, **options: Any) -> Figures:
    """Repeat an experiment of the paper at the scale at hand, or go on with it; without a name, list them."""
    from vitreous.reproduce import listing
    from vitreous.reproduce import reproduce as work

    config = from_keywords(ReproduceConfig, options, "reproduce")
    if name is None:
        return Figures({row["name"]: row for row in listing(config)})
    folder, found = work(name, config)
    return Figures(found, folder=folder)


@contextmanager
def report_folder(path: Text | None, verb: str, *data: Any) -> Iterator["Folder | None"]:
    """Make a folder for a verb's results before the work; an error that leaves it empty takes it away again.

    One whose files would be lost is refused, and one in the data. None: nothing will be written.
    """
    if path is None:
        yield None
        return
    from vitreous.report.folder import Folder

    new = not Path(path).exists()
    folder = Folder(Path(path), verb, [Path(each) for each in data if isinstance(each, str | os.PathLike)])
    try:
        yield folder
    except BaseException:
        if new:
            with suppress(OSError):  # what it holds stays
                folder.path.rmdir()
        raise


def _by_name(data: Any, data_root: str | None) -> list[Any]:
    """Return where DATA may lie: a name is looked for below the root of the data sets, too."""
    return [data, Path(data_root) / data] if data_root and isinstance(data, str) else [data]


def _load(checkpoint: "Text | Classifier", device: str) -> "Classifier":
    from vitreous.predict import load

    return (
        load(os.fspath(checkpoint), device=device)
        if isinstance(checkpoint, str | os.PathLike)
        else checkpoint
    )


def _paths(given: Text | Iterable[Text]) -> list[str]:
    return [os.fspath(each) for each in ([given] if isinstance(given, str | os.PathLike) else given)]
