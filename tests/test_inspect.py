"""`vitreous inspect`: figures, numbers and a page for every kind of model, and what it says when it can't."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from tests.test_report import ATTACK, NAMES, PIXELS, RIGHT_TO_LEFT
from tests.test_vit import tiny
from vitreous import cli, inspection, report
from vitreous.config import Preprocessing
from vitreous.data.augment import EvaluationTransform
from vitreous.errors import DataError, ModelError, OptionError
from vitreous.models.architecture import ResNetConfig
from vitreous.models.resnet import ResNet
from vitreous.predict import Classifier, load
from vitreous.report import InspectOptions, inspecting, observe
from vitreous.report.batches import NamedImage


def sealed(folder: Path, name: str = "model", labels: list[str] | None = None, **changes: Any) -> Path:
    """Save a tiny classifier whose classes have hostile names."""
    names = NAMES if labels is None else labels
    model = tiny(num_classes=len(names), **changes)
    preprocessing = Preprocessing(image_size=model.config.image_size)
    return Classifier(model, EvaluationTransform(preprocessing, (8, 8)), names).save(
        folder / f"{name}.safetensors"
    )


def cnn_of_four(folder: Path) -> Path:
    cnn = ResNet(ResNetConfig(layers=(1, 1), stem_width=32, num_classes=4, image_size=(64, 64))).eval()
    transform = EvaluationTransform(Preprocessing(image_size=(64, 64)))
    return Classifier(cnn, transform, NAMES).save(folder / "cnn.safetensors")


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "images"
    folder.mkdir()
    paths = [folder / f"{name}.png" for name in (ATTACK, RIGHT_TO_LEFT, "plain")]
    for i, path in enumerate(paths):
        Image.fromarray(np.roll(PIXELS, 7 * i, axis=1)).save(path)
    return paths


def test_a_folder_of_class_folders_is_looked_at_from_all_over(
    tmp_path: Path, images: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for label in ("a", "b"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(PIXELS).save(tmp_path / "photos" / label / f"{number}.png")
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    classifier = load(sealed(tmp_path))
    read = report.inspecting.read
    assert len(read([tmp_path / "photos"], classifier)) == 6
    monkeypatch.setattr(report.inspecting, "MOST", 4)
    names = [
        Path(each.name).relative_to(tmp_path / "photos") for each in read([tmp_path / "photos"], classifier)
    ]
    assert [name.parts[0] for name in names] == ["a", "a", "b", "b"]
    assert "photos: 4 of its 6 images" in capsys.readouterr().err


def test_inspect_writes_figures_numbers_and_a_page(
    tmp_path: Path, images: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = sealed(tmp_path, registers=2), tmp_path / "out"
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    assert cli.main(["inspect", str(source), *map(str, [*images, broken]), "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads((out / "inspection.json").read_text())
    assert json.loads(printed.out) == document
    assert f"warning: {broken}: not a readable image" in printed.err
    names = {path.stem for path in out.glob("*.png")}
    of_images = {"distance", "entropy", "rollout", "tokens", "layers", "deletion"}
    assert names == {"filters", "positions", "heads-1", "heads-2", "heads-3"} | of_images
    for path in out.glob("*.png"):
        Image.open(path).verify()
    classifier = load(source)
    x = classifier.collate([classifier.prepare(path) for path in images]).images
    rollouts = inspection.rollout(classifier.model, x).numpy()
    predictions = classifier.predict(images)
    for each, rollout, prediction, path in zip(
        document["images"], rollouts, predictions, images, strict=True
    ):
        assert each["file"] == str(path)
        np.testing.assert_allclose(each["maps"]["rollout"], rollout, rtol=2e-3)
        assert each["top"][0]["label"] == each["class"] == prediction.label
        assert each["top"][0]["probability"] == pytest.approx(prediction.probability, rel=1e-4)
        assert set(each["maps"]) == {"rollout", "gradient rollout", "Grad-CAM"}
    expected = inspection.attention_distance(classifier.model, x)
    np.testing.assert_allclose(document["attention_distance"]["values"], expected, rtol=2e-3)
    expected = inspection.position_similarity(classifier.model).values
    np.testing.assert_allclose(document["position_similarity"]["values"], expected, atol=1e-3)
    assert document["deletion"]["maps"].keys() == {"rollout", "gradient rollout", "Grad-CAM"}
    assert set(document["token_norms"]["prefix"]) == {"class token", "registers (mean)"}
    assert (
        ATTACK not in (out / "report.html").read_text() and (out / "report.html").stat().st_size < 5_000_000
    )


def test_inspect_of_weights_alone(tmp_path: Path) -> None:
    document = report.inspect(sealed(tmp_path), [], tmp_path / "out")
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {"filters", "positions"}
    assert document["count"] == 0 and document["images"] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"pooling": "gap", "class_token": False, "positions": "rope"},
        {"pooling": "map", "class_token": False, "positions": "none"},
        {"distilled": True, "positions": "relative"},
        {"image_size": (8, 40), "positions": "learned2d"},
    ],
    ids=str,
)
def test_inspect_of_every_kind(tmp_path: Path, images: list[Path], changes: dict[str, Any]) -> None:
    options = InspectOptions(own_aspect=True, fusion="max", discard=0.3, patch=(0, 0), class_name=NAMES[2])
    document = report.inspect(sealed(tmp_path, **changes), images, tmp_path / "out", options)
    assert document["start"] == "patch at row 0, column 0"
    assert {each["class"] for each in document["images"]} == {NAMES[2]}
    assert ("position_similarity" in document) == (changes.get("positions") != "none")


@pytest.mark.usefixtures("blank_figures")
def test_own_aspect_shows_the_whole_picture(tmp_path: Path) -> None:
    source = sealed(tmp_path, image_size=(32, 32))
    path = tmp_path / "wide.png"
    Image.fromarray(np.tile(PIXELS[:16], (1, 1, 1))).save(path)  # 16 x 64
    document = report.inspect(source, [path], tmp_path / "out", InspectOptions(own_aspect=True))
    assert np.array(document["images"][0]["maps"]["rollout"]).shape == (2, 8)


def test_inspect_of_a_cnn_and_of_a_model_without_classes(tmp_path: Path, images: list[Path]) -> None:
    document = report.inspect(cnn_of_four(tmp_path), images, tmp_path / "cnn")
    assert set(document["images"][0]["maps"]) == {"Grad-CAM"} and document["attention_entropy"] is None
    assert "attention, rollout and positions: a CNN has none" in document["notes"]
    document = report.inspect(sealed(tmp_path, labels=[]), images, tmp_path / "headless")
    assert set(document["images"][0]["maps"]) == {"rollout"}
    assert document["deletion"]["about"] == "similarity to the whole image's features"


@pytest.mark.usefixtures("blank_figures")
def test_two_checkpoints_are_compared_layer_by_layer(tmp_path: Path, images: list[Path]) -> None:
    one = sealed(tmp_path, "one", image_size=(32, 32))
    document = report.inspect(one, images, tmp_path / "same", compare=one)
    np.testing.assert_allclose(document["compare"]["cka"], document["cka"], atol=1e-3)
    np.testing.assert_allclose(np.diagonal(document["cka"]), 1, atol=1e-3)
    other = sealed(tmp_path, "other", image_size=(32, 32), width=48, depth=3, patch_size=(4, 4))
    document = report.inspect(one, images, tmp_path / "other", compare=other)
    assert np.array(document["compare"]["cka"]).shape == (2, 3)
    with pytest.raises(DataError, match="two checkpoints are compared through images"):
        report.inspect(one, [], tmp_path / "none", compare=other)


def test_what_inspect_can_not_do_is_said_in_one_line(tmp_path: Path, images: list[Path]) -> None:
    source = sealed(tmp_path, labels=["cat", "dog"])
    with pytest.raises(ModelError, match="unknown class 'dgo'; did you mean dog"):
        report.inspect(source, images, tmp_path / "out", InspectOptions(class_name="dgo"))
    (tmp_path / "text.png").write_text("text")
    with pytest.raises(DataError, match="none of the 1 images could be read"):
        report.inspect(source, [tmp_path / "text.png"], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="there is no image: give JPEG"):
        report.inspect(source, [tmp_path / "empty"], tmp_path / "out")
    broken = load(source)
    with torch.no_grad():
        broken.model.blocks[1].attn.proj.weight[0, 0] = float("nan")
    broken.save(tmp_path / "broken.safetensors")
    with pytest.raises(ModelError, match=r"inf or NaN \(the first in blocks.1.attn.proj.weight\)"):
        report.inspect(tmp_path / "broken.safetensors", images, tmp_path / "out")


def test_an_option_that_shows_nothing_is_refused(tmp_path: Path, images: list[Path]) -> None:
    source = sealed(tmp_path, labels=["cat", "dog"])
    alone = {
        "--class": InspectOptions(class_name="cat"),
        "--patch": InspectOptions(patch=(0, 0)),
        "--head-fusion": InspectOptions(fusion="max"),
        "--discard-ratio": InspectOptions(discard=0.5),
        "--own-aspect": InspectOptions(own_aspect=True),
    }
    for flag, options in alone.items():
        with pytest.raises(OptionError, match=f"{flag} changes what is shown of images: give at least one"):
            report.inspect(source, [], tmp_path / "out", options)
    cnn = cnn_of_four(tmp_path)
    for flag in ("--patch", "--head-fusion", "--discard-ratio"):
        with pytest.raises(OptionError, match=f"{flag} is about attention, and a CNN has none"):
            report.inspect(cnn, images, tmp_path / "out", alone[flag])


def test_inspect_names_what_it_wrote_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = sealed(tmp_path), tmp_path / "out"
    assert cli.main(["inspect", str(source), "--out", str(out)]) == 0
    (out / "holiday.png").write_bytes(b"the user's own")
    capsys.readouterr()
    assert cli.main(["inspect", str(source), "--out", str(out)]) == 0
    said = capsys.readouterr()
    named = {line.split()[0] for line in said.out.splitlines()[1:]}
    assert named == {str(path) for path in out.iterdir()} - {
        str(out / "holiday.png"),
        str(out / ".vitreous.json"),
    }
    assert "holiday" not in said.err
    listed = json.loads((out / "inspection.json").read_text())["figures"]
    assert [each["file"] for each in listed] == ["filters.png", "positions.png"]
    assert "Position similarity" in said.out and listed[1]["title"] == "Position similarity"


@pytest.mark.usefixtures("blank_figures")
def test_maps_are_scored_over_the_first_four_images_whatever_the_batch(
    tmp_path: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sealed(tmp_path)
    five = [*images, *images[:2]]
    together = report.inspect(source, five, tmp_path / "together")["deletion"]
    monkeypatch.setattr("vitreous.report.batches.TOKENS", 1)  # one image per batch
    apart = report.inspect(source, five, tmp_path / "apart")["deletion"]
    assert together["images"] == apart["images"] == 4
    for name, curves in together["maps"].items():
        np.testing.assert_allclose(curves["deletion"], apart["maps"][name]["deletion"], rtol=2e-3)
        np.testing.assert_allclose(curves["insertion"], apart["maps"][name]["insertion"], rtol=2e-3)


def test_memory_stays_bounded_over_many_images(tmp_path: Path) -> None:
    """Images beyond the shown ones leave their means only: no maps, no features."""
    source = sealed(tmp_path)
    decoded = [NamedImage(str(i), Image.fromarray(PIXELS)) for i in range(40)]
    found = report.findings(load(source), decoded)
    assert (found.count, len(found.images), found.map_scores.images) == (40, 16, 4)
    assert found.norms.shape == (2, 40 * 6)


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize(
    "about",
    [
        {"calibration": {"temperature": 5.0}},
        {"calibration": {"temperature": 3.0}, "abstain": 0.9},
        {"multilabel": True, "calibration": {"temperature": 2.0}, "thresholds": [0.1, 0.6, 0.4, 0.9]},
    ],
    ids=["temperature", "abstains", "several labels"],
)
def test_inspect_says_what_predict_says(tmp_path: Path, images: list[Path], about: dict[str, Any]) -> None:
    """Temperature, abstention and several labels: nothing is computed a second time."""
    model = tiny(num_classes=4)
    transform = EvaluationTransform(Preprocessing(image_size=model.config.image_size), model.config.step)
    classifier = Classifier(model, transform, ["a", "b", "c", "d"], about)
    source = classifier.save(tmp_path / "sealed.safetensors")
    document = report.inspect(source, images, tmp_path / "out")
    for each, own in zip(document["images"], classifier.predict(images), strict=True):
        assert (each["label"], each.get("labels")) == (own.label, own.labels)
        assert each["probability"] == pytest.approx(own.probability, rel=1e-4)
        assert [row["label"] for row in each["top"]] == [label for label, _ in own.top]
        shown = [row["probability"] for row in each["top"]]
        assert shown == pytest.approx([share for _, share in own.top], rel=1e-3)
    first = [curves["deletion"][0] for curves in document["deletion"]["maps"].values()]
    own = np.mean([each.top[0][1] for each in classifier.predict(images)])
    assert first == pytest.approx([own] * 3, rel=1e-3), "the curves start at the same probability"


def test_positions_that_were_given_are_not_said_to_be_found(tmp_path: Path) -> None:
    classifier = load(sealed(tmp_path))
    for start, told in (("paper", False), ("mimetic", True)):
        classifier.about = {"recipe": {"initialization": start}}
        found = observe.findings(classifier, [])
        (drawing,) = (each for each in inspecting.draw(found) if each.name == "positions")
        assert ("began as sines and cosines" in drawing.how) == told


def test_a_refusal_leaves_no_folder(tmp_path: Path) -> None:
    source = sealed(tmp_path, labels=["cat", "dog"])
    with pytest.raises(OptionError, match="--patch changes what is shown of images"):
        vitreous.inspect(source, out=tmp_path / "new", patch=(0, 0))
    assert not (tmp_path / "new").exists()
    (tmp_path / "own").mkdir()
    with pytest.raises(DataError, match="no data at"):
        vitreous.evaluate(source, tmp_path / "nothing", out=tmp_path / "own")
    assert (tmp_path / "own").is_dir()
