"""Which other libraries can have the model of a plan: said before it is trained, not when it is converted."""

from vitreous import layouts
from vitreous.training.plan import Plan

NAMES = {"timm": "timm", "hf": "Hugging Face", "torchvision": "torchvision"}


def describe(plan: Plan) -> str:
    """Say in one line what `vitreous convert` will write of the trained model, and what stands in the way."""
    found = layouts.obstacles(plan.architecture, plan.preprocessing)
    able = [NAMES[name] for name in NAMES if not found[name]]
    unable: dict[str, list[str]] = {}
    for name in NAMES:
        if found[name]:
            unable.setdefault(found[name], []).append(NAMES[name])
    text = ", ".join(able) or "none of timm, Hugging Face and torchvision"
    reasons = "".join(f"; not to {' or '.join(names)} ({why})" for why, names in unable.items())
    return text + reasons
