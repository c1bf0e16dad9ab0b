"""Deletion and insertion curves: what the model says of the patches that are left."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.test_vit import inputs, tiny
from vitreous import inspection


@pytest.mark.parametrize(
    "changes",
    [{}, {"positions": "rope"}, {"positions": "relative"}, {"pooling": "gap"}, {"registers": 2}],
    ids=str,
)
def test_curves_are_predictions_with_masked_patches(changes: dict[str, Any]) -> None:
    model = tiny(**changes)
    x, classes = inputs(model), torch.tensor([1, 3])
    relevance = torch.rand(2, 2, 3)
    found = inspection.deletion_insertion(model, x, relevance, classes, steps=6)
    for step in range(6):
        for curve, largest in ((found.deletion, True), (found.insertion, False)):
            mask = torch.ones(2, 6, dtype=torch.bool)
            gone = relevance.flatten(1).topk(step, largest=largest).indices
            mask.scatter_(1, gone, False)
            with torch.no_grad():
                expected = model(x, mask).softmax(-1).gather(1, classes[:, None])[:, 0]
            torch.testing.assert_close(curve[:, step], expected, rtol=1e-4, atol=1e-5)
    assert found.removed.tolist() == pytest.approx([i / 6 for i in range(6)])


def test_a_model_that_looks_at_one_patch_is_judged_so() -> None:
    """Only the first patch matters: removed first, the curve falls at once; removed last, it does not."""
    model = tiny(positions="none", pooling="gap", class_token=False, num_classes=2)
    model.blocks = nn.ModuleList()
    model.norm = nn.Identity()
    model.patch_embed.proj.weight.data.zero_()
    model.patch_embed.proj.weight.data[0] = 1.0
    model.patch_embed.proj.bias.data.zero_()
    model.head.weight.data.zero_()
    model.head.weight.data[1, 0] = 1.0
    model.head.bias.data.zero_()
    x = torch.zeros(1, 3, 16, 24)
    x[..., :8, :8] = 1.0
    right = torch.tensor([[[1.0, 0, 0], [0, 0, 0]]])
    good = inspection.deletion_insertion(model, x, right, torch.tensor([1]), steps=6)
    bad = inspection.deletion_insertion(model, x, -right, torch.tensor([1]), steps=6)
    assert good.deletion[0, 1].item() == pytest.approx(0.5) and bad.deletion[0, 1].item() > 0.99
    assert good.deletion.mean() < bad.deletion.mean() and good.insertion.mean() > bad.insertion.mean()


def test_without_classes_the_features_are_compared() -> None:
    model = tiny(num_classes=0)
    found = inspection.deletion_insertion(model, inputs(model), torch.rand(2, 2, 3), steps=3)
    torch.testing.assert_close(found.deletion[:, 0], torch.ones(2))
    assert found.about == "similarity to the whole image's features"
