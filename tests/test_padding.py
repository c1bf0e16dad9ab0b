"""Padded pictures: every verb leaves the padding out as evaluation does, of a ViT and of a hybrid."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from tests.conftest import randomize
from tests.serve_client import client, post, wait_until_ready
from vitreous import report
from vitreous.config import Preprocessing
from vitreous.data import open_data
from vitreous.data.augment import EvaluationTransform
from vitreous.errors import ModelError
from vitreous.evals import outputs
from vitreous.export import export
from vitreous.export.graph import Graph
from vitreous.export.proof import DisagreementError
from vitreous.inspection import attention_distance, attention_maps, rollout
from vitreous.inspection.faithfulness import removal_curves
from vitreous.models.architecture import ResNetConfig, ViTConfig
from vitreous.models.zoo import build
from vitreous.predict import Classifier, load
from vitreous.predict.inputs import find
from vitreous.predict.stream import predict_all

pytestmark = pytest.mark.usefixtures("one_registry")
TRUNK = ResNetConfig(layers=(1,), stem_width=32, num_classes=0, preactivation=False, same_padding=True)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"patch_size": (8, 8), "pooling": "gap"},
    "hybrid": {"patch_size": (2, 2), "stem": TRUNK},  # a patch is 2 cells of the trunk, 8 pixels
}


def padding_classifier(kind: str) -> Classifier:
    config = ViTConfig(
        image_size=(32, 32), width=32, depth=2, heads=4, mlp_width=64, num_classes=3, **KINDS[kind]
    )
    preprocessing = Preprocessing(
        image_size=(32, 32), resize="pad", mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3)
    )
    model = randomize(build(config))
    about = {"calibration": {"temperature": 1.7}}
    return Classifier(model, EvaluationTransform(preprocessing, config.step), ["a", "b", "c"], about)


@pytest.fixture(params=KINDS)
def classifier(request: pytest.FixtureRequest) -> Classifier:
    return padding_classifier(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Nine pictures in class folders: tall, wide and square."""
    generator = np.random.default_rng(0)
    sizes = [(64, 20), (20, 64), (40, 40), (8, 60), (60, 8), (48, 30), (30, 48), (64, 12), (33, 64)]
    for number, size in enumerate(sizes):
        path = tmp_path / "data" / "abc"[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 255, (*size, 3), dtype=np.uint8)).save(path)
    return tmp_path / "data"


def evaluated(classifier: Classifier, folder: Path) -> tuple[list[Path], np.ndarray]:
    """Return the files and the logits that `vitreous evaluate` computes of them."""
    _, split = open_data(str(folder)).part("all")
    found = outputs.logits(classifier.model, split, classifier.preprocess.preprocessing)
    files = [folder / split.name(int(row)) for row in found.indices]
    return files, found.values


