"""The explorer page in a real browser: drop, see, click, slide, compare; by keyboard; on a phone."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from tests.conftest import digits_files
from tests.serving import Running, running
from vitreous.data.augment import EvaluationTransform
from vitreous.predict import Classifier, load

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
ARGUMENTS += [
    "--disable-sync",
    "--no-first-run",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"),
    pytest.mark.xdist_group("browser"),
]

DROP = """([bytes, name]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
  const target = document.querySelector(".stage");
  const how = { bubbles: true, cancelable: true, dataTransfer: transfer };
  target.dispatchEvent(new DragEvent("dragover", how));
  target.dispatchEvent(new DragEvent("drop", how));
}"""
PASTE = """([bytes]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], "pasted.png", { type: "image/png" }));
  document.dispatchEvent(new ClipboardEvent("paste", { bubbles: true, clipboardData: transfer }));
}"""
PIXELS = "canvas => canvas.toDataURL()"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def served(digits: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("explorer")
    figures = {"accuracy": 0.9344, "mean_per_class_accuracy": 0.9311, "count": 359}
    about = {"results": {"test": figures, "val": figures}, "recipe": {"batch_size": 64, "lr": 0.003}}
    labels = [HOSTILE, *digits.labels[1:]]
    saved = Classifier(digits.model, digits.preprocess, labels, about).save(folder / "digits.safetensors")
    with running(saved, folder) as server:
        yield server


@pytest.fixture(scope="module")
def cautious(digits: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model that nearly never gives a label, stretches its images, and has a figure that is no number."""
    folder = tmp_path_factory.mktemp("cautious")
    about = {
        "abstain": 0.99999,
        "results": {"test": {"accuracy": 0.5, "loss": float("nan")}},
        "calibration": {"temperature": 1.25},
    }
    preprocessing = replace(digits.preprocess.preprocessing, resize="exact")
    transform = EvaluationTransform(preprocessing, digits.preprocess.patch_size)
    saved = Classifier(digits.model, transform, digits.labels, about).save(folder / "digits.safetensors")
    with running(saved, folder) as server:
        yield server


@pytest.fixture
def page(browser: Browser, served: Running) -> Iterator[Page]:
    yield from opened(browser, served, viewport={"width": 1280, "height": 900})


