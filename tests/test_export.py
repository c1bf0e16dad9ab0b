"""Exports: file → label gives the same answers in every format and kind of model, or nothing is left."""

import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

from tests.conftest import digits_files, randomize, train_digits
from vitreous import cli
from vitreous.config import Preprocessing
from vitreous.data.augment import evaluation_transform
from vitreous.errors import MissingDependencyError, ModelError, VitreousError
from vitreous.export import export, formats, proof
from vitreous.export.graph import Inputs, describe
from vitreous.export.opened import Answers
from vitreous.export.openvino_format import compile_options, has_bf16
from vitreous.models.architecture import ResNetConfig, ViTConfig
from vitreous.models.zoo import build
from vitreous.predict import Classifier

pytestmark = pytest.mark.usefixtures("one_registry")
TRUNK = ResNetConfig(layers=(1,), stem_width=32, preactivation=False, same_padding=True, num_classes=0)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "distilled": {"distilled": True},
    "registers": {"registers": 2, "positioned_prefix": 1},
    "hybrid": {"stem": TRUNK, "patch_size": (2, 2), "image_size": (32, 32)},
    "gap": {"pooling": "gap", "class_token": False, "positions": "sincos2d"},
    "non-square": {"image_size": (16, 24)},
}


def classifier(**changes: Any) -> Classifier:
    shape: dict[str, Any] = {
        "image_size": (16, 16),
        "patch_size": (4, 4),
        "width": 32,
        "depth": 1,  # every block is exported alike
        "heads": 4,
    }
    config = ViTConfig(**(shape | {"mlp_width": 64, "num_classes": 5} | changes))
    preprocessing = Preprocessing(
        image_size=config.image_size, resize_size=None, mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3)
    )
    labels = ["a", "b", "c", "d", "é <ü>"]
    model = randomize(build(config))
    about = {"calibration": {"temperature": 1.7}}
    return Classifier(model, evaluation_transform(preprocessing, config.step), labels, about)  # type: ignore[arg-type]


