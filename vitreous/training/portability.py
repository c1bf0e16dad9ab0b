"""Which other libraries can take the model of a plan: told before it is trained, not when it is converted."""

from vitreous import layouts
from vitreous.training.plan import Plan

NAMES = {"timm": "timm", "hf": "Hugging Face", "torchvision": "torchvision"}


def describe(plan: Plan) -> str:
    """Return in one line to which libraries `vitreous convert` can bring the model, and why not to others."""
    found = layouts.obstacles(plan.architecture, plan.preprocessing)
    able = [NAMES[name] for name in NAMES if not found[name]]
    unable: dict[str, list[str]] = {}
    for name in NAMES:
        if found[name]:
            unable.setdefault(found[name], []).append(NAMES[name])
    text = ", ".join(able) or "none of timm, Hugging Face and torchvision"
    reasons = "".join(f"; not to {' or '.join(names)} ({why})" for why, names in unable.items())
    return text + reasons
