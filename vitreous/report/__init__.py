"""What people read: `report.html` of a run or an evaluation, and everything that `vitreous inspect` writes.

report.write(path, Report(title="Flowers", command="vitreous train flowers", metrics=rows))
report.write(folder / "report.html", report.from_run(folder))
report.inspect("runs/flowers/best.safetensors", ["a.jpg"], Path("inspection"))
"""

from vitreous.report.cleaning import write_clean
from vitreous.report.document import (
    ClassRow,
    Gallery,
    Headline,
    Mistake,
    Picture,
    Reliability,
    Report,
    environment,
)
from vitreous.report.evaluation import from_evaluation, write_evaluation
from vitreous.report.inspecting import inspect
from vitreous.report.observe import Findings, InspectOptions, findings
from vitreous.report.page import render, write
from vitreous.report.run import from_run, write_run
from vitreous.report.searching import write_search
from vitreous.report.sweep import write_sweep

__all__ = [
    "ClassRow",
    "Findings",
    "Gallery",
    "Headline",
    "InspectOptions",
    "Mistake",
    "Picture",
    "Reliability",
    "Report",
    "environment",
    "findings",
    "from_evaluation",
    "from_run",
    "inspect",
    "render",
    "write",
    "write_clean",
    "write_evaluation",
    "write_run",
    "write_search",
    "write_sweep",
]
