"""Reports: one file that shows everything, whatever its names are, on any screen and without a network."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitreous import cli, plot, report
from vitreous.config import EvaluateConfig
from vitreous.data import open_data
from vitreous.evaluate import evaluate
from vitreous.inspection import gradient_rollout
from vitreous.predict import Classifier, load
from vitreous.report import Gallery, Headline, Mistake, Picture, Reliability, Report, evaluation, markdown
from vitreous.report.curves import _points, curves
from vitreous.report.page import fitted

ATTACK = "<img src=x onerror=alert(1)>"
BREAKOUT = "\"'></script></style><script>alert(2)</script><!--"
RIGHT_TO_LEFT = "כלב‮ (dog)"
NAMES = [ATTACK, BREAKOUT, RIGHT_TO_LEFT, "plain"]
PIXELS = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)


def everything() -> Report:
    """A report in which every word is hostile."""
    drawn = plot.svg(plot.confusion(np.eye(4, dtype=int), NAMES), BREAKOUT)
    both = f"{ATTACK} {BREAKOUT} {RIGHT_TO_LEFT}"
    rows: list[dict[str, Any]] = [
        {"step": i, "split": "train", "loss": 1 / i, "lr": 0.1} for i in range(1, 9)
    ]
    rows += [{"step": i, "split": "val", "loss": 2 / i, "accuracy": i / 10} for i in range(1, 9)]
    return Report(
        title=both,
        subtitle=both,
        command=both,
        environment={both: both},
        headline=Headline(name=both, value=both, note=both),
        summary={both: both},
        details={both: both},
        metrics=rows,
        split=both,
        labels=NAMES,
        confusion=np.arange(16).reshape(4, 4),
        reliability=Reliability(
            confidence=np.array([0.2, 0.8]), accuracy=np.array([0.3, 0.7]), count=np.array([3, 5])
        ),
        mistakes=[
            Mistake(truth=ATTACK, answer=BREAKOUT, probability=0.9, file=both, image=PIXELS, seen=PIXELS)
        ],
        pictures=[Picture(title=both, svg=drawn, how=both), Picture(title="p", png=_png(), how="how")],
        galleries=[Gallery(title=both, text=both, images=[(both, PIXELS), (both, PIXELS[:8, :8, :1])])],
        sections={"Others": [Gallery(title=both, text=both, images=[(both, PIXELS)])]},
        check={both: both},
        settings={both: both},
        card=f"# {both}\n\n{both}\n\n- {both}\n\n| {ATTACK} | b |\n|---|---|\n| `{ATTACK}` | **{ATTACK}** |",
        notes=[both],
    )


def _png() -> bytes:
    return plot.png(plot.history({"a": [(0, 1.0), (1, 2.0)]}, "loss"), dpi=40)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium: install it to test pages")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", "--no-first-run", *quiet]
        )
        yield browser
        browser.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_hostile_names_are_inert_and_the_page_fits(
    chromium: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    path = report.write(tmp_path / "report.html", everything())
    context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_timeout(200)
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert page.locator("script, [onerror], iframe, object").count() == 0
    assert page.locator("h1").inner_text() == f"{ATTACK} {BREAKOUT} {RIGHT_TO_LEFT}"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = page.evaluate("getComputedStyle(document.querySelector('figure svg')).color")
    light = sum(map(int, re.findall(r"\d+", paper)[:3])) > 382
    assert light == (scheme == "light") and light != (sum(map(int, re.findall(r"\d+", ink)[:3])) > 382)
    assert page.locator("h2").all_inner_texts()[0] == "Curves"
    context.close()


@pytest.mark.browser
def test_the_page_prints_light_and_whole(chromium: Any, tmp_path: Path) -> None:
    path = report.write(tmp_path / "report.html", everything())
    page = chromium.new_context(color_scheme="dark").new_page()
    page.goto(path.as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert page.pdf(path=str(tmp_path / "report.pdf"))[:4] == b"%PDF"
    page.context.close()


def test_right_to_left_names_are_isolated() -> None:
    page = report.render(everything())
    assert page.count("<bdi>") == page.count("</bdi>") > 20
    assert f"<bdi>{RIGHT_TO_LEFT}</bdi>" in page  # in the tables of classes and confusions


def test_any_part_may_be_absent() -> None:
    page = report.render(Report(title="empty"))
    assert "<h2" not in page and "<nav" not in page and "<h1><bdi>empty</bdi></h1>" in page


@pytest.mark.parametrize("place", ["galleries", "sections"])
def test_images_are_left_out_until_the_page_fits(place: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (224, 224, 3), np.uint8)
    galleries = [Gallery(title=f"image {i}", images=[("image", noise)] * 4) for i in range(16)]
    full = (
        Report(title="large", galleries=galleries)
        if place == "galleries"
        else Report(title="large", sections={"Some": galleries[:8], "Others": galleries[8:]})
    )
    assert len(report.render(full).encode()) > 600_000
    page = fitted(full, 400_000)
    assert len(page.encode()) <= 400_000
    shown = page.count("<h3>")
    assert 0 < shown < 16 and f"{16 - shown} images and 0 mistakes left out" in page


def test_curves_are_read_from_both_shapes_of_a_journal() -> None:
    split = [
        {"step": i, "split": s, "loss": 1.0 / i, "lr": 1e-3} for i in (1, 2, 3) for s in ("train", "val")
    ]
    flat = [{"step": i, "train_loss": 1.0 / i, "val_loss": 2.0 / i, "learning_rate": 1e-3} for i in (1, 2, 3)]
    assert [each.title for each in curves(split)] == ["Loss", "Learning rate"]
    assert [each.title for each in curves(flat)] == ["Loss", "Learning rate"]
    broken = [
        {"step": 1, "split": "train", "loss": float("nan")},
        {"step": 2, "split": "train", "loss": None},
    ]
    assert curves(broken) == []


def test_markdown_of_a_card() -> None:
    text = "# A card\n\nOne *line*\nof text, `code` and **strong**.\n\n- a\n- b\n\n"
    text += "| x | y |\n|---|---:|\n| 1 | a\\|b |\n"
    assert markdown.to_html(text) == (
        "<h3>A card</h3>\n<p>One *line* of text, <code>code</code> and <strong>strong</strong>.</p>\n"
        "<ul><li>a</li><li>b</li></ul>\n"
        '<div class="wide"><table><tr><th>x</th><th>y</th></tr><tr><td>1</td><td>a|b</td></tr></table></div>'
    )


def test_report_of_a_run_from_its_folder(tmp_path: Path, digits_file: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(digits_file, folder / "best.safetensors")
    rows = [{"step": i, "split": "train", "loss": 1 / i, "accuracy": i / 9} for i in range(1, 9)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 9, "lo')
    (folder / "config.json").write_text(json.dumps({"command": "vitreous train", "data": "digits"}))
    results = {"test": {"accuracy": 0.5, "top5": 0.75}, "val": {"accuracy": 0.5, "top5": 0.6}}
    results |= {"seconds": 75, "steps": 9, "ranks": 1, "mfu": None, "images_per_second": 1234.6}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "model_card.md").write_text("# Model card\n\nAbout it.")
    document = evaluate(str(digits_file), "digits", EvaluateConfig(device="cpu"))
    (folder / "evaluation.json").write_text(json.dumps(document))  # as a run leaves it
    page = report.write_run(folder).read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert [re.sub("<.*?>", "", title) for title in titles] == [
        "Curves", "Confusion, on test", "Reliability, on test", "Worst mistakes, on test", "Classes, on test",
        "Inside the model", "Settings", "Model card",
    ]  # fmt: skip
    built = report.from_run(folder)
    data = open_data("digits").splits["test"]
    assert built.confusion.sum() == len(data) == built.reliability.count.sum()
    guesses = [
        prediction.label for prediction in load(digits_file).predict([data.read(i, 1) for i in range(40)])
    ]
    wrong = [i for i, guess in enumerate(guesses) if guess != str(data.targets[i])]
    assert built.confusion.trace() / len(data) > 0.8 and len(wrong) < 15
    assert all(
        each.truth != each.answer and each.image is not None and each.seen is not None
        for each in built.mistakes
    )
    low, high = document["accuracy_interval"]
    assert built.headline is not None and built.headline.name == "accuracy on test"
    assert built.headline.value == f"{document['accuracy']:.2%}"
    assert built.headline.note == f"95 % interval {low:.1%} to {high:.1%}, 359 images"
    assert built.details == {"time": "1 min 15 s", "images per second": "1,235", "steps": "9"}  # not one rank
    assert built.summary == {"top-5 accuracy, test": "75.00%", "accuracy, val": "50.00%"}
    shown = re.sub("<svg.*?</svg>", "", page, flags=re.S)
    assert shown.index(built.headline.value) < shown.index("top-5 accuracy, test") < shown.index("1 min 15 s")
    assert "null" not in shown.partition("<body>")[2]
    assert len(re.findall("Model card</h", page)) == 1


def test_report_of_a_run_whose_data_has_moved(
    tmp_path: Path, digits_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(digits_file, folder / "best.safetensors")
    (folder / "config.json").write_text(json.dumps({"data": str(tmp_path / "gone")}))
    (folder / "results.json").write_text("{ not json")
    built = report.from_run(folder)
    assert built.notes[0].startswith("mistakes and attention left out: no data at")
    assert [each.title for each in built.pictures] == ["Filters", "Position similarity"]
    assert "results.json left out" in capsys.readouterr().err


def test_report_of_an_evaluation(tmp_path: Path, digits_file: Path) -> None:
    out = tmp_path / "evaluation"
    assert cli.main(["evaluate", str(digits_file), "digits", "--out", str(out)]) == 0
    document = json.loads((out / "evaluation.json").read_text())
    page = (out / "report.html").read_text()
    assert f"{document['accuracy']:.2%}" in page and "Worst mistakes" in page and "data:image/png" in page
    assert os.path.getsize(out / "report.html") < 5_000_000
    asked = {"resolutions": [{"image_size": 16, "accuracy": 0.5}], "corruptions": {"mean_error": 0.25}}
    built = report.from_evaluation({**document, **asked})
    assert built.summary["accuracy at 16"] == "50.00 %" and "25.00 %" in built.summary.values()
    built = report.from_evaluation(document)
    assert built.reliability.error == pytest.approx(document["ece"], abs=1e-6)
    assert len(built.mistakes) == len(document["worst"]) > 0


def test_mistakes_show_what_spoke_for_the_answer_and_for_the_truth(digits: Classifier) -> None:
    split = open_data("digits").splits["test"]
    worst = [{"index": 3, "truth": 2, "guess": "7", "probability": 0.9}]
    (mistake,) = evaluation.mistakes(digits, split, worst)
    pixels = digits.prepare(split.read(3, 1))
    images, mask = digits.collate([pixels, pixels])
    maps = gradient_rollout(digits.model, images, torch.tensor([7, 2]), mask)
    for shown, each in zip((mistake.seen, mistake.missed), maps, strict=True):
        np.testing.assert_array_equal(shown, plot.overlay(pixels.pixels, each.numpy()))
    assert not np.array_equal(mistake.seen, mistake.missed)
    page = report.render(report.Report(title="t", mistakes=[mistake]))
    assert page.count("<img") == 3 and "what supported the answer, then what supported the true class" in page


def test_the_last_point_of_a_curve_averages_as_many_batches_as_the_others() -> None:
    rows = [{"step": 40 * i, "split": "train", "batches": 40, "loss": 1.0} for i in range(1, 4)]
    short = {"step": 123, "split": "train", "batches": 3, "loss": 5.0}
    val = {"step": 123, "split": "val", "loss": 2.0}
    points = _points([*rows, short, val], "train", ("loss",))
    assert points == [(40.0, 1.0), (80.0, 1.0), (120.0, 1.0)]
    assert _points([*rows, short, val], "val", ("loss",)) == [(123.0, 2.0)]
    assert len(_points([short], "train", ("loss",))) == 1  # all there is


def test_the_labels_loss_is_drawn_beside_that_of_val() -> None:
    """With a second task the sum can't be compared with what evaluations measure."""
    val = [{"step": step, "split": "val", "loss": 0.2} for step in (1, 2)]
    alone, second = ([{"step": step, "split": "train", **row} for step in (1, 2)] for row in (
        {"loss": 0.1}, {"loss": 5.0, "label_loss": 0.1}
    ))  # fmt: skip
    assert [picture.svg for picture in curves(second + val)] == [
        picture.svg for picture in curves(alone + val)
    ]


def test_a_page_holds_names_of_any_bytes(tmp_path: Path) -> None:
    path = report.write(
        tmp_path / "report.html", Report(title="caf\udce9", command="vitreous inspect caf\udce9")
    )
    assert r"caf\xe9" in path.read_text(encoding="utf-8")
