"""Classifiers: from any source and any kind of picture to labels, the same ones after every save."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import vitreous
from tests.conftest import FIXTURES, randomize
from tests.test_checkpoint import sample
from vitreous import checkpoint, predict
from vitreous.config import Preprocessing
from vitreous.data.augment import EvaluationTransform
from vitreous.errors import CheckpointError, DataError, ModelError
from vitreous.models import zoo


@pytest.fixture
def classifier() -> predict.Classifier:
    config = {"image_size": 32, "patch_size": 8, "width": 32, "depth": 2, "heads": 4, "mlp_width": 64}
    model = randomize(zoo.create_model("ViT-B/16", **config, num_classes=3))
    preprocessing = Preprocessing(
        image_size=(32, 32), resize_size=(36, 36), mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3)
    )
    transform = EvaluationTransform(preprocessing, (8, 8))
    return predict.Classifier(model=model, preprocess=transform, labels=["cat", "dog", "<script>"])


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def test_every_kind_of_picture_gives_the_same_prediction(
    classifier: predict.Classifier, picture: Path
) -> None:
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
    classifier: predict.Classifier, picture: Path, tmp_path: Path, layout: str, name: str
) -> None:
    classifier.save(tmp_path / name, layout=layout)
    again = vitreous.load(tmp_path / name)
    assert again.labels == classifier.labels
    assert again.preprocess.preprocessing == classifier.preprocess.preprocessing
    ours, theirs = classifier.predict([picture])[0], again.predict([picture])[0]
    assert (theirs.label, theirs.probability) == (ours.label, pytest.approx(ours.probability, abs=1e-6))


def test_a_run_folder_is_its_best_checkpoint(classifier: predict.Classifier, tmp_path: Path) -> None:
    classifier.save(tmp_path / "run" / "best.safetensors")
    assert vitreous.load(tmp_path / "run").labels == classifier.labels


def test_loading_for_another_task_says_what_changed(
    classifier: predict.Classifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


def test_the_same_labels_keep_the_head(classifier: predict.Classifier, tmp_path: Path) -> None:
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


def test_wrong_input_is_one_clear_line(classifier: predict.Classifier, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("not a picture")
    with pytest.raises(DataError, match=r"text\.jpg"):
        classifier.predict([tmp_path / "text.jpg"])
    with pytest.raises(DataError, match="a float is no picture"):
        classifier.predict([1.5])
    with pytest.raises(CheckpointError, match="does not exist"):
        vitreous.load(tmp_path / "missing.safetensors")
    with pytest.raises(ModelError, match="2 labels for 3 classes"):
        vitreous.load(FIXTURES / "sealed_v1.safetensors", labels=["a", "b"], num_classes=3)
    headless = vitreous.load(FIXTURES / "sealed_v1.safetensors", num_classes=0)
    with pytest.raises(ModelError, match="has no classes"):
        headless.predict(np.zeros((16, 24, 3), np.uint8))
