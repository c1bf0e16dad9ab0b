"""What a finished run is told: what is wrong with it, and options that it does not have yet."""

from dataclasses import replace
from typing import Any

import pytest

from tests.training.test_defaults import CIFAR, DIGITS, PHOTOS
from vitreous.config import DistillConfig, FinetuneConfig, TrainConfig
from vitreous.training.advice import advise
from vitreous.training.defaults import choose

PLAN = choose(TrainConfig(), PHOTOS)


def results(train: float, test: float, **others: Any) -> dict[str, Any]:
    return {"train": {"accuracy": train}, "test": {"accuracy": test}, **others}


@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        (0.99, 0.98, []),
        (0.85, 0.76, []),
        (0.99, 0.88, ["overfitting (99.0% of training images, 88.0% of test): try --augment strong"]),
        (0.55, 0.5, ["underfitting (55.0% of training images, 50.0% of test): try --epochs 33"]),
        (0.55, 0.3, ["overfitting"]),
        (0.34, 0.2, ["underfitting (34.0% of training images, 20.0% of test): try --epochs 33"]),
    ],
)
def test_training_images_beside_others(train: float, test: float, said: list[str]) -> None:
    found = advise(results(train, test), {}, PLAN, "accuracy")
    assert len(found) == len(said) and all(
        line.startswith(start) for line, start in zip(found, said, strict=True)
    )


def test_the_options_are_others_than_the_runs_own() -> None:
    plan = choose(TrainConfig(time_budget="10m", drop_path=0.2), CIFAR)
    assert (
        plan.augment.mixup and "try a smaller --model," in advise(results(0.99, 0.7), {}, plan, "accuracy")[0]
    )
    assert (
        "try --time-budget 30m, or --mixup 0 --cutmix 0" in advise(results(0.3, 0.3), {}, plan, "accuracy")[0]
    )
    plan = choose(TrainConfig(time_budget="30s", mixup=0.0), DIGITS)
    assert "try --time-budget 90s, or a larger --model" in advise(results(0.3, 0.3), {}, plan, "accuracy")[0]
    for tune, other in (("head", "--tune lora"), ("last:2", "--tune full")):
        tuned = replace(plan, tune=tune, init="tiny")
        found = advise(results(0.3, 0.3), {}, tuned, "accuracy", options=FinetuneConfig())
        assert other in found[0]
        assert "--drop-path" not in advise(results(0.9, 0.3), {}, replace(plan, tune=tune), "accuracy")[0]


def test_only_options_are_named_that_the_verb_takes_and_the_run_lacks() -> None:
    """What `distill` and `train` refuse, or what was given already, is no advice."""
    hard, easy = results(0.99, 0.5), results(0.3, 0.3)
    student, tuned = choose(TrainConfig(), PHOTOS), replace(PLAN, init="tiny", tune="lora:8")
    (line,) = advise(hard, {}, student, "accuracy", options=DistillConfig())
    assert line.endswith("try --augment strong --drop-path 0.1, more images")
    assert "(--init)" in advise(hard, {}, student, "accuracy")[0]
    augmented = replace(tuned, tune="full", augment=replace(PLAN.augment, mixup=0.8))
    augmented = replace(augmented, architecture=replace(PLAN.architecture, drop_path=0.2))
    for plan, options, told in (
        (augmented, FinetuneConfig(), "try --tune lora, more images"),
        (augmented, TrainConfig(), "try more images"),
        (replace(augmented, tune="lora:8"), FinetuneConfig(), "try more images"),
        (tuned, FinetuneConfig(augment="strong"), "try more images"),
        (tuned, FinetuneConfig(), "try --augment strong, more images"),
    ):
        assert advise(hard, {}, plan, "accuracy", options=options)[0].endswith(f"of test): {told}")
    tuned = replace(tuned, augment=replace(PLAN.augment, mixup=0.0, cutmix=0.0))
    for options, told in (
        (TrainConfig(), "a larger model to start from (--init)"),
        (FinetuneConfig(), "--tune full"),
    ):
        assert advise(easy, {}, tuned, "accuracy", options=options)[0].endswith(f"or {told}")
    whole = replace(tuned, tune="full")
    assert advise(easy, {}, whole, "accuracy", options=FinetuneConfig())[0].endswith("model to start from")


