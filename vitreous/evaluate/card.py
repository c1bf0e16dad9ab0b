"""The model card of a run, brought in line with a calibration that came later; the rest of it stays."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitreous import files
from vitreous.evals import calibration

NEXT = "## Recipe"
"""The section that the calibration stands in front of, as in a card that training writes."""


def update(sealed: Path, about: Mapping[str, Any]) -> None:
    """Let the card beside a run's best model say of its calibration what the sealed file says."""
    path = sealed.with_name("model_card.md")
    if sealed.name != "best.safetensors" or not path.is_file():
        return
    before = path.read_text(encoding="utf-8")
    sections = re.split("^(?=## )", before, flags=re.MULTILINE)
    others = [each for each in sections if not each.startswith(f"{calibration.HEADING}\n")]
    place = next((i for i, each in enumerate(others) if each.startswith(NEXT)), len(others))
    text = "".join([*others[:place], calibration.section(about), *others[place:]])
    if text != before:
        files.write_text(path, text)
