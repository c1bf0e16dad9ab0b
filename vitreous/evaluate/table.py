"""What was measured as rows of a table that people read."""

from typing import Any


def summary(document: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the rows of the table that people see."""
    low, high = document.get("accuracy_interval", (None, None))
    rows: list[tuple[str, Any]] = [
        ("images", document["count"]),
        (
            "accuracy",
            percent(document["accuracy"])
            + (f" ({percent(low)} to {percent(high)})" if low is not None else ""),
        ),
        ("top-5", percent(document["top5"])),
        ("loss", f"{document['loss']:.4f}"),
        ("F1, mean of classes", percent(document["f1"])),
        ("calibration error", percent(document["ece"])),
    ]
    if "merge" in document:
        rows.insert(1, ("patches merged in each block", document["merge"]))
    if "arithmetic" in document:
        rows.insert(1, ("computed in", document["arithmetic"]))
    if "mean_average_precision" in document:
        rows.insert(1, ("mean average precision", percent(document["mean_average_precision"])))
    if "real_accuracy" in document:
        rows.append(("accuracy, ReaL", f"{percent(document['real_accuracy'])} of {document['real_count']:,}"))
    rows += further(document)
    if document["bad_files"]:
        rows.append(("unreadable files", len(document["bad_files"])))
    return rows


def further(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of what was asked for beside the usual figures."""
    rows = _matched(document)
    rows += [
        (f"accuracy at {row['image_size']}", percent(row["accuracy"]))
        for row in document.get("resolutions", [])
    ]
    if "abstain" in document:
        kept = document["abstain"]
        share = "none" if kept["accuracy"] is None else percent(kept["accuracy"])
        rows.append((f"accuracy from {kept['threshold']:g} on", f"{share} of {percent(kept['coverage'])}"))
    if "calibration" in document:
        fit = document["calibration"]
        outcome = "written" if fit["written"] else "not written: not all of it improves"
        rows.append(("calibration", f"{change(fit['before'], fit['after'])} ({outcome})"))
    if "corruptions" in document:
        rows.append(("error under corruptions", percent(document["corruptions"]["mean_error"])))
    if other := document.get("compare"):
        rows += [
            *_matched(other, " (compared)"),
            (f"accuracy, {other['checkpoint']} (compared)", percent(other["accuracy"])),
            (
                "difference, compared less this",
                f"{percent(other['difference'])} (p = {other['p_value']:.3g}, paired)",
            ),
        ]
    return rows


def _matched(document: dict[str, Any], which: str = "") -> list[tuple[str, str]]:
    rule = document.get("classes_matched_by")
    return [(f"classes matched{which}", f"by {rule}, not by name")] if rule else []


def percent(value: float) -> str:
    """Return a share as people read it."""
    return f"{100 * value:.2f} %"


def change(before: dict[str, float], after: dict[str, float]) -> str:
    """Return the figures before and after, in words."""
    words = {"loss": "loss", "ece": "calibration error", "f1": "F1"}
    shown = {name: (lambda value: f"{value:.4f}") if name == "loss" else percent for name in before}
    return ", ".join(
        f"{words[name]} {shown[name](before[name])} → {shown[name](after[name])}" for name in before
    )
