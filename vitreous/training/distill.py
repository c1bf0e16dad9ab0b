"""`vitreous distill`: a student learns from a teacher, through the same loop as training."""

from collections.abc import Mapping
from typing import Any

from vitreous import checkpoint
from vitreous.config import DistillConfig
from vitreous.data import Dataset, InMemory, open_data
from vitreous.errors import OptionError
from vitreous.objectives.distill import class_columns
from vitreous.options import refuse_unused
from vitreous.predict import Classifier, load
from vitreous.training import setup
from vitreous.training.caller import Caller
from vitreous.training.plan import LABELLED, Plan, Task
from vitreous.training.results import Result
from vitreous.training.run import train


def distill(
    teacher: str,
    data: str | InMemory,
    options: DistillConfig,
    dataset: Dataset | None = None,
    *,
    shape: Mapping[str, Any] | None = None,
    caller: Caller | None = None,
) -> Result:
    """Teach a student what the model at `teacher` knows, or go on with a run that was stopped.

    `shape`: fields of the student's configuration, beyond the options.
    """
    caller = caller or Caller()
    setup.check_options(options)
    _check(options)
    if dataset is None:
        labelled = options.match != "features"
        seed = setup.seed(options)
        dataset = open_data(data, data_root=options.data_root, seed=seed, labelled=labelled)
    classifier = load(teacher)
    if options.match != "features":
        if dataset.multilabel:
            raise OptionError(
                "the images have several labels, a teacher answers with one class: use --match features"
            )
        class_columns(classifier.labels, dataset.labels)  # before anything is written
    task = Task(
        objective="distill",
        settings=_settings(teacher, classifier, options),
        shape=_shape(options),
        asked=dict(shape or {}),
        labels=options.match != "features",
        verb="distill",
        arguments=(teacher,),
        refuse=_refuse,
    )
    return train(data, options, task=task, dataset=dataset, caller=caller)


def _check(options: DistillConfig) -> None:
    share = options.teacher_share
    if share is not None and not 0.0 < share <= 1.0:
        raise OptionError(f"--teacher-share {share} is out of range: more than 0, at most 1")
    if not 0.0 < options.temperature < float("inf"):
        raise OptionError(f"--temperature {options.temperature} is out of range: give more than 0, such as 2")
    _refuse_unused(options)


def _refuse(plan: Plan) -> None:
    """Refuse what no teacher can follow, from whichever option or recipe it came."""
    if plan.preprocessing.resize == "pad":
        raise OptionError("--fit pad hides patches from the student alone: a teacher needs cover or stretch")


def _refuse_unused(options: DistillConfig) -> None:
    """Refuse options that the kind of lesson has no use for."""
    by = f"with --match {options.match}"
    if options.match == "features":
        refuse_unused(options, ("targets", "temperature", "teacher_share"), by)
    else:
        refuse_unused(options, ("distance",), by)
        if _hard(options):
            refuse_unused(options, ("temperature",), "on hard targets, the teacher's best class")
    if options.match == "features" or _share(options) == 1.0:
        unlabelled = f"{by}, where labels have no part in the loss"
        refuse_unused(options, LABELLED, unlabelled)
        if options.balance == "loss":
            raise OptionError(f"--balance loss has no effect {unlabelled}: leave it out")
    if options.shard and options.match != "logits":  # parts of the student are called by themselves
        raise OptionError(f"--shard can't split a student {by}: leave it out, or --match logits")


def _hard(options: DistillConfig) -> bool:
    return options.targets == "hard" if options.targets else options.match == "token"


def _share(options: DistillConfig) -> float:
    return options.teacher_share or (0.5 if options.match == "token" else 1.0)


def _settings(teacher: str, classifier: Classifier, options: DistillConfig) -> dict[str, Any]:
    """Return the task's settings: with a token DeiT's (hard targets, half of the loss), else a patient
    teacher's (its scores alone)."""
    found: dict[str, Any] = {
        "teacher": teacher,
        "teacher_checksum": checkpoint.fingerprint(classifier.model.state_dict()),
        "match": options.match,
    }
    if options.match == "features":
        return {**found, "distance": options.distance}
    how = {"hard": _hard(options), "temperature": options.temperature, "share": _share(options)}
    return {**found, **how}


def _shape(options: DistillConfig) -> dict[str, Any]:
    """Return what the student must have: a distillation token, or no classes."""
    if options.match == "token":
        return {"distilled": True, "class_token": True, "pooling": "cls"}
    return {"num_classes": 0, "patch_drop": 0.0} if options.match == "features" else {}
