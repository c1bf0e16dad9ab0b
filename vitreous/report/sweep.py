"""The page of `train --find-lr`: the curve, what it suggests, and how far to trust that."""

from pathlib import Path
from typing import Any

from vitreous import files, plot
from vitreous.report.document import Headline, Picture, Report, environment
from vitreous.report.page import write

LIMITS = (
    "The dashed line is where the loss of a fresh model falls fastest as the rate rises, over a hundred "
    "steps: a peak to try, not a measurement. Another seed or batch size moves it. It knows nothing of the "
    "end of a long run, of weight decay or of overfitting."
)


def write_sweep(folder: Path, found: dict[str, Any], command: str = "") -> Path:
    """Write `find-lr.json` and `report.html` of a sweep; return the page."""
    files.write_json(folder / "find-lr.json", found)
    suggestion = found["suggestion"]
    drawn = plot.sweep(found["rates"], found["losses"], found["smoothed"], suggestion, found["planned"])
    report = Report(
        title="Learning rates",
        subtitle=str(folder.parent),
        command=command,
        environment=environment(),
        headline=Headline(
            name="suggested peak learning rate",
            value="none" if suggestion is None else f"{suggestion:g}",
            note=f"planned without it: {found['planned']:.3g}",
        ),
        pictured="The sweep",
        pictures=[Picture(title="Loss by learning rate", svg=plot.svg(drawn, "sweep"), how=LIMITS)],
    )
    return write(folder / "report.html", report)