def opened(browser: Browser, served: Running, **context: Any) -> Iterator[Page]:
    """Open the page; at the end, no console error, and no request to anybody else, may have happened."""
    made = browser.new_context(**context)
    page = made.new_page()
    problems: list[str] = []
    asked: list[str] = []
    page.on(
        "console",
        lambda message: problems.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(served.url)
    expect(page.locator("body[data-ready]")).to_be_attached(timeout=20_000)
    yield page
    made.close()
    assert problems == []
    assert all(url.startswith((served.url, "blob:")) for url in asked)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return digits_files(tmp_path_factory.mktemp("digits"), count=6)


def drop(page: Page, path: Path) -> None:
    with another(page):
        page.evaluate(DROP, [list(path.read_bytes()), path.name])


@contextmanager
def another(page: Page, stage: int = 0) -> Iterator[None]:
    """Wait until a picture is shown that is not the one before."""
    shown = "stage => Number(document.querySelectorAll('.stage')[stage]?.dataset.shown ?? 0)"
    before = page.evaluate(shown, stage)
    yield
    page.wait_for_function(f"([stage, before]) => ({shown})(stage) > before", arg=[stage, before])


def first(page: Page, stage: int = 0) -> str:
    name = page.locator(".stage").nth(stage).locator(".predictions .name").first
    expect(name).to_be_visible()
    return name.inner_text()


def test_a_cautious_model_says_so_in_words(browser: Browser, cautious: Running) -> None:
    for page in opened(browser, cautious):
        expect(page.locator(".status")).to_have_text(
            "No label: the best is below the model's threshold of 99.999\u00a0%."
        )
        said = page.locator("#about").inner_text()
        assert "stretched" in said and "exact" not in said and "99.999" in said and "NaN" not in said
        assert "from before the calibration" in said.lower() and "divided by 1.25." in said
        assert page.evaluate("import('/web/card.js').then((card) => card.share(0.07))") == "7\u00a0%"


def test_a_model_without_classes_shows_its_attention(
    browser: Browser, digits: Classifier, tmp_path: Path
) -> None:
    digits.save(tmp_path / "digits.safetensors")
    headless = load(tmp_path / "digits.safetensors", num_classes=0).save(tmp_path / "headless.safetensors")
    with running(headless, tmp_path) as server:
        for page in opened(browser, server):
            expect(page.locator(".status")).to_have_text("This model has no classes.")
            expect(page.locator("#readout")).to_contain_text("attends most to")
            expect(page.locator("#view-label")).to_be_hidden()


def test_it_opens_with_an_example_analysed(page: Page, digits: Classifier) -> None:
    """Nothing has been touched, and nothing is empty, raw or wrapped."""
    assert page.locator(".predictions li").count() == 5
    expect(page.locator("#readout")).to_contain_text("The class token attends most to")
    left, right = page.locator("#about").bounding_box(), page.locator("#side").bounding_box()
    assert left is not None and right is not None
    stage = page.locator(".stage").bounding_box()
    assert stage is not None and left["y"] - (stage["y"] + stage["height"]) < 40, "half a page is empty"
    assert stage["height"] < 700, "the answers are below the fold"
    said = page.locator("#about").inner_text()
    assert "Batch size" in said and "Mean over classes" in said and "_" not in said
    lines = page.evaluate(
        "[...document.querySelectorAll('td, .share')].map(each => each.getClientRects().length && "
        "each.getBoundingClientRect().height / parseFloat(getComputedStyle(each).lineHeight))"
    )
    assert lines and max(lines) < 2, "a figure is wrapped"


def test_it_waits_for_a_model_that_warms_up(browser: Browser, served: Running) -> None:
    page, asked = browser.new_page(), []

    def not_yet(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) > 2:
            route.continue_()
        else:
            route.fulfill(status=503, json={"error": "not_ready", "message": "the model is warming up"})

    page.route("**/readyz", not_yet)
    page.goto(served.url)
    expect(page.locator(".status")).to_have_text("The model is warming up…")
    expect(page.locator(".predictions li")).to_have_count(5)
    expect(page.get_by_role("alert")).to_be_hidden()
    assert len(asked) == 3
    page.close()


def test_a_class_has_a_map_of_its_own(page: Page, digits: Classifier, files: list[Path]) -> None:
    from vitreous.inspection import gradient_rollout

    drop(page, files[1])
    row = page.locator(".predictions .row").nth(2)
    name = row.locator(".name").inner_text()
    row.click()
    expect(row).to_have_attribute("aria-pressed", "true")
    images = digits.collate([digits.prepare(files[1])]).images
    label = digits.labels.index(name) if name in digits.labels else 0
    found = gradient_rollout(digits.model, images, torch.tensor([label]))[0].flatten()
    best = int(found.argmax())
    place = f"“{name}” is supported most by row {best // 4 + 1}, column {best % 4 + 1}"
    expect(page.locator("#readout")).to_contain_text(place)
    expect(page.locator("#layer")).to_be_disabled()
    canvas = page.locator(".picture canvas")
    before = canvas.evaluate(PIXELS)
    page.locator(".predictions .row").first.click()
    page.wait_for_function(
        "before => document.querySelector('.picture canvas').toDataURL() !== before", arg=before
    )


def test_two_clicks_compare(page: Page) -> None:
    page.get_by_role("button", name="Compare two images").click()
    expect(page.locator(".stage").nth(1).locator(".predictions li")).to_have_count(5)
    page.get_by_role("button", name="digit 7").click()
    expect(page.locator(".stage").nth(1).locator(".predictions .name").first).to_have_text("7")


def test_drop_an_image_click_a_patch_move_the_sliders(
    page: Page, digits: Classifier, files: list[Path]
) -> None:
    drop(page, files[0])
    own = digits.predict(files[0])[0]
    assert first(page) == own.label
    expect(page.locator(".predictions .share").first).to_have_text(f"{100 * own.probability:.1f} %")
    canvas = page.locator(".picture canvas")
    expect(page.locator("#readout")).to_contain_text("The class token attends most to")
    before = canvas.evaluate(PIXELS)
    box = canvas.bounding_box()
    assert box is not None
    canvas.click(position={"x": box["width"] * 0.1, "y": box["height"] * 0.9})
    expect(page.locator("#readout")).to_contain_text("Patch row 4, column 1 attends most to")
    clicked = canvas.evaluate(PIXELS)
    assert clicked != before
    page.mouse.move(5, 5)
    page.locator("#layer").fill("1")
    expect(page.locator("#layer-value")).to_have_text("1 of 2")
    page.wait_for_function(
        "before => document.querySelector('.picture canvas').toDataURL() !== before", arg=clicked
    )
    layered = canvas.evaluate(PIXELS)
    page.locator("#head").fill("2")
    page.wait_for_function(
        "before => document.querySelector('.picture canvas').toDataURL() !== before", arg=layered
    )
    expect(page.locator("#head-value")).to_have_text("2 of 4")


def test_the_map_is_the_models_attention(page: Page, digits: Classifier, files: list[Path]) -> None:
    from vitreous.inspection import attention_maps

    drop(page, files[1])
    page.locator("#head").fill("3")
    row = attention_maps(digits.model, digits.collate([digits.prepare(files[1])]).images).detach()[
        0, -1, 2, 0, 1:
    ]
    best = int(row.argmax())
    place = f"row {best // 4 + 1}, column {best % 4 + 1}: {100 * float(row[best]):.1f} %"
    expect(page.locator("#readout")).to_contain_text(place)


def test_mosaic_rollout_and_positions(page: Page, files: list[Path]) -> None:
    drop(page, files[0])
    page.locator("#mosaic-on").check()
    expect(page.locator("#mosaic button")).to_have_count(4)
    page.get_by_role("button", name="Head 3").click()
    expect(page.locator("#head-value")).to_have_text("3 of 4")
    page.get_by_label("rollout through the layers").check()
    expect(page.locator("#readout")).to_contain_text("draws most, through all layers up to this one, from")
    expect(page.locator("#mosaic")).to_be_hidden()
    canvas, positions = page.locator(".picture canvas"), page.locator("#position-map")
    before = positions.evaluate(PIXELS)
    canvas.hover(position={"x": 10, "y": 10})
    expect(page.locator("#position-text")).to_contain_text("row 1, column 1")
    assert positions.evaluate(PIXELS) != before


def test_two_images_are_compared(page: Page, digits: Classifier, files: list[Path]) -> None:
    drop(page, files[0])
    page.get_by_role("button", name="Compare two images").click()
    expect(page.locator(".stage").nth(1).locator(".predictions li")).to_have_count(5)
    with another(page, 1):
        page.locator(".stage").nth(1).locator("input[type=file]").set_input_files(files[2])
    assert [first(page, 0), first(page, 1)] == [p.label for p in digits.predict([files[0], files[2]])]
    page.get_by_role("button", name="Compare two images").click()
    expect(page.locator(".stage")).to_have_count(1)


def test_keyboard_only(page: Page, files: list[Path]) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the image")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the first example
    expect(page.locator(".predictions li")).not_to_have_count(0)
    for _ in range(40):
        if page.evaluate("document.activeElement.tagName") == "CANVAS":
            break
        page.keyboard.press("Tab")
    expect(page.locator(".picture canvas")).to_be_focused()
    page.keyboard.press("Home")
    expect(page.locator("#readout")).to_contain_text("Patch row 3, column 1")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#readout")).to_contain_text("Patch row 2, column 2")
    page.locator("#layer").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#layer-value")).to_have_text("1 of 2")


def test_paste_examples_and_camera(page: Page, digits: Classifier, files: list[Path]) -> None:
    with another(page):
        page.evaluate(PASTE, [list(files[3].read_bytes())])
    assert first(page) == digits.predict(files[3])[0].label
    page.get_by_role("button", name="digit 7").click()
    expect(page.locator(".predictions .name").first).to_have_text("7")
    page.get_by_role("button", name="Camera", exact=True).click()
    expect(page.locator("#camera-panel")).to_be_visible()
    page.get_by_role("button", name="Close the camera").click()
    expect(page.locator("#camera-panel")).to_be_hidden()


def test_hostile_names_stay_text(page: Page, files: list[Path], digits: Classifier) -> None:
    page.get_by_role("button", name="digit 0").click()
    expect(page.locator(".predictions .name").first).to_have_text(HOSTILE)
    assert "owned" not in page.title() and page.locator(".predictions img, .predictions script").count() == 0
    page.locator("#classes summary").click()
    expect(page.locator("#classes p")).to_contain_text(HOSTILE)
    expect(page.locator("#results")).to_contain_text("93.44 %")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_width(browser: Browser, served: Running, files: list[Path], scheme: str) -> None:
    context = {"viewport": {"width": 390, "height": 800}, "color_scheme": scheme, "has_touch": True}
    for page in opened(browser, served, **context):
        drop(page, files[0])
        first(page)
        page.get_by_role("button", name="Compare two images").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator(".picture canvas").first.tap(position={"x": 20, "y": 20})
        expect(page.locator("#readout")).to_contain_text("Patch row 1, column 1")
        ground, ink = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        assert contrast(ground, ink) > 7


def contrast(first: str, second: str) -> float:
    """Return WCAG's contrast of two `rgb(r, g, b)` colours."""

    def luminance(colour: str) -> float:
        parts = [int(each) / 255 for each in colour[4:-1].split(",")]
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


def test_what_is_no_image_is_said(browser: Browser, served: Running, tmp_path: Path) -> None:
    page = browser.new_page()
    page.goto(served.url)
    expect(page.locator("body[data-ready]")).to_be_attached()
    (tmp_path / "text.png").write_text("hello")
    page.locator("input[type=file]").set_input_files(tmp_path / "text.png")
    expect(page.get_by_role("alert")).to_contain_text("No image of a known format was sent")
    expect(page.locator(".status")).to_have_text("The previous image stays.")
    (tmp_path / "large.png").write_bytes(bytes(17 << 20))
    page.locator("input[type=file]").set_input_files(tmp_path / "large.png")
    expect(page.get_by_role("alert")).to_have_text(
        "The picture has 17\u00a0MiB: this server takes up to 16\u00a0MiB."
    )
    page.close()


def test_a_token_is_asked_for(browser: Browser, digits: Classifier, tmp_path: Path) -> None:
    saved = digits.save(tmp_path / "digits.safetensors")
    (tmp_path / "token").write_text("a-token-of-sufficient-length")
    with running(saved, tmp_path, "--token-file", str(tmp_path / "token")) as server:
        page = browser.new_page()
        page.goto(server.url)
        expect(page.get_by_role("alert")).to_have_text("This server asks for a token: enter it above.")
        expect(page.locator("main")).to_be_hidden()
        page.get_by_label("Token", exact=True).fill("another-token-that-is-wrong")
        page.get_by_role("button", name="Use it").click()
        expect(page.get_by_role("alert")).to_have_text("That is not this server's token.")
        page.get_by_label("Token", exact=True).fill("a-token-of-sufficient-length")
        page.get_by_role("button", name="Use it").click()
        page.get_by_role("button", name="digit 3").click()
        expect(page.locator(".predictions .name").first).to_have_text("3")
        page.close()
