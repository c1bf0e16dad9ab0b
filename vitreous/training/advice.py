"""What a run that has ended suffers from, and the one or two options to try next. No torch, no measuring.

It looks at three things: the figures on a sample of the training images, unaugmented; those on images that
were not trained on; and where the time went.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import inf, sqrt
from typing import Any

from vitreous.config import TrainConfig
from vitreous.options import unused
from vitreous.training.plan import Plan

SHARES = ("accuracy", "mean_average_precision")
"""Figures from 0 to 1 that tell whether images were learned."""
GAP = 0.1
"""By how much a figure may be higher on training images than on others."""
LEARNED = 0.8
"""The figure on training images from which they count as learned."""
FEW = 0.5
"""The figure on training images below which they are too far from learned for anything else to come first."""
SILENT = 0.1
"""The share of the classes that may never be recognised."""
SAMPLE = 500
"""How many training images are looked at."""
SHORT = 2.0
"""Passes over the images after which a model that has not learned them was not trained for long: nothing is
known by heart that was seen once or twice."""


def advise(
    results: Mapping[str, Any],
    document: Mapping[str, Any],
    plan: Plan,
    headline: str,
    passes: float = inf,
    options: TrainConfig | None = None,
) -> list[str]:
    """Return a line for each thing that is wrong: what was seen, and what to try.

    `passes`: how often the run went over its images; `options`: those of its verb, the only ones to be named.
    """
    options = options or TrainConfig()
    rows = document.get("per_class", [])
    found = [_waiting(results), _silent(rows, plan), _fit(results, plan, headline, passes, options)]
    return [line for line in found if line]


def _waiting(results: Mapping[str, Any]) -> str:
    if results.get("bottleneck") != "loader":
        return ""
    return (
        f"{results['waited_for_data']:.0%} of the steps' time was spent waiting for images: "
        "try more --workers, or images that are scaled down before training"
    )


def _silent(rows: Sequence[Mapping[str, Any]], plan: Plan) -> str:
    seen = [row for row in rows if row.get("count")]
    silent = [row["label"] for row in seen if not row["recall"]]
    if len(silent) < 2 or len(silent) <= SILENT * len(seen):
        return ""
    remedy = "a lower --lr" if plan.balance != "none" else "--balance sampler where they have few images"
    return (
        f"{len(silent)} of {len(seen)} classes are never recognised ({', '.join(silent[:3])}"
        f"{', …' if len(silent) > 3 else ''}): try {_longer(plan)}, or {remedy}"
    )


def _fit(results: Mapping[str, Any], plan: Plan, headline: str, passes: float, options: TrainConfig) -> str:
    """Compare training images with others: underfitted, or overfitted."""
    split = "test" if "test" in results else "val"
    known, others = ((results.get(name) or {}).get(headline) for name in ("train", split))
    if headline not in SHARES or known is None or others is None:
        return ""
    figures = f"{known:.1%} of training images, {others:.1%} of {split}"
    if headline != "accuracy":
        figures = f"{headline.replace('_', ' ')} {known:.1%} on training images, {others:.1%} on {split}"
    # A head that was fitted first has converged on its images before any of them is seen
    if passes <= SHORT and known < LEARNED and not plan.fit_head:
        return f"underfitting ({figures}, after {_epochs(passes)}): try {_longer(plan)}"
    counts = ((known, results["train"].get("count")), (others, results[split].get("count")))
    if known >= FEW and known - others > max(GAP, 2 * sqrt(sum(_variance(*each) for each in counts))):
        remedies = [*_harder(plan, options), "more images"]
        if not plan.init and _takes(options, "init"):
            remedies.append("or a trained model to start from (--init)")
        return f"overfitting ({figures}): try {', '.join(remedies)}"
    if known < LEARNED:
        return f"underfitting ({figures}): try {_longer(plan)}, or {_easier(plan, options)}"
    return ""


def _variance(share: float, count: float | None) -> float:
    """Return the variance of a share of `count` images: two wrong ones in a dozen say little."""
    return share * (1.0 - share) / count if count else 0.0


def _epochs(passes: float) -> str:
    return "one epoch" if passes == 1 else f"{passes:.1g} epochs" if passes < 1 else f"{passes:.2g} epochs"


def _longer(plan: Plan) -> str:
    if plan.time_budget is not None:
        budget = 3 * plan.time_budget
        return f"--time-budget {f'{budget:g}s' if budget < 120 else f'{budget / 60:.0f}m'}"
    return f"--epochs {3 * (plan.epochs or 1)}"


def _easier(plan: Plan, options: TrainConfig) -> str:
    """Return what makes training images easier to learn."""
    if plan.tune != "full" and _takes(options, "tune"):
        return "--tune lora" if plan.tune == "head" else "--tune full"
    if plan.augment.mixup or plan.augment.cutmix:
        return "--mixup 0 --cutmix 0"
    if not plan.init:
        return "a larger --model"
    return f"a larger model to start from{' (--init)' if _takes(options, 'init') else ''}"


def _harder(plan: Plan, options: TrainConfig) -> list[str]:
    """Return what makes training images harder to know by heart, or lets more than the head learn; maybe
    nothing."""
    if plan.tune == "head":
        return [_longer(plan)]
    found = []
    if not plan.augment.mixup and not plan.augment.cutmix and options.augment != "strong":
        found.append("--augment strong")
    if plan.tune == "full" and plan.architecture.kind == "vit" and plan.architecture.drop_path < 0.1:
        found.append("--drop-path 0.1")
    if found:
        return [" ".join(found)]
    if not plan.init:
        return ["a smaller --model"]
    return ["--tune lora"] if plan.tune == "full" and _takes(options, "tune") else []


def _takes(options: TrainConfig, name: str) -> bool:
    """Return whether the verb of these options has that one, and a use for it."""
    return any(each.name == name and unused(each) is None for each in fields(options))
