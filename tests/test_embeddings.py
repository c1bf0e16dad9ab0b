"""What the weights show: filters against numpy's SVD, similarities against scikit-learn."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity

from tests.test_vit import TRUNK, inputs, tiny
from vitreous import inspection
from vitreous.inspection.embeddings import _first_filters as first_filters
from vitreous.models.architecture import ResNetConfig
from vitreous.models.positions import rotate
from vitreous.models.resnet import ResNet


def test_filters_are_numpys_singular_vectors() -> None:
    model = tiny()
    found = inspection.filters(model, 6)
    matrix = model.patch_embed.proj.weight.detach().double().numpy().reshape(32, -1)
    _, values, vectors = np.linalg.svd(matrix - matrix.mean(axis=0), full_matrices=False)
    ours = (found.tiles - 0.5).transpose(0, 3, 1, 2).reshape(6, -1)
    for mine, theirs in zip(ours, vectors, strict=False):
        assert abs(np.dot(mine / np.linalg.norm(mine), theirs)) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(found.variance, (values**2 / (values**2).sum())[:6], rtol=1e-5)
    np.testing.assert_allclose(found.variance, PCA(6).fit(matrix).explained_variance_ratio_, rtol=1e-5)
    assert found.tiles.shape == (6, 8, 8, 3) and found.tiles.min() >= 0 and found.tiles.max() <= 1


@pytest.mark.parametrize(
    ("changes", "shape", "about"),
    [
        ({"in_channels": 1}, (28, 8, 8, 1), "patch embedding"),
        ({"in_channels": 5}, (28, 8, 8, 1), "patch embedding, mean of 5 channels"),
        ({"frames": 4, "tubelet": 2}, (28, 8, 8, 3), "patch embedding, mean over the tubelet's frames"),
        (
            {"patch_size": (2, 2), "stem": TRUNK},
            (28, 7, 7, 3),
            "standardised filters of the root convolution",
        ),
    ],
)
def test_filters_of_every_kind_of_model(changes: dict[str, Any], shape: tuple[int, ...], about: str) -> None:
    found = inspection.filters(tiny(**changes))
    assert (found.tiles.shape, found.about) == (shape, about)


def test_filters_of_a_hybrid_are_the_ones_its_root_applies() -> None:
    model = tiny(patch_size=(2, 2), stem=TRUNK)
    stem = model.patch_embed.backbone.stem.conv
    impulse = torch.zeros(1, 3, 15, 15)
    impulse[0, 1, 7, 7] = 1.0  # what comes out is the second channel of the filters, mirrored
    with torch.no_grad():
        strided = stem(impulse)
    weight, _ = first_filters(model)
    # TensorFlow's padding puts the impulse under every second tap: compare those that it meets.
    taps = weight[:, 1].flip(1, 2)
    assert any(
        torch.allclose(strided[0, :, 2:5, 2:5], taps[:, i : i + 6 : 2, j : j + 6 : 2], atol=1e-4)
        for i in (0, 1)
        for j in (0, 1)
    )


@pytest.mark.parametrize("kind", ["learned", "sincos2d", "learned2d"])
def test_similarity_of_added_positions_is_scikit_learns(kind: str) -> None:
    model = tiny(positions=kind, registers=2)
    found = inspection.position_similarity(model)
    with torch.no_grad():  # what embed adds to the patches, however it is stored
        flat = tiny(positions="none", registers=2)
        flat.load_state_dict(model.state_dict(), strict=False)
        x = inputs(model)
        added = (model.embed(x) - flat.embed(x))[0, 3:].double().numpy()
    np.testing.assert_allclose(found.values.reshape(6, 6), cosine_similarity(added), atol=1e-5)
    assert found.values.shape == (2, 3, 2, 3)


def test_similarity_of_rotations_is_how_they_turn_a_vector() -> None:
    model = tiny(positions="rope", image_size=(24, 32))
    found = inspection.position_similarity(model).values.reshape(12, 12)
    vector = torch.ones(1, 8) / 8**0.5
    turned = torch.cat([rotate(vector, model.cosine[i], model.sine[i]) for i in range(1, 13)])
    np.testing.assert_allclose(found, (turned @ turned.mT).numpy(), atol=1e-5)


def test_similarity_of_offsets_depends_on_the_offset_alone() -> None:
    model = tiny(positions="relative")
    values = inspection.position_similarity(model).values
    assert np.allclose(np.diagonal(values.reshape(6, 6)), 1)
    assert values[0, 0, 1, 1] == pytest.approx(values[0, 1, 1, 2])
    tables = [block.attn.offset_embed.detach().numpy() for block in model.blocks]
    row = int(model.offsets[1, 1 + 5])  # from the first patch to the last
    still = int(model.offsets[1, 1])
    expected = np.mean([cosine_similarity(table[[row]], table[[still]])[0, 0] for table in tables])
    assert values[0, 0, 1, 2] == pytest.approx(expected, abs=1e-5)


def test_no_positions_no_similarity() -> None:
    assert inspection.position_similarity(tiny(positions="none")) is None
    assert inspection.position_similarity(ResNet(ResNetConfig(layers=(1,), stem_width=32))) is None
