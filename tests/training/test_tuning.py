"""Partial tuning: what learns and what does not, and LoRA merged equal to LoRA unmerged."""

from typing import Any

import pytest
import torch

from tests.test_vit import inputs, tiny
from vitreous.errors import ModelError
from vitreous.models import zoo
from vitreous.models.architecture import ResNetConfig
from vitreous.models.resnet import ResNet
from vitreous.models.vit import VisionTransformer
from vitreous.training import tuning


def trained(model: VisionTransformer, steps: int = 3) -> VisionTransformer:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs(model)).square().mean().backward()
        optimizer.step()
    return model.eval()


def changed(tune: str, **options: Any) -> set[str]:
    model = tiny(**options)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tuning.apply(model, tune)
    after = tuning.merged(trained(model).state_dict())
    assert after.keys() == before.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_full_changes_everything_and_head_only_the_head() -> None:
    assert len(changed("full")) == len(tiny().state_dict())
    assert changed("head") == {"head.weight", "head.bias"}
    assert changed("head", distilled=True) == {
        "head.weight",
        "head.bias",
        "head_dist.weight",
        "head_dist.bias",
    }


def test_the_last_blocks_learn_with_norm_and_head() -> None:
    names = changed("last:1")
    assert all(name.startswith(("blocks.1.", "norm.", "head.")) for name in names)
    assert any(name.startswith("blocks.1.attn") for name in names)


def test_last_counts_from_the_end() -> None:
    for count in (1, 2):
        names = changed(f"last:{count}", depth=3)
        learned = {name.split(".")[1] for name in names if name.startswith("blocks.")}
        assert learned == {str(block) for block in range(3 - count, 3)}


def test_lora_changes_the_dense_layers_and_the_head() -> None:
    names = changed("lora")
    dense = {f"blocks.{i}.{layer}.weight" for i in range(2) for layer in tuning.LAYERS}
    assert names == dense | {"head.weight", "head.bias"}


@pytest.mark.parametrize(("tune", "rank"), [("lora", 8), ("lora:2", 2)])
def test_lora_is_of_rank_eight_unless_another_is_given(tune: str, rank: int) -> None:
    model = tiny()
    tuning.apply(model, tune)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if "lora_a" in name}
    assert len(shapes) == 8 and all(shape[1] == rank for shape in shapes.values())
    assert all(shape[0] == (3 if "qkv" in name else 1) for name, shape in shapes.items())


def test_an_update_starts_at_zero_with_factors_that_keep_the_inputs_size() -> None:
    """arXiv 2106.09685: B is zero, A random; its outputs vary as much as the inputs."""
    layer = tuning.LoRALinear(torch.nn.Linear(400, 30), rank=100, parts=1)
    inputs = torch.randn(64, 400)
    assert not layer.lora_b.any()
    assert torch.nn.functional.linear(inputs, layer.lora_a[0]).std().item() == pytest.approx(1.0, abs=0.05)


def test_the_share_that_learns_is_told_however_small() -> None:
    """Of a head of seven classes on ViT-Ti/16 it is no "0.0 %"."""
    model = zoo.create_model("ViT-Ti/16", num_classes=7)
    assert tuning.apply(model, "head") == "1,351 of 5,525,767 parameters (0.024 %)"
    assert tuning.apply(tiny(), "full").endswith("(100.0 %)")


@pytest.mark.parametrize("tune", ["lora", "lora:2"])
@pytest.mark.parametrize(
    "changes", [{}, {"activation": "swiglu", "layer_scale": 0.5}, {"qkv_bias": False}], ids=str
)
def test_merged_equals_unmerged(tune: str, changes: dict[str, Any]) -> None:
    model = tiny(**changes)
    x = inputs(model)
    with torch.no_grad():
        before = model(x)
    said = tuning.apply(model, tune)
    assert "parameters (" in said
    with torch.no_grad():
        torch.testing.assert_close(model(x), before, rtol=0, atol=1e-6)  # B starts at zero
    trained(model)
    plain = tiny(**changes)
    plain.load_state_dict(tuning.merged(model.state_dict()), strict=True)
    with torch.no_grad():
        assert (model(x) - before).abs().max() > 1e-3
        torch.testing.assert_close(plain(x), model(x), rtol=0, atol=1e-5)
        expected = plain(x)
        model.load_state_dict(tuning.unmerged(plain.state_dict(), model), strict=True)
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)


def test_an_update_of_qkv_can_have_full_rank_of_its_parts() -> None:
    """Each of q, k and v has factors of its own: the fused update has three times the rank."""
    model = tiny()
    tuning.apply(model, "lora:2")
    before = model.blocks[0].attn.qkv.weight.clone()
    trained(model)
    update = tuning.merged(model.state_dict())["blocks.0.attn.qkv.weight"] - before
    assert torch.linalg.matrix_rank(update, rtol=1e-4).item() == 6


@pytest.mark.parametrize("tune", ["half", "last", "last:0", "head:3", "lora:x", "last:7"])
def test_other_words_are_refused(tune: str) -> None:
    with pytest.raises(ModelError):
        tuning.apply(tiny(), tune)


def test_a_resnet_is_tuned_full_or_by_its_head() -> None:
    model = ResNet(ResNetConfig(layers=(1,), stem_width=32, num_classes=3))
    assert tuning.apply(model, "head").startswith("387 of")
    with pytest.raises(ModelError, match="full or by its head"):
        tuning.apply(model, "lora")


def test_what_learning_costs_in_forward_passes() -> None:
    config = zoo.get_config("ViT-Ti/16")
    found = [tuning.passes(config, tune) for tune in ("full", "lora", "last:12", "last:6", "head")]
    assert found == [3.0, 2.0, 3.0, 2.0, 1.0]
    assert tuning.passes(zoo.get_config("BiT-R50x1"), "head") == 1.0