def test_classes_that_are_never_recognised() -> None:
    rows = [{"label": f"c{n}", "count": 5, "recall": float(n > 2)} for n in range(10)]
    rows.append({"label": "absent", "count": 0, "recall": 0.0})
    line = advise(results(0.9, 0.9), {"per_class": rows}, PLAN, "accuracy")[0]
    assert line.startswith("3 of 10 classes are never recognised (c0, c1, c2): try --epochs 33, or --balance")
    balanced = advise(results(0.9, 0.9), {"per_class": rows}, replace(PLAN, balance="loss"), "accuracy")[0]
    assert "--balance" not in balanced
    assert not advise(results(0.9, 0.9), {"per_class": rows[2:]}, PLAN, "accuracy")


def test_time_that_goes_into_waiting() -> None:
    waited = results(0.9, 0.9, bottleneck="loader", waited_for_data=0.71)
    assert advise(waited, {}, PLAN, "accuracy")[0].startswith("71% of the steps' time was spent waiting")
    assert not advise(results(0.9, 0.9, bottleneck="model", waited_for_data=0.1), {}, PLAN, "accuracy")


def test_a_dozen_images_are_too_few_to_tell() -> None:
    """Two of twelve are wrong: within two standard errors of none at all."""
    for count, told in ((12, False), (200, True)):
        found = {"train": {"accuracy": 0.96}, "test": {"accuracy": 10 / 12, "count": count}}
        assert bool(advise(found, {}, PLAN, "accuracy")) == told


def test_a_run_that_was_short_is_told_only_that() -> None:
    """What was seen once or twice, and is not recognised yet, is not known by heart."""
    plan = choose(TrainConfig(epochs=2), PHOTOS)
    (line,) = advise(results(0.55, 0.3), {}, plan, "accuracy", passes=2.0)
    assert line == "underfitting (55.0% of training images, 30.0% of test, after 2 epochs): try --epochs 6"
    (line,) = advise(results(0.55, 0.5), {}, replace(plan, epochs=1), "accuracy", passes=1.0)
    assert line.endswith("50.0% of test, after one epoch): try --epochs 3")
    budget = replace(plan, epochs=None, time_budget=60.0)
    assert (
        "after 0.4 epochs): try --time-budget 3m" in advise(results(0.5, 0.3), {}, budget, "accuracy", 0.4)[0]
    )
    # Images that are recognised were learned, however short the run was; so they were by a head that was
    # fitted first, and by a longer run
    assert "overfitting" in advise(results(0.95, 0.6), {}, plan, "accuracy", passes=2.0)[0]
    fitted = replace(plan, fit_head=True, init="tiny")
    assert "overfitting" in advise(results(0.7, 0.4), {}, fitted, "accuracy", passes=2.0)[0]
    assert "overfitting" in advise(results(0.55, 0.3), {}, plan, "accuracy", passes=3.0)[0]


def test_few_training_images_are_too_few_to_tell_too() -> None:
    for count, told in ((12, False), (500, True)):
        found = {"train": {"accuracy": 0.8, "count": count}, "test": {"accuracy": 0.6, "count": 400}}
        assert bool(advise(found, {}, PLAN, "accuracy")) == told


def test_several_labels_and_missing_figures() -> None:
    scores = {"train": {"mean_average_precision": 0.9}, "val": {"mean_average_precision": 0.6}}
    line = advise(scores, {}, PLAN, "mean_average_precision")[0]
    assert "overfitting (mean average precision 90.0% on training images, 60.0% on val)" in line
    assert not advise({"train": {"loss": 0.3}, "val": {"loss": 0.1}}, {}, PLAN, "loss")
    assert not advise({"train": {"accuracy": 0.3}}, {}, PLAN, "accuracy")
