"""One pass shows what the functions compute one by one; models at other sizes."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.test_vit import SWITCHES, inputs, tiny
from vitreous import inspection
from vitreous.inspection import study, tokens
from vitreous.models.vit import VisionTransformer
from vitreous.models.zoo import get_config

IMAGES = [switch for switch in SWITCHES if "frames" not in switch]


@pytest.mark.parametrize("changes", [*IMAGES, {"frames": 2}], ids=str)
def test_one_pass_shows_what_the_functions_compute(changes: dict[str, Any]) -> None:
    model = tiny(**changes)
    x = inputs(model)
    observed = study.observe(model, x, cells=(2, 3), discard=0.2)
    with torch.no_grad():
        outputs = model(x)
    for i, each in enumerate(observed):
        np.testing.assert_allclose(each.output, outputs[i], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(each.rollout, inspection.rollout(model, x, discard=0.2)[i], rtol=1e-4)
        np.testing.assert_allclose(each.heads, inspection.head_maps(model, x)[i], rtol=1e-4)
        np.testing.assert_allclose(each.norms, inspection.token_norms(model, x)[i], rtol=1e-4)
        np.testing.assert_allclose(each.similarity, inspection.token_similarity(model, x)[i], atol=1e-5)
        for mine, layer in zip(each.features, tokens.layer_features(model, x, (2, 3)), strict=True):
            np.testing.assert_allclose(mine, layer[i], rtol=1e-4, atol=1e-5)
    both = np.mean([each.distance for each in observed], axis=0)
    np.testing.assert_allclose(both, inspection.attention_distance(model, x), rtol=1e-4)
    both = np.mean([each.entropy for each in observed], axis=0)
    np.testing.assert_allclose(both, inspection.attention_entropy(model, x), rtol=1e-4)


@pytest.mark.parametrize("positions", ["learned", "learned2d", "sincos2d", "rope", "relative"])
def test_a_model_at_another_size_shares_its_weights(positions: str) -> None:
    model = tiny(positions=positions)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    wide = study.at_size(model, (8, 48))
    assert isinstance(wide, VisionTransformer) and wide.config.grid == (1, 6)
    assert wide.blocks[0].mlp.fc1.weight is model.blocks[0].mlp.fc1.weight
    assert study.observe(wide, torch.randn(1, 3, 8, 48))[0].rollout.shape == (1, 6)
    assert model.config.grid == (2, 3)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_own_aspect_never_takes_more_patches() -> None:
    config = get_config("ViT-B/16")
    assert study.own_aspect(config, 640, 480) == (192, 256)
    assert study.own_aspect(config, 100, 100) == (224, 224)
    for width, height in [(1, 5000), (5000, 1), (427, 640), (3, 2)]:
        rows, columns = study.own_aspect(config, width, height)
        assert rows % 16 == columns % 16 == 0 and 0 < rows * columns <= 224 * 224
