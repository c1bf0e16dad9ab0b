"""Norms, similarity, artefact tokens and CKA against numpy, scikit-learn and definitions."""

from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity
from torch import Tensor

from tests.test_vit import inputs, tiny
from vitreous import inspection
from vitreous.errors import ModelError
from vitreous.inspection import tokens


def test_norms_and_similarity_are_numpys() -> None:
    model = tiny(registers=2)
    x = inputs(model)
    layers = [layer.detach().numpy() for layer in model.forward_intermediates(x)]
    norms, alike = inspection.token_norms(model, x), inspection.token_similarity(model, x)
    for i, layer in enumerate(layers):
        np.testing.assert_allclose(norms[:, i], np.linalg.norm(layer, axis=-1), rtol=1e-5)
        for b in range(2):
            cosines = cosine_similarity(layer[b, 3:])
            assert alike[b, i].item() == pytest.approx(cosines[~np.eye(6, dtype=bool)].mean(), abs=1e-5)


def test_artefact_tokens_are_found_and_ordinary_ones_are_not() -> None:
    norms = torch.rand(4, 196) + 10
    norms[2, [5, 77]] = 80
    assert tokens.outliers(norms).nonzero().tolist() == [[2, 5], [2, 77]]


def test_cka_against_its_definition() -> None:
    """The closed form against the U-statistic that it stands for: a loop over quadruples of samples."""
    first, second = torch.randn(12, 5).double(), torch.randn(12, 9).double()
    second[:, :3] += first[:, :3]
    K, L = (x @ x.mT for x in (first - first.mean(0), second - second.mean(0)))

    def slow(a: Tensor, b: Tensor) -> float:
        total, count = 0.0, 0
        for i, j, q, r in permutations(range(12), 4):
            total += float(a[i, j] * (b[i, j] + b[q, r] - 2 * b[i, q]))
            count += 1
        return total / count

    expected = slow(K, L) / (slow(K, K) * slow(L, L)) ** 0.5
    assert inspection.cka([first], [second]).item() == pytest.approx(expected, abs=1e-5)


def test_cka_ignores_rotation_and_scale_and_finds_nothing_in_noise() -> None:
    x = torch.randn(200, 64)
    turn = torch.linalg.qr(torch.randn(64, 64)).Q
    assert inspection.cka([x], [3 * x @ turn]).item() == pytest.approx(1, abs=1e-4)
    assert abs(inspection.cka([x], [torch.randn(200, 64)]).item()) < 0.05
    with pytest.raises(ModelError, match="CKA needs at least 4 samples"):
        inspection.cka([x[:3]])
