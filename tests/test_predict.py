"""Classifiers: from any source and any kind of picture to labels, the same ones after every save."""

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import vitreous
from tests.conftest import FIXTURES, randomize
from tests.test_checkpoint import sample
from vitreous import checkpoint, parallel
from vitreous.config import Preprocessing
from vitreous.data.augment import EvaluationTransform
from vitreous.errors import CheckpointError, DataError, ModelError, OptionError
from vitreous.models import zoo
from vitreous.predict import Classifier, stream


@pytest.fixture
def classifier() -> Classifier:
    config = {"image_size": 32, "patch_size": 8, "width": 32, "depth": 2, "heads": 4, "mlp_width": 64}
    model = randomize(zoo.create_model("ViT-B/16", **config, num_classes=3))
    preprocessing = Preprocessing(
        image_size=(32, 32), resize_size=(36, 36), mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3)
    )
    transform = EvaluationTransform(preprocessing, (8, 8))
    return Classifier(model=model, preprocess=transform, labels=["cat", "dog", "<script>"])


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def test_every_kind_of_picture_gives_the_same_prediction(classifier: Classifier, picture: Path) -> None:
    image = Image.open(picture)
    kinds = [picture, str(picture), picture.read_bytes(), image, np.asarray(image)]
    predictions = classifier.predict(kinds)
    assert len({(each.label, each.probability) for each in predictions}) == 1
    assert predictions[0].file == str(picture) and predictions[3].file is None
    assert sum(probability for _, probability in predictions[0].top) == pytest.approx(1, abs=1e-5)
    assert classifier.predict(picture)[0].probability == pytest.approx(predictions[0].probability, abs=1e-6)
    assert list(predictions[0].to_dict()) == ["file", "label", "probability", "top"]


@pytest.mark.parametrize(
    ("layout", "name"), [("vitreous", "sealed.safetensors"), ("timm", "timm"), ("hf", "hf")]
)
def test_a_saved_classifier_predicts_the_same(
    classifier: Classifier, picture: Path, tmp_path: Path, layout: str, name: str
) -> None:
    classifier.save(tmp_path / name, layout=layout)
    again = vitreous.load(tmp_path / name)
    assert again.labels == classifier.labels
    assert again.preprocess.preprocessing == classifier.preprocess.preprocessing
    ours, theirs = classifier.predict([picture])[0], again.predict([picture])[0]
    assert (theirs.label, theirs.probability) == (ours.label, pytest.approx(ours.probability, abs=1e-6))


def test_a_run_folder_is_its_best_checkpoint(classifier: Classifier, tmp_path: Path) -> None:
    classifier.save(tmp_path / "run" / "best.safetensors")
    assert vitreous.load(tmp_path / "run").labels == classifier.labels