def through_onnx(path: Path, images: list[Path]) -> tuple[list[str], np.ndarray]:
    """Go from image files to labels as somebody without vitreous would: from the file's metadata alone."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["vitreous"])
    settings = facts["preprocessing"]
    height, width = settings["image_size"]
    batch = []
    for image in images:
        mode = "L" if len(settings["mean"]) == 1 else "RGB"
        pixels = np.asarray(Image.open(image).convert(mode))
        assert pixels.shape[:2] == (height, width), "the test gives images of the model's size"
        pixels = pixels.reshape(height, width, -1)
        if facts["input"]["name"] == "images":
            scaled = (pixels / 255 - settings["mean"]) / settings["std"]
            pixels = scaled.transpose(2, 0, 1).astype(np.float32)
        batch.append(pixels)
    found = np.asarray(session.run(["probabilities"], {facts["input"]["name"]: np.stack(batch)})[0])
    return [facts["labels"][row] for row in found.argmax(1)], found


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    from sklearn.datasets import load_sample_image

    photograph = Image.fromarray(load_sample_image("china.jpg"))
    paths = []
    for row in range(12):
        paths.append(tmp_path / f"{row}.png")
        photograph.crop((40 * row, 20 * row, 40 * row + 160, 20 * row + 160)).save(paths[-1])
    return paths


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_agrees_in_pt2_and_onnx(kind: str, pictures: list[Path], tmp_path: Path) -> None:
    source = classifier(**KINDS[kind])
    for name in ("model.pt2", "model.onnx"):
        found = export(source, tmp_path / name, images=pictures, pixels=kind == "plain")
        assert found.largest_difference <= 1e-4 and found.label_agreement == 1.0
        assert found.images == 12 and (tmp_path / name).stat().st_size == found.bytes
    height, width = source.preprocess.preprocessing.image_size
    fitted = []
    for path in pictures:
        fitted.append(path.with_suffix(".fit.png"))
        Image.open(path).resize((width, height)).save(fitted[-1])
    labels, probabilities = through_onnx(tmp_path / "model.onnx", fitted)
    own = source.probabilities(*source.collate([source.prepare(path) for path in fitted])).numpy()
    np.testing.assert_allclose(probabilities, own, atol=1e-4)
    assert labels == [prediction.label for prediction in source.predict(fitted)]
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("gap", "registers", "non-square")])
def test_int8_agrees_on_the_digits(kind: str, digits: Classifier, tmp_path: Path) -> None:
    """At least 98 % of the labels on the whole test set, for a trained model of each kind with products of
    its own."""
    changes = dict(KINDS[kind])
    steps = 80 if kind == "hybrid" else 160
    source = train_digits(steps, **changes) if changes else digits
    files = digits_files(tmp_path / "digits")
    found = export(source, tmp_path / "int8.onnx", precision="int8", images=files)
    right = np.mean([p.label == path.stem[-1] for p, path in zip(source.predict(files), files, strict=True)])
    assert right > 0.8, "an untrained model's agreement would say little"
    assert found.images == len(files) > 350 and found.label_agreement >= 0.98
    assert found.bytes < sum(each.numel() * 4 for each in source.model.parameters())
    kinds = {node.op_type for node in onnx.load(tmp_path / "int8.onnx").graph.node}
    assert "MatMulInteger" in kinds


def test_fp16_of_the_digits(digits: Classifier, tmp_path: Path) -> None:
    files = digits_files(tmp_path / "digits")
    half = export(digits, tmp_path / "16.onnx", precision="fp16", images=files)
    assert half.label_agreement >= 0.99 and half.largest_difference <= 1e-2
    types = {each.data_type for each in onnx.load(tmp_path / "16.onnx").graph.initializer}
    assert onnx.TensorProto.FLOAT16 in types


def test_the_file_is_whole_portable_and_tells_no_paths(digits: Classifier, tmp_path: Path) -> None:
    found = export(digits, tmp_path / "digits.onnx", pixels=True)
    assert [path.name for path in tmp_path.iterdir()] == ["digits.onnx"] and found.images == 24
    model = onnx.load(tmp_path / "digits.onnx")
    entry = model.graph.input[0]
    assert (entry.name, entry.type.tensor_type.elem_type) == ("pixels", onnx.TensorProto.UINT8)
    assert entry.type.tensor_type.shape.dim[0].dim_param
    assert json.loads({each.key: each.value for each in model.metadata_props}["labels"]) == digits.labels
    data = (tmp_path / "digits.onnx").read_bytes()
    assert b"site-packages" not in data and str(Path.cwd()).encode() not in data


@pytest.fixture
def far_from_square(tmp_path: Path) -> list[Path]:
    """Parts of photographs in several aspects, some of them lying on their side."""
    from sklearn.datasets import load_sample_images

    turned, upright = Image.Exif(), Image.Exif()
    turned[0x0112] = 6
    boxes = [(0, 0, 640, 427), (0, 100, 640, 301), (200, 0, 333, 427), (0, 20, 599, 193), (50, 7, 350, 307)]
    parts = [(Image.fromarray(pixels), box) for pixels in load_sample_images().images for box in boxes]
    for number, (image, box) in enumerate(parts):
        image.crop(box).save(tmp_path / f"{number:02d}.jpg", exif=upright if number % 3 else turned)
    return sorted(tmp_path.glob("*.jpg"))


def test_the_snippet_of_the_docs_does_what_predict_does(
    far_from_square: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Copied literally, with photographs that are far from square: the same labels and probabilities."""
    page = (Path(__file__).parents[1] / "docs" / "export.md").read_text()
    snippet = next(each for each in page.split("```py\n")[1:] if "onnxruntime" in each).partition("```")[0]
    source = classifier()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flower.jpg").write_bytes(far_from_square[1].read_bytes())
    export(source, tmp_path / "flowers.onnx", pixels=True, images=far_from_square[:3])
    names: dict[str, Any] = {}
    exec(compile(snippet, "docs/export.md", "exec"), names)
    said = capsys.readouterr().out
    assert said.startswith(f"{source.predict(far_from_square[1])[0].label} 0.")

    def run(pixels: np.ndarray) -> np.ndarray:
        return names["session"].run(["probabilities"], {"pixels": pixels})[0][0]

    assert names["settings"]["resize"] == "cover"
    for changes in (
        {},
        {"resize_size": (21, 21), "interpolation": "bilinear"},
        {"resize_size": (18, 27)},
        {"resize": "exact", "resize_size": (18, 18)},
    ):
        names["settings"] |= changes  # what the file would say of a model with other preprocessing
        source.preprocess.preprocessing = replace(source.preprocess.preprocessing, **changes)
        apart = []
        for file, answer in zip(far_from_square, source.predict(far_from_square), strict=True):
            found, expected = run(names["prepare"](file)), [dict(answer.top)[name] for name in source.labels]
            assert source.labels[found.argmax()] == answer.label
            np.testing.assert_allclose(found, expected, atol=1e-5)
            stretched = run(np.asarray(Image.open(file).convert("RGB").resize((16, 16)))[None])
            apart.append(np.abs(stretched - expected).max())
        assert max(apart) > 0.05  # what the page did before: other probabilities


