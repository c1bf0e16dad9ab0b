"""What a run's plan says of an option, in the option's own words; nothing is chosen here. No torch."""

from collections.abc import Mapping
from typing import Any

from vitreous.errors import VitreousError
from vitreous.models.architecture import pair
from vitreous.training.plan import seconds

SIZES = ("image_size", "patch_size")
RATES = ("drop_path", "patch_drop")
"""Options that are rates, and fields of a model's configuration."""
OPTION = {"hard": "targets", "share": "teacher_share"}
"""Settings of a task that have another name than their option."""
OPEN = (None, "auto")
"""How an option says that the run may choose."""


def value(plan: Mapping[str, Any], name: str) -> Any:
    """Return what a plan, as JSON values, has for an option; None: it does not tell."""
    settings = plan.get("settings") or {}
    if name in (*SIZES, *RATES):
        return (plan.get("architecture") or {}).get(name)
    if name == "fit":
        resize = (plan.get("preprocessing") or {}).get("resize")
        return "stretch" if resize == "exact" else resize
    if name == "fit_head":
        return {True: "yes", False: "no"}.get(plan.get(name, ""))
    if name == "init":
        return None if name not in plan else plan[name] or "none"
    if name == "targets" and "hard" in settings:
        return "hard" if settings["hard"] else "soft"
    if name == "teacher_share":
        return settings.get("share")
    if name == "augment":  # the plan has all its parts, and the reason which preset they come from
        preset, colon, _ = str((plan.get("reasons") or {}).get(name, "")).partition(": ")
        return preset if colon else None
    augment = plan.get("augment")
    if isinstance(augment, Mapping) and name in augment:
        return augment[name] or [0.0, 0.0] if name == "crop_scale" else augment[name]
    return settings[name] if name in settings else plan.get(name)


def is_same(plan: Mapping[str, Any], name: str, given: Any) -> bool:
    """Tell whether an option's value is the plan's; a number may be as it was shown, in three digits."""
    if name == "recipe":
        return f"recipe {given}" in (plan.get("reasons") or {}).values()
    if name == "task":  # what is open in it follows from the model
        settings = plan.get("settings") or {}
        return all(each is None or settings.get(key) == each for key, each in given.items())
    known = value(plan, name)
    try:
        if name in SIZES:
            given = list(pair(tuple(given), name))
        if name == "time_budget":
            given = seconds(given)
    except VitreousError:
        return False
    if isinstance(known, float) and isinstance(given, int | float):
        return given in (known, float(f"{known:.3g}"))
    return known is not None and given == known