def test_loading_for_another_task_says_what_changed(
    classifier: Classifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classifier.save(tmp_path / "a.safetensors")
    loaded = vitreous.load(
        tmp_path / "a.safetensors", labels=["dog", "bird"], image_size=(48, 64), in_channels=1
    )
    said = capsys.readouterr()
    assert said.out == ""
    assert "head            3 → 2 classes, fresh zeros, 1 rows kept by name" in said.err
    assert "image size      32x32 → 48x64, learned positions resampled to 6x8 patches" in said.err
    assert loaded.labels == ["dog", "bird"]
    assert loaded.preprocess.preprocessing.image_size == (48, 64)
    assert loaded.preprocess.preprocessing.mean == pytest.approx((0.5,))
    assert loaded.model(torch.zeros(1, 1, 48, 64)).shape == (1, 2)


def test_a_new_head_has_nothing_of_the_old_ones_record(
    classifier: Classifier, picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_the_head = {
        "calibration": {"temperature": 3.0},
        "abstain": 0.9,
        "thresholds": [0.2, 0.3, 0.4],
        "multilabel": True,
        "results": {"val": {"loss": 1.0}},
    }
    classifier.about = of_the_head | {"licence": "CC0"}
    path = classifier.save(tmp_path / "a.safetensors")
    loaded = vitreous.load(path, num_classes=4)
    assert loaded.about == {"licence": "CC0"}
    assert "left out  abstain, calibration, multilabel, results, thresholds of" in capsys.readouterr().err
    assert loaded.predict(picture)[0].probability == pytest.approx(0.25)
    assert vitreous.load(loaded.save(tmp_path / "b.safetensors")).labels == ["0", "1", "2", "3"]
    kept = {"abstain", "thresholds", "multilabel", "licence"}
    assert vitreous.load(path, image_size=48).about.keys() == kept
    assert vitreous.load(path, in_channels=1).about.keys() == kept
    assert vitreous.load(path).about == classifier.about


def test_the_models_own_size_is_no_change(
    classifier: Classifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = classifier.save(tmp_path / "a.safetensors")
    for own in (32, (32, 32), [32, 32]):
        vitreous.load(path, image_size=own, patch_size=8)
    assert capsys.readouterr().err == ""


def test_only_one_rank_says_what_changed(
    classifier: Classifier,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = classifier.save(tmp_path / "a.safetensors")
    monkeypatch.setenv("RANK", "1")
    vitreous.load(path, num_classes=4)
    assert capsys.readouterr().err == ""


def test_the_same_labels_keep_the_head(classifier: Classifier, tmp_path: Path) -> None:
    classifier.save(tmp_path / "a.safetensors")
    same = vitreous.load(tmp_path / "a.safetensors", labels=classifier.labels, num_classes=3)
    assert torch.equal(same.model.head.weight, classifier.model.head.weight)


def test_bare_weights_say_what_was_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peer = timm.create_model("vit_tiny_patch16_224", depth=12)
    torch.save(peer.state_dict(), tmp_path / "tiny.pth")
    loaded = vitreous.load(tmp_path / "tiny.pth")
    said = capsys.readouterr().err
    assert "heads          3, as in every published model of this shape" in said
    assert "preprocessing  assumed" in said and "ImageNet's 1,000" in said
    assert loaded.labels[1] == "goldfish"


def test_half_precision_weights_are_computed_in_single(tmp_path: Path) -> None:
    weights = sample()
    weights.tensors = {name: tensor.half() for name, tensor in weights.tensors.items()}
    checkpoint.write(weights, tmp_path / "half.safetensors")
    assert vitreous.load(tmp_path / "half.safetensors").model.head.weight.dtype == torch.float32


def test_wrong_input_is_one_clear_line(classifier: Classifier, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="^a float is no picture: give a path, a folder"):
        classifier.predict([1.5])
    with pytest.raises(DataError, match="^an int is no picture: give a path, a folder"):
        classifier.predict(3)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="does not exist"):
        vitreous.load(tmp_path / "missing.safetensors")
    with pytest.raises(ModelError, match="2 labels for 3 classes"):
        vitreous.load(FIXTURES / "sealed_v1.safetensors", labels=["a", "b"], num_classes=3)
    headless = vitreous.load(FIXTURES / "sealed_v1.safetensors", num_classes=0)
    with pytest.raises(ModelError, match="has no classes"):
        headless.predict(np.zeros((16, 24, 3), np.uint8))


@pytest.mark.parametrize("source", [None, 3, b"tiny", ["tiny"]])
def test_what_is_no_name_is_no_checkpoint(source: Any) -> None:
    with pytest.raises(CheckpointError, match="is no CKPT: give a file, a folder, hf://owner/name, or tiny"):
        vitreous.load(source)


def test_pictures_without_pixels_fail_alone(classifier: Classifier, picture: Path) -> None:
    nothing = [np.zeros((0, 4, 3), np.uint8), torch.zeros(3, 4, 0), Image.new("RGB", (0, 5))]
    found = classifier.predict([picture, *nothing])
    assert found[0].label in classifier.labels
    assert [each.error for each in found[1:]] == ["a picture without pixels: one of its sides is 0"] * 3


def test_open_files_are_pictures_and_what_is_none_is_said(classifier: Classifier, picture: Path) -> None:
    (own,) = classifier.predict(picture)
    data = picture.read_bytes()
    with picture.open("rb") as file:
        for given in (file, io.BytesIO(data), bytearray(data), [io.BytesIO(data)]):
            (found,) = classifier.predict(given)
            assert (found.label, found.probability) == (own.label, own.probability)
    with pytest.raises(DataError, match="is open as text: open it as bytes"):
        classifier.predict(io.StringIO("text"))
    for nothing in (None, 7, [None]):
        with pytest.raises(DataError, match="is no picture: give a path"):
            classifier.predict(nothing)  # type: ignore[arg-type]
    for top in (0, -1):
        with pytest.raises(OptionError, match=f"top={top} is out of range"):
            classifier.predict(picture, top=top)
    with pytest.raises(ModelError, match="labels 'abc' is one text: give a list of names"):
        vitreous.load("tiny", labels="abc")


def test_one_bad_picture_is_one_entry(classifier: Classifier, picture: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("not a picture")
    flat = np.zeros((4, 4, 7), np.uint8)
    good, text, missing, odd, last = classifier.predict(
        [picture, tmp_path / "text.jpg", "none.jpg", flat, picture.read_bytes()]
    )
    assert (good.label, good.error) == (last.label, None) and good.label in classifier.labels
    assert text.to_dict() == {"file": str(tmp_path / "text.jpg"), "error": text.error}
    assert "not a readable image" in text.error and "text.jpg" not in text.error and text.label is None
    assert missing.error == "No such file or directory"
    assert odd.file is None and odd.error == "an array of 7 channels: the model takes 3"


def test_folders_patterns_and_tensors_are_pictures_too(
    classifier: Classifier, picture: Path, tmp_path: Path
) -> None:
    pixels = torch.from_numpy(np.array(Image.open(picture))).permute(2, 0, 1)
    (answer,) = classifier.predict(picture)
    floats = pixels.float() / 255
    for kind in (pixels, floats, floats.double(), floats.numpy().transpose(1, 2, 0)):
        (found,) = classifier(kind)
        assert (found.label, found.probability) == (answer.label, answer.probability)
    batch = torch.stack([pixels, pixels.flip(2)])
    assert [each.probability for each in classifier.predict(batch)] == [
        each.probability for each in classifier.predict([pixels, pixels.flip(2)])
    ]
    assert len(classifier.predict([batch, picture])) == 3
    (refused,) = classifier.predict(classifier.preprocess(Image.open(picture)))  # normalised already
    assert "expected uint8, uint16, or floats from 0 to 1; what is normalised goes to" in str(refused.error)
    for name in ("b.png", "a.png"):
        shutil.copy(picture, tmp_path / name)
    files = [str(tmp_path / name) for name in ("a.png", "b.png", "picture.png")]
    for several in (tmp_path, str(tmp_path / "*.png")):
        assert [each.file for each in classifier.predict(several)] == files


def test_a_classifier_moves_as_modules_do(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="unknown device 'abacus'"):
        classifier.to("abacus")
    monkeypatch.setattr(parallel, "choose_device", torch.device)
    assert classifier.to("meta") is classifier and classifier.device.type == "meta"


def test_batches_suit_the_device(digits: Classifier, classifier: Classifier) -> None:
    large = Classifier(zoo.create_model("ViT-B/16"), classifier.preprocess, ["a"])
    assert stream.batch_size(digits) == stream.LARGEST_BATCH
    assert stream.batch_size(large) == 4


def test_weights_that_are_no_numbers_are_no_answer(classifier: Classifier, picture: Path) -> None:
    with torch.no_grad():
        classifier.model.head.weight[0, 0] = float("nan")
    with pytest.raises(ModelError, match="the model's answer is not a number"):
        classifier.predict([picture])


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_classifier_with_another_head_is_saved_or_says_how(
    by_hand: bool, digits_file: Path, tmp_path: Path
) -> None:
    classifier = vitreous.load(digits_file)
    if by_hand:
        classifier.model.head = torch.nn.Linear(32, 7)
    else:
        classifier.model.reset_classifier(7)
    with pytest.raises(
        ModelError, match="7 classes and the classifier 10 labels: set classifier.labels to 7"
    ):
        classifier.save(tmp_path)
    with pytest.raises(ModelError, match="7 classes and the classifier 10 labels"):
        classifier.predict(np.zeros((8, 8, 1), np.uint8))
    classifier.labels = list("abcdefg")
    again = vitreous.load(classifier.save(tmp_path))
    assert again.labels == classifier.labels and again.model.config.num_classes == 7
    assert torch.equal(again.model.head.weight, classifier.model.head.weight)
    classifier.model.head = torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.Linear(8, 7))
    with pytest.raises(CheckpointError, match=r"can't be saved: .*head.0.bias.*model.reset_classifier\(N\)"):
        classifier.save(tmp_path)


def test_of_several_labels_the_likeliest_given_one_comes_with_its_own_probability(
    classifier: Classifier,
) -> None:
    """A label may be likelier and still not be given, because its threshold is higher."""
    about = {"multilabel": True, "thresholds": [0.9, 0.3, 0.3]}
    several = Classifier(classifier.model, classifier.preprocess, classifier.labels, about)
    found = several.prediction([0.6, 0.4, 0.5], [0, 2, 1], None)
    assert (found.label, found.probability) == (classifier.labels[2], 0.5)
    assert found.labels == [classifier.labels[2], classifier.labels[1]]
    none = Classifier(classifier.model, classifier.preprocess, classifier.labels, {**about, "abstain": 0.7})
    assert none.prediction([0.6, 0.4, 0.5], [0, 2, 1], None).label is None
    assert none.prediction([0.6, 0.4, 0.5], [0, 2, 1], None).probability == 0.6
    assert none.limits == [0.9, 0.7, 0.7]