def test_a_file_that_disagrees_is_not_left(
    digits: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent mean/std mismatch (timm#2463) is what the proof is for: make one, and it must be caught."""
    original = describe

    def wrong(*arguments: Any, **options: Any) -> dict[str, Any]:
        facts = original(*arguments, **options)
        facts["preprocessing"]["mean"] = (0.5,)
        return facts

    monkeypatch.setattr(sys.modules["vitreous.export"], "describe", wrong)
    for name in ("a.onnx", "a.pt2"):
        with pytest.raises(proof.DisagreementError, match="was not written"):
            export(digits, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_wrong_weights_and_swapped_labels_are_caught(digits: Classifier, tmp_path: Path) -> None:
    files = [path.read_bytes() for path in digits_files(tmp_path / "digits", count=20)]
    export(digits, tmp_path / "a.pt2")
    opened = formats.open_program(tmp_path / "a.pt2")
    assert proof.compare(digits, opened, files).difference < 1e-6
    swapped = Classifier(digits.model, digits.preprocess, digits.labels[::-1])
    assert proof.compare(swapped, opened, files).agreement == 0
    other = proof.compare(train_digits(width=16, heads=2), opened, files)
    assert other.difference > 1e-3
    with pytest.raises(proof.DisagreementError):
        proof.check(other, "fp32", None, tmp_path / "a.pt2")


def test_wrong_input_is_one_clear_line(
    digits: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(VitreousError, match=r"a\.txt names no format: end it with \.onnx"):
        export(digits, tmp_path / "a.txt")
    with pytest.raises(VitreousError, match="has no int8 here: use fp32"):
        export(digits, tmp_path / "a.pt2", precision="int8")
    for tolerance in (-1.0, float("nan")):
        with pytest.raises(VitreousError, match="--tolerance .* is out of range: use 0 to 1"):
            export(digits, tmp_path / "a.onnx", tolerance=tolerance)
    (tmp_path / "there.onnx").write_text("")
    with pytest.raises(VitreousError, match="exists: choose another name"):
        export(digits, tmp_path / "there.onnx")
    fresh = Classifier(build(digits.model.config), digits.preprocess, digits.labels)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="head is all zeros"):
        export(fresh, tmp_path / "fresh.onnx")
    with pytest.raises(ModelError, match="has no classes"):
        export(Classifier(digits.model, digits.preprocess, []), tmp_path / "a.onnx")
    monkeypatch.setattr(formats, "find_spec", lambda name: None if name == "openvino" else find_spec(name))
    with pytest.raises(MissingDependencyError, match=r"pip install 'vitreous\[openvino\]'"):
        export(digits, tmp_path / "a.xml")


@pytest.mark.parametrize(("name", "beside"), [("x.xml", "x.bin"), ("x.onnx", "x.onnx.data")])
def test_the_weights_beside_a_file_overwrite_nothing(
    digits: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, beside: str
) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: True)
    (tmp_path / beside).write_text("the user's own")
    with pytest.raises(VitreousError, match=f"{beside} exists: choose another name, or remove it first"):
        export(digits, tmp_path / name)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {beside: "the user's own"}


def test_the_verb_prints_its_proof(
    digits: Classifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = digits.save(tmp_path / "digits.safetensors")
    digits_files(tmp_path / "images", count=5)
    arguments = [str(saved), str(tmp_path / "a.pt2"), "--images", str(tmp_path / "images"), "--json"]
    assert cli.main(["export", *arguments]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["images"], facts["label_agreement"]) == (5, 1.0) and facts["largest_difference"] < 1e-5
    assert cli.main(["export", *arguments]) == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
def test_openvino_agrees(digits: Classifier, tmp_path: Path) -> None:
    found = export(digits, tmp_path / "digits.xml")
    assert found.largest_difference <= 1e-4 and "openvino" in found.compared_with
    assert {path.name for path in tmp_path.iterdir()} == {"digits.xml", "digits.bin"}


def test_a_runtime_that_computes_otherwise_by_default_is_said(
    digits: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO takes bf16 by itself where the processor has it: users would run what was not proven."""
    form = formats.FORMATS[".pt2"]

    def opened(path: Path) -> formats.Opened:
        proven = form.open(path)
        facts = proven.facts | {"compile": {"INFERENCE_PRECISION_HINT": "f32"}}

        def off(batch: Inputs) -> Answers:
            logits, probabilities = proven.run(batch)
            return Answers(logits, probabilities + 7e-3)

        return replace(proven, facts=facts, unasked=formats.Opened("bf16", facts, off))

    monkeypatch.setitem(formats.FORMATS, ".pt2", replace(form, open=opened))
    found = export(digits, tmp_path / "digits.pt2")
    assert found.largest_difference <= 1e-4
    assert "by default it takes bf16 here, 7.0e-03 away with 100.0% of the labels" in found.compared_with
    assert found.compared_with.endswith("compile with INFERENCE_PRECISION_HINT=f32")


@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
def test_openvinos_file_says_how_to_compile_it(digits: Classifier, tmp_path: Path) -> None:
    for precision in ("fp32", "bf16", "int8") if has_bf16() else ("fp32", "int8"):
        export(digits, tmp_path / f"{precision}.xml", precision=precision, tolerance=0.1)
        options = formats.open_openvino(tmp_path / f"{precision}.xml").facts["compile"]
        assert options == compile_options(precision)
    assert compile_options("fp32") == {"INFERENCE_PRECISION_HINT": "f32"}
