"""`vitreous finetune`: a trained model on another task, through the same loop as training.

The paper's procedure (section 3.2): the head is removed for a D x K layer of zeros, everything else is kept,
often at a higher resolution with positions interpolated in 2D.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous import console, files, parallel
from vitreous.config import FinetuneConfig
from vitreous.data import Dataset, InMemory, limit_training, open_data
from vitreous.errors import OptionError
from vitreous.evals import suite as suites
from vitreous.models import adapt
from vitreous.models.architecture import pair
from vitreous.predict import load
from vitreous.training import setup, tuning
from vitreous.training.caller import Caller
from vitreous.training.facts import Pretrained
from vitreous.training.results import Result
from vitreous.training.run import train
from vitreous.training.setup import Start


def finetune(
    source: str,
    data: str | InMemory,
    options: FinetuneConfig,
    dataset: Dataset | None = None,
    *,
    by_train: bool = False,
    caller: Caller | None = None,
) -> Result:
    """Fit the model at `source` to the data, or go on with a run that was stopped.

    `by_train`: for `vitreous train`, where the time decides what learns, and at which image size.
    """
    caller = caller or Caller()
    setup.check_options(options)
    if options.tune is not None:
        tuning.parse(options.tune)  # before anything is read or written
    if options.keep_head and options.fit_head == "yes":
        raise OptionError(
            "--fit-head yes makes a new head and --keep-head keeps the old one: give one of them"
        )
    if options.shard and options.fit_head == "yes":
        raise OptionError("--fit-head yes needs the whole model on each rank: leave --shard out")
    if dataset is None:
        dataset = open_data(data, data_root=options.data_root, seed=setup.seed(options))
        if options.train_limit is not None:
            dataset = limit_training(dataset, options.train_limit, setup.seed(options))
    size = pair(options.image_size, "--image-size") if options.image_size else None
    patch = pair(options.patch_size, "--patch-size") if options.patch_size else None
    classifier = load(source, image_size=size, patch_size=patch, heads=options.heads)
    tuning.require(classifier.model.config, options.tune or "full")
    known = classifier.labels if options.keep_head else None
    changes = adapt.set_classes(classifier.model, len(dataset.labels), known, dataset.labels)
    start = Start(
        source,
        Pretrained(
            architecture=classifier.model.config,
            preprocessing=classifier.preprocess.preprocessing,
            source=source,
            tune=options.tune or "full",
            fit_head=options.fit_head == "yes",
        ),
        dict(classifier.model.state_dict()),
        by_time=options.tune is None and (by_train or options.time_budget is not None),
        by_train=by_train,
    )
    if parallel.is_main():
        for line in changes:
            console.note(f"  {line}")
    return train(data, options, dataset=dataset, start=start, caller=caller)


def suite(source: str, data: str, options: FinetuneConfig, after: Callable[[Result], None]) -> dict[str, Any]:
    """Fine-tune on every data set of a suite, each in a run folder of its own; return rows, and group means.

    The same command again goes on with the first run that has not ended. `after` is called with each result.
    """
    if options.find_lr:
        raise OptionError("--find-lr is for one data set: give one of the suite's")
    tasks = suites.read(data)
    folder = Path(options.out or Path("runs") / Path(data).stem)
    limit = options.train_limit or suites.IMAGES

    def measure(task: suites.Task) -> dict[str, float]:
        dataset = suites.open_task(task, limit, options.data_root, setup.seed(options))
        console.note(f"{task.name}: {task.data}")
        own = replace(options, out=str(folder / task.name), train_limit=limit)
        result = finetune(source, task.data, own, dataset)
        after(result)
        metric = task.metric or ("mean_average_precision" if dataset.multilabel else "accuracy")
        return {metric: result.figures["test"][metric]}

    found = {**suites.run(tasks, measure), "train_images": limit}
    files.write_json(folder / "suite.json", found)
    return found
