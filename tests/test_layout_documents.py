"""What stands beside weights: activations and preprocessing, read, written, or said not to be ours."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image

from tests.test_layouts import FAMILIES, images, owners_model, weights
from vitreous import layouts
from vitreous.config import Preprocessing
from vitreous.data.augment import EvaluationTransform
from vitreous.errors import LayoutError
from vitreous.layouts import huggingface
from vitreous.models.weights import build


def test_dinov2_without_its_processor_takes_dinov2s_preprocessing(tmp_path: Path) -> None:
    family = next(
        name for name, config in FAMILIES.items() if name.startswith("dinov2") and config.num_classes
    )
    layouts.write(weights(family), tmp_path / "hf", "hf")
    (tmp_path / "hf" / "preprocessor_config.json").unlink()
    _, read = layouts.read(tmp_path / "hf", {})
    assert read.preprocessing is not None
    ours = read.preprocessing
    peer = timm.get_pretrained_cfg("vit_small_patch14_dinov2.lvd142m")
    assert peer is not None
    assert (ours.mean, ours.std, ours.interpolation) == (peer.mean, peer.std, peer.interpolation)


def rewritten(
    path: Path, layout: str, family: str, name: str, change: Callable[[dict[str, Any]], Any]
) -> Path:
    """Write a model in a layout, then change one of the documents beside its weights."""
    layouts.write(weights(family), path, layout)
    document = json.loads((path / name).read_text())
    change(document)
    (path / name).write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("layout", ["hf", "timm"])
def test_an_activation_that_we_do_not_compute_is_refused(layout: str, tmp_path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["hidden_act"] = "relu"
        document["model_args"] = document.get("model_args", {}) | {"act_layer": "relu"}

    path = rewritten(tmp_path / "model", layout, "plain", "config.json", change)
    with pytest.raises(LayoutError, match="the activation 'relu' can't be computed: gelu, its tanh"):
        layouts.read(path, {})
    path = rewritten(tmp_path / "gated", "hf", "giant", "config.json", change)
    assert layouts.read(path, {})[1].config.activation == "swiglu"  # its code reads no hidden_act


@pytest.mark.parametrize(("name", "ours"), [("gelu_python", "gelu"), ("gelu_accurate", "gelu_tanh")])
def test_every_name_of_an_activation_is_read(name: str, ours: str, tmp_path: Path) -> None:
    path = rewritten(tmp_path / "hf", "hf", "plain", "config.json", lambda it: it.update(hidden_act=name))
    _, read = layouts.read(path, {})
    peer, x = owners_model("hf", path, read.config), images(read.config)
    assert read.config.activation == ours
    with torch.no_grad():
        torch.testing.assert_close(build(read).eval()(x), peer(x).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("layout", "changes", "said"),
    [
        ("hf", {"resample": 4}, "assumed, bicubic (resample 4 is not supported)"),
        ("hf", {"do_rescale": False}, "scaled to 0 to 1 (do_rescale false is not supported)"),
        ("hf", {"rescale_factor": 0.0078}, "divided by 255 (rescale_factor 0.0078 is not supported)"),
        ("timm", {"interpolation": "random"}, "bicubic (interpolation 'random' is not supported)"),
        ("timm", {"crop_mode": "border"}, "the centre cropped (crop_mode 'border' is not supported)"),
    ],
    ids=str,
)
def test_preprocessing_that_we_do_not_do_is_said(
    layout: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    name = "preprocessor_config.json" if layout == "hf" else "config.json"
    path = rewritten(
        tmp_path / "model",
        layout,
        "plain",
        name,
        lambda it: it.get("pretrained_cfg", it).update(changes),
    )
    (note,) = layouts.read(path, {})[1].notes
    assert note.startswith("preprocessing: assumed, ") and said in note


def _pixels(preprocessing: Preprocessing, folder: Path, image: Image.Image) -> tuple[np.ndarray, np.ndarray]:
    """Return what we and Hugging Face's processor (by Pillow) make of an image, as levels of 0 to 255."""
    document = huggingface._write_processor(preprocessing)
    (folder / "preprocessor_config.json").write_text(json.dumps(document))
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    ours = EvaluationTransform(preprocessing)(image).numpy()
    theirs = np.asarray(processor(image)["pixel_values"][0])
    both = [np.rint((each * 0.5 + 0.5) * 255).astype(int) for each in (ours, theirs)]
    return both[0], both[1]


@pytest.mark.parametrize("size", [(500, 375), (375, 501), (640, 427), (333, 777), (224, 224)])
@pytest.mark.parametrize("resize", ["exact", "cover"])
def test_a_processor_that_is_written_sees_our_pixels(
    tmp_path: Path, size: tuple[int, int], resize: str
) -> None:
    """Equal, but for a crop that can't be centred: Hugging Face's may lie one pixel further up or left."""
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    preprocessing = Preprocessing(resize=resize, resize_size=(256, 256), interpolation="bicubic")
    ours, theirs = _pixels(preprocessing, tmp_path, Image.fromarray(noise))
    shifted = [(0, 0), (0, 1), (1, 0)]
    height, width = ours.shape[1:]
    assert any(np.array_equal(ours[:, : height - y, : width - x], theirs[:, y:, x:]) for y, x in shifted)
    if resize == "exact" or size != (640, 427):
        assert np.array_equal(ours, theirs)