def expected(logits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(logits / 1.7).softmax(-1).numpy()


def test_predict_is_evaluations_answer(classifier: Classifier, folder: Path) -> None:
    files, logits = evaluated(classifier, folder)
    best = expected(logits).max(1)
    unmasked = classifier.collate([classifier.prepare(file) for file in files]).images
    assert np.abs(classifier.probabilities(unmasked).numpy().max(1) - best).max() > 0.02, "a mask must matter"
    for found in (
        classifier.predict(files),
        list(predict_all(classifier, find([str(file) for file in files]), batch=4)),
    ):
        np.testing.assert_allclose([each.probability for each in found], best, atol=1e-5)


def test_a_sealed_file_keeps_it(classifier: Classifier, folder: Path, tmp_path: Path) -> None:
    files, logits = evaluated(classifier, folder)
    again = load(classifier.save(tmp_path / "padded.safetensors"))
    found = [each.probability for each in again.predict(files)]
    np.testing.assert_allclose(found, expected(logits).max(1), atol=1e-5)


def test_the_server_gives_the_same(classifier: Classifier, folder: Path) -> None:
    files, logits = evaluated(classifier, folder)
    with client(classifier, hosts=("testserver",)) as server:
        wait_until_ready(server)
        form = [("image", (file.name, file.read_bytes())) for file in files]
        found = server.post("/predict", files=form).json()["predictions"]
        np.testing.assert_allclose(
            [each["probability"] for each in found], expected(logits).max(1), atol=1e-5
        )
        maps = post(server, files[0].read_bytes(), path="/attention?head=all").json()["maps"]
    images, mask = classifier.collate([classifier.prepare(files[0])])
    assert mask is not None
    with torch.no_grad():
        own = attention_maps(classifier.model, images, mask)[0, -1]
    first = classifier.model.config.prefix
    np.testing.assert_allclose(np.array(maps).reshape(4, -1), own[:, 0, first:], atol=1e-5)
    assert (np.array(maps).reshape(4, -1)[:, ~mask[0].numpy()] == 0).all()


@pytest.mark.parametrize(
    ("classifier", "pixels"),
    [("plain", False), ("plain", True), ("hybrid", False)],  # pixels become images in one way
    indirect=["classifier"],
)
def test_an_export_computes_the_mask_from_the_pictures_size(
    classifier: Classifier, folder: Path, tmp_path: Path, pixels: bool
) -> None:
    files, logits = evaluated(classifier, folder)
    for name in ("model.onnx", "model.pt2"):
        assert export(classifier, tmp_path / name, pixels=pixels).largest_difference < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    names = [each.name for each in session.get_inputs()]
    assert names == ["pixels" if pixels else "images", "size"]
    transform = classifier.preprocess
    for file, row in zip(files, expected(logits), strict=True):
        fitted = transform.fitted(Image.open(file))
        canvas = transform.padded(fitted)
        given = canvas if pixels else transform.normalized(canvas).numpy()
        size = np.array([fitted.shape[:2]])
        found = session.run(["probabilities"], {names[0]: given[None], "size": size})[0]
        np.testing.assert_allclose(found[0], row, atol=1e-5)


def test_half_precision_leaves_the_padding_out(classifier: Classifier, tmp_path: Path) -> None:
    found = export(classifier, tmp_path / "half.onnx", precision="fp16")
    assert found.largest_difference < 1e-2


def test_the_proof_sees_a_mask_that_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Graph.mask
    monkeypatch.setattr(Graph, "mask", lambda self, size: original(self, size) | True)
    with pytest.raises(DisagreementError, match="was not written"):
        export(padding_classifier("plain"), tmp_path / "model.onnx")


@pytest.mark.usefixtures("blank_figures")
def test_inspect_leaves_the_padding_out(classifier: Classifier, folder: Path, tmp_path: Path) -> None:
    files, logits = evaluated(classifier, folder)
    source = classifier.save(tmp_path / "padded.safetensors")
    found = report.inspect(source, [str(file) for file in files], tmp_path / "out")
    shown = [each["probability"] for each in found["images"]]
    np.testing.assert_allclose(shown, expected(logits).max(1), atol=1e-5)
    images, mask = classifier.collate([classifier.prepare(file) for file in files])
    assert mask is not None
    rollouts = rollout(classifier.model, images, mask)
    for each, own, seen in zip(found["images"], rollouts, mask, strict=True):
        for name in each["maps"]:
            assert (np.array(each["maps"][name]).flatten()[~seen.numpy()] == 0).all(), name
        np.testing.assert_allclose(each["maps"]["rollout"], own, atol=1e-3)
    far = attention_distance(classifier.model, images, mask)
    np.testing.assert_allclose(found["attention_distance"]["values"], far, rtol=2e-3)


def test_deletion_removes_an_images_own_patches_alone() -> None:
    classifier = padding_classifier("plain")
    mask = torch.ones(2, 16, dtype=torch.bool)
    mask[0, 6:] = False
    images, classes = torch.randn(2, 3, 32, 32), torch.tensor([0, 2])
    order = torch.rand(2, 16).argsort(1)
    (curve,) = removal_curves(classifier.model, images, [order], classes, 6, mask=mask)
    for row, visible in enumerate((6, 16)):
        own = [place for place in order[row].tolist() if mask[row, place]]
        for step, gone in enumerate(np.linspace(0, visible - 1, 6).round().astype(int)):
            left = torch.zeros(1, 16, dtype=torch.bool)
            left[0, own[gone:]] = True
            with torch.no_grad():
                said = classifier.model(images[row : row + 1], left).softmax(-1)[0, classes[row]]
            torch.testing.assert_close(curve[row, step], said, rtol=1e-4, atol=1e-5)


def test_a_resnet_refuses_padding_in_one_line(folder: Path, tmp_path: Path) -> None:
    config = ResNetConfig(layers=(1, 1), stem_width=32, image_size=(32, 32), num_classes=3)
    preprocessing = Preprocessing(image_size=(32, 32), resize="pad")
    model = randomize(build(config))
    resnet = Classifier(model, EvaluationTransform(preprocessing, config.step), ["a", "b", "c"])
    for attempt in (
        lambda: resnet.predict(next(folder.glob("a/*.png"))),
        lambda: evaluated(resnet, folder),
        lambda: export(resnet, tmp_path / "model.onnx"),
    ):
        with pytest.raises(ModelError, match=r"a ResNet can't leave out padding .*: use resize cover"):
            attempt()
