"""Grad-CAM against pytorch-grad-cam; gradient-weighted rollout against autograd."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import randomize
from tests.test_vit import inputs, tiny
from vitreous import inspection
from vitreous.errors import ModelError
from vitreous.inspection import gradients
from vitreous.models.architecture import ResNetConfig
from vitreous.models.resnet import ResNet


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("changes", [{}, {"registers": 2}, {"pooling": "gap"}, {"distilled": True}], ids=str)
@pytest.mark.parametrize("layer", [-1, 0])
def test_grad_cam_is_pytorch_grad_cams(changes: dict[str, Any], layer: int) -> None:
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.image import scale_cam_image
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    model = tiny(**changes)
    x = inputs(model)
    prefix, grid = model.config.prefix, model.config.grid
    with GradCAM(
        model=model,
        target_layers=[model.blocks[layer].norm1],
        reshape_transform=lambda t: t[:, prefix:].unflatten(1, grid).permute(0, 3, 1, 2),
    ) as peer:
        theirs = peer(input_tensor=x, targets=[ClassifierOutputTarget(3), ClassifierOutputTarget(1)])
    ours = inspection.grad_cam(model, x, torch.tensor([3, 1]), layer=layer).numpy()
    size = (x.shape[3], x.shape[2])  # it scales to [0, 1] before and after the resize
    np.testing.assert_allclose(scale_cam_image(scale_cam_image(ours, size)), theirs, atol=1e-4)
    assert ours.max() > 0


def test_grad_cam_of_a_cnn_is_pytorch_grad_cams() -> None:
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.image import scale_cam_image
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    model = ResNet(ResNetConfig(layers=(1, 1), stem_width=32, num_classes=4, preactivation=False))
    randomize(model)
    x = torch.randn(2, 3, 64, 48)
    with GradCAM(model=model, target_layers=[model.stages]) as peer:
        theirs = peer(input_tensor=x, targets=[ClassifierOutputTarget(2)] * 2)
    ours = inspection.grad_cam(model, x, torch.tensor([2, 2])).numpy()
    np.testing.assert_allclose(scale_cam_image(scale_cam_image(ours, (48, 64))), theirs, atol=1e-4)


@pytest.mark.parametrize(
    "changes", [{}, {"registers": 2}, {"positions": "rope"}, {"positions": "relative"}], ids=str
)
def test_gradient_rollout_against_autograd(changes: dict[str, Any]) -> None:
    """The maps' gradients are computed from dO Vᵀ; autograd through explicit attention must agree."""
    model = tiny(**changes)
    x, classes = inputs(model), torch.tensor([4, 2])
    geometry = model.geometry()
    z, maps = model.embed(x), []
    for block in model.blocks:
        normed = block.norm1(z)
        attention = block.attn.probabilities(normed, geometry)
        maps.append(attention)
        values = block.attn.project(normed, geometry)[2]
        z = z + block.ls1(block.attn.proj((attention @ values).transpose(1, 2).flatten(2)))
        z = z + block.ls2(block.mlp(block.norm2(z)))
    score = model.forward_head(model.norm(z)).gather(1, classes[:, None]).sum()
    slopes = torch.autograd.grad(score, maps)
    count = model.config.tokens
    for i, found in enumerate(inspection.gradient_rollout(model, x, classes)):
        reached = torch.eye(count)
        for attention, slope in zip(maps, slopes, strict=True):
            reached = reached + (attention[i] * slope[i]).clamp(min=0).mean(0) @ reached
        expected = reached[0, model.config.prefix :].reshape(model.config.grid)
        torch.testing.assert_close(found, expected / expected.sum(), rtol=1e-3, atol=1e-5)


def test_gradients_leave_no_trace_and_work_on_frozen_models() -> None:
    model = tiny(dropout=0.5).train()
    x, classes = inputs(model), torch.tensor([0, 1])
    expected = gradients.explain(model, x, classes)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    frozen = copy.deepcopy(model).requires_grad_(False)
    with torch.no_grad():
        found = gradients.explain(frozen, x, classes)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("training", [False, True])
def test_what_others_compute_meanwhile_is_not_seen(training: bool) -> None:
    """A server predicts with the model whose maps it draws, in another thread."""
    model = tiny(dropout=0.5).train(training)
    x, classes = inputs(model), torch.tensor([0, 1])
    expected = gradients.explain(model, x, classes)
    modes: list[bool] = []

    def predict(*_: object) -> None:
        if not modes:  # its own call comes here as well
            modes.append(model.training)
            with torch.no_grad():
                model(x[:1])

    model.blocks[-1].norm2.register_forward_hook(predict)  # after those of all layers before it
    found = gradients.explain(model, x, classes)
    assert modes == [training]
    torch.testing.assert_close(found, expected)


def test_classes_that_a_model_lacks_are_refused() -> None:
    headless = tiny(num_classes=0)
    with pytest.raises(ModelError, match="this model has no classes"):
        inspection.grad_cam(headless, inputs(headless), torch.tensor([0, 0]))
    model = tiny()
    with pytest.raises(ModelError, match=r"classes \[5, 0\] don't fit: give one number per image, 0 to 4"):
        inspection.gradient_rollout(model, inputs(model), torch.tensor([5, 0]))
    with pytest.raises(ModelError, match="layer 2 is out of range: the model has 2 blocks"):
        inspection.grad_cam(model, inputs(model), torch.tensor([1, 0]), layer=2)
