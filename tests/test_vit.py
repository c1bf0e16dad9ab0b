"""The Vision Transformer: its equations, every switch alone and in combination, and what it refuses."""

from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.conftest import randomize
from vitreous.config import Initialization
from vitreous.errors import ModelError
from vitreous.inspection.distance import attention_distance
from vitreous.models import cost, zoo
from vitreous.models.architecture import ResNetConfig, ViTConfig
from vitreous.models.positions import sincos2d
from vitreous.models.vit import VisionTransformer

TINY: dict[str, Any] = {
    "image_size": (16, 24),
    "patch_size": (8, 8),
    "width": 32,
    "depth": 2,
    "heads": 4,
    "mlp_width": 64,
    "num_classes": 5,
}
TRUNK = ResNetConfig(layers=(1,), stem_width=32, preactivation=False, same_padding=True)
SWITCHES: list[dict[str, Any]] = [
    {"positions": "learned"},
    {"positions": "sincos2d"},
    {"positions": "learned2d"},
    {"positions": "relative"},
    {"positions": "rope"},
    {"positions": "none"},
    {"pooling": "gap"},
    {"pooling": "gap", "norm_after_pool": True},
    {"pooling": "map", "class_token": False},
    {"pooling": "cls_gap"},
    {"registers": 3},
    {"registers": 3, "positioned_prefix": 1},
    {"distilled": True},
    {"layer_scale": 1e-5},
    {"qkv_bias": False},
    {"activation": "gelu_tanh"},
    {"activation": "swiglu"},
    {"pre_logits": 16},
    {"in_channels": 5},
    {"num_classes": 0},
    {"frames": 4, "tubelet": 2},
    {"patch_size": (2, 2), "stem": TRUNK},
]


def tiny(**changes: Any) -> VisionTransformer:
    model = VisionTransformer(ViTConfig(**(TINY | changes)))
    randomize(model)
    return model


def inputs(model: VisionTransformer, batch: int = 2) -> Tensor:
    config = model.config
    clip = () if config.frames is None else (config.frames,)
    return torch.randn(batch, config.in_channels, *clip, *config.image_size)


def test_the_convolution_equals_unfold_flatten_and_multiply_by_e() -> None:
    model = tiny()
    x = inputs(model)
    patches = F.unfold(x, kernel_size=8, stride=8).mT  # (B, N, C P P): x_p of Eq. 1
    proj = model.patch_embed.proj
    expected = patches @ proj.weight.flatten(1).T + proj.bias
    torch.testing.assert_close(model.patch_embed(x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tubelet", [1, 2])
def test_a_tubelet_of_a_clip_is_projected_alike(tubelet: int) -> None:
    model = tiny(frames=4, tubelet=tubelet)
    x = inputs(model)
    tubes = x.unflatten(2, (-1, tubelet)).unflatten(4, (-1, 8)).unflatten(6, (-1, 8))
    tubes = tubes.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)  # (B, N, C t P P)
    proj = model.patch_embed.proj
    expected = tubes @ proj.weight.flatten(1).T + proj.bias
    torch.testing.assert_close(model.patch_embed(x), expected, rtol=0, atol=1e-5)
    assert model(x).shape == (2, 5)


def test_the_equations_by_hand() -> None:
    model = tiny(depth=1)
    x = inputs(model, 1)
    block = model.blocks[0]
    z = torch.cat([model.cls_token, model.patch_embed(x)], dim=1) + model.pos_embed  # Eq. 1
    q, k, v = (
        part[0].unflatten(-1, (4, 8)).transpose(0, 1) for part in block.attn.qkv(block.norm1(z)).chunk(3, -1)
    )
    heads = [torch.softmax(q[h] @ k[h].T / 8**0.5, -1) @ v[h] for h in range(4)]
    z = z + block.attn.proj(torch.cat(heads, dim=-1))  # Eq. 2
    z = z + block.mlp.fc2(F.gelu(block.mlp.fc1(block.norm2(z))))  # Eq. 3
    torch.testing.assert_close(model(x), model.head(model.norm(z)[:, 0]), rtol=0, atol=1e-5)  # Eq. 4


@pytest.mark.parametrize("switch", SWITCHES, ids=str)
def test_every_switch_computes_and_learns(switch: dict[str, Any]) -> None:
    model = tiny(**switch).train()
    logits = model(inputs(model))
    assert logits.shape == (2, 5 if model.config.num_classes else 32)
    logits.square().mean().backward()
    lonely = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert lonely == []  # every parameter that is there takes part


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(SWITCHES), min_size=2, max_size=5))
@example([{"pooling": "cls_gap"}, {"pre_logits": 16}])
def test_any_combination_computes_or_is_refused(switches: list[dict[str, Any]]) -> None:
    changes = {key: value for switch in switches for key, value in switch.items()}
    try:
        model = tiny(**changes)
    except ModelError as error:
        assert "\n" not in str(error)
        return
    with torch.no_grad():
        logits = model(inputs(model))
    assert logits.isfinite().all()
    assert cost.parameters(model.config) == sum(p.numel() for p in model.parameters())


TOGETHER: list[dict[str, Any]] = [
    {"positions": "learned", "pooling": "gap"},
    {"positions": "sincos2d", "pooling": "gap", "norm_after_pool": True, "layer_scale": 1e-5},
    {"positions": "learned2d", "registers": 3, "activation": "gelu_tanh"},
    {"positions": "relative", "pooling": "cls_gap", "qkv_bias": False},
    {"positions": "rope", "registers": 3, "positioned_prefix": 1, "activation": "swiglu"},
    {"positions": "none", "distilled": True, "in_channels": 5},
    {"pooling": "map", "class_token": False, "num_classes": 0},
    {"frames": 4, "tubelet": 2, "pre_logits": 16},
    {"patch_size": (2, 2), "stem": TRUNK},
]


def test_every_switch_is_among_those_that_are_compiled() -> None:
    for switch in SWITCHES:
        assert any(all(each in case.items() for each in switch.items()) for case in TOGETHER), switch


@pytest.mark.slow
@pytest.mark.parametrize("switches", TOGETHER, ids=str)
def test_every_switch_compiles_whole_and_exports_with_any_batch(switches: dict[str, Any]) -> None:
    model = tiny(**{"depth": 1} | switches)  # every block is compiled alike
    x = inputs(model)
    with torch.no_grad():
        expected = model(x)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), expected, rtol=0, atol=1e-5)
        exported = torch.export.export(
            model, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}}, strict=True
        )
        three = inputs(model, 3)
        torch.testing.assert_close(exported.module()(three), model(three), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"pooling": "gap"}, {"global_pool": "avg", "fc_norm": False}),
        ({"pooling": "gap", "norm_after_pool": True}, {"global_pool": "avg"}),
        ({"pooling": "map", "class_token": False}, {"global_pool": "map", "class_token": False}),
        ({"pooling": "map"}, {"global_pool": "map"}),
        ({"registers": 3}, {"reg_tokens": 3}),
        ({"positioned_prefix": 0, "registers": 2}, {"reg_tokens": 2, "no_embed_class": True}),
        ({"qkv_bias": False}, {"qkv_bias": False}),
        ({"activation": "gelu_tanh"}, {"act_layer": "gelu_tanh"}),
        ({"positions": "none"}, {"pos_embed": "none"}),
        ({"in_channels": 1}, {"in_chans": 1}),
        ({"layer_scale": 0.1}, {"init_values": 0.1}),
    ],
    ids=str,
)
def test_switches_agree_with_timms(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    model = tiny(**ours)
    peer = timm.models.VisionTransformer(
        img_size=(16, 24), patch_size=8, embed_dim=32, depth=2, num_heads=4, mlp_ratio=2, num_classes=5,
        norm_layer="layernorm", **theirs,
    ).eval()  # fmt: skip
    peer.load_state_dict(model.state_dict(), strict=True)
    x = inputs(model)
    with torch.no_grad():
        torch.testing.assert_close(model(x), peer(x), rtol=0, atol=1e-5)
        torch.testing.assert_close(model.forward_features(x), peer.forward_features(x), rtol=0, atol=1e-5)


def test_without_positions_it_is_a_bag_of_patches() -> None:
    order = torch.randperm(6)
    pooled = {}
    for kind in ("none", "learned"):
        model = tiny(positions=kind)
        x = inputs(model)
        patches = F.unfold(x, 8, stride=8)[:, :, order]
        shuffled = F.fold(patches, (16, 24), 8, stride=8)
        with torch.no_grad():
            pooled[kind] = [model.pool(model.forward_features(each)) for each in (x, shuffled)]
    torch.testing.assert_close(*pooled["none"], rtol=0, atol=1e-5)
    assert (pooled["learned"][0] - pooled["learned"][1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    "changes", [{}, {"pooling": "gap"}, {"pooling": "map"}, {"positions": "relative"}], ids=str
)
def test_masked_patches_have_no_influence(changes: dict[str, Any]) -> None:
    model = tiny(**changes)
    x = inputs(model)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[:, 2] = mask[1, 5] = False
    noisy = x.clone()
    noisy[:, :, :8, 16:] += 10 * torch.randn(2, 3, 8, 8)  # patch 2: first row, third column
    with torch.no_grad():
        torch.testing.assert_close(model(x, mask), model(noisy, mask), rtol=0, atol=1e-5)
        assert (model(x) - model(noisy)).abs().max() > 1e-3
        torch.testing.assert_close(model(x, torch.ones_like(mask)), model(x), rtol=0, atol=1e-5)


def test_intermediates_are_the_tokens_after_each_block() -> None:
    model = tiny()
    x = inputs(model)
    with torch.no_grad():
        first, last = model.forward_intermediates(x)
        torch.testing.assert_close(model.norm(last), model.forward_features(x))
        torch.testing.assert_close(model.forward_intermediates(x, [-2])[0], first)
    with pytest.raises(ModelError, match="2 blocks, 0 to 1"):
        model.forward_intermediates(x, [2])


@pytest.mark.parametrize("positions", ["learned", "sincos2d", "learned2d", "relative", "rope", "none"])
def test_a_live_model_takes_another_size_and_back(positions: str) -> None:
    model = tiny(positions=positions, registers=2)
    x = inputs(model)
    with torch.no_grad():
        before = model(x)
        model.set_image_size((32, 40))
        assert model(torch.randn(2, 3, 32, 40)).shape == (2, 5)
        model.set_patch_size(4)
        assert model.config.grid == (8, 10)
        assert model(torch.randn(2, 3, 32, 40)).isfinite().all()
    same = tiny(positions=positions, registers=2)
    same.set_image_size((16, 24))
    torch.testing.assert_close(same(x), before)


def test_a_size_that_does_not_fit_changes_nothing() -> None:
    model = tiny()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for change in (lambda: model.set_image_size(17), lambda: model.set_patch_size(7)):
        with pytest.raises(ModelError, match="not a multiple"):
            change()
    assert model.config.image_size == (16, 24)
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 1, 16, 24), r"expected \(B, 3, 16, 24\); create the model with in_channels=1"),
        ((2, 3, 24, 16), r"call set_image_size\(\(24, 16\)\)"),
        ((3, 16, 24), "check the order of the axes"),
        ((2, 16, 24, 3), "does not fit"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        tiny()(torch.zeros(shape))


def test_a_mask_that_does_not_fit_is_refused() -> None:
    model = tiny()
    with pytest.raises(ModelError, match=r"expected booleans \(B, 6\)"):
        model(inputs(model), torch.ones(2, 7, dtype=torch.bool))


def test_initialisation_is_the_papers() -> None:
    model = VisionTransformer(ViTConfig(depth=2, distilled=True))
    assert not model.head.weight.any()
    assert not model.cls_token.any()
    bound = (6 / (768 + 768)) ** 0.5  # Xavier of q alone, though q, k and v are one matrix
    assert model.blocks[0].attn.qkv.weight.abs().max() <= bound
    assert model.blocks[0].attn.qkv.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)
    assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.patch_embed.proj.weight.std().item() == pytest.approx((3 * 16 * 16) ** -0.5, rel=0.01)
    assert 0 < model.blocks[0].mlp.fc1.bias.std() < 2e-6
    assert not model.blocks[0].attn.proj.bias.any()


def test_a_mimetic_start_attends_to_what_is_like_and_near() -> None:
    """Equations of arXiv 2305.09828, and what they are for: less far from each patch than at random."""
    config = ViTConfig(image_size=64, patch_size=8, width=96, depth=2, heads=3, mlp_width=192, num_classes=5)
    torch.manual_seed(0)
    model, usual = zoo.build(config, "mimetic"), zoo.build(config)
    query, key, value = model.blocks[1].attn.qkv.weight.chunk(3)
    for head in range(3):
        rows = slice(32 * head, 32 * (head + 1))
        product = query[rows].mT @ key[rows]
        assert torch.linalg.matrix_rank(product, rtol=1e-4) == 32
        projected = 0.7 * 32 / 96  # of 0.7 I onto any 32 directions; the stretched ones have more
        assert projected < product.diagonal().mean() < 2 * projected
    output = model.blocks[1].attn.proj.weight @ value
    assert output.diagonal().mean().item() == pytest.approx(-0.4, abs=0.02)
    rest = output + 0.4 * torch.eye(96)
    assert rest.std().item() == pytest.approx(0.4 / 96**0.5, rel=0.05)
    torch.testing.assert_close(model.pos_embed[0, 1:], sincos2d((8, 8), 96))
    assert model.pos_embed[0, 0].std() < 0.1 and not model.head.weight.any()
    x = torch.randn(4, 3, 64, 64)
    distances = [attention_distance(each, x).mean() for each in (model, usual)]
    assert distances[0] < 0.7 * distances[1]


def test_torchs_own_start_is_that_of_torchs_layers() -> None:
    """Beside layers that torch made: the same distribution, biases too; positions of the embeddings' size."""
    config = ViTConfig(image_size=224, patch_size=16, width=384, depth=1, heads=6, mlp_width=1536)
    torch.manual_seed(0)
    model = zoo.build(config, "torch")
    for ours, theirs in (
        (model.patch_embed.proj, torch.nn.Conv2d(3, 384, 16, 16)),
        (model.blocks[0].attn.qkv, torch.nn.Linear(384, 1152)),
        (model.blocks[0].mlp.fc2, torch.nn.Linear(1536, 384)),
        (model.head, torch.nn.Linear(384, 1000)),
    ):
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert mine.std().item() == pytest.approx(other.std().item(), rel=0.1)
            assert mine.abs().max().item() == pytest.approx(other.abs().max().item(), rel=0.02)
    assert model.pos_embed.std().item() == pytest.approx(1.0, rel=0.02)
    assert model.cls_token.std().item() == pytest.approx(1.0, rel=0.1)
    assert (model.norm.weight == 1).all() and not model.norm.bias.any()


@pytest.mark.parametrize("start", ["mimetic", "torch"])
def test_another_start_suits_every_kind_of_vit(start: Initialization) -> None:
    for changes in ({"positions": "rope"}, {"positions": "learned2d"}, {"frames": 4, "tubelet": 2}):
        model = zoo.build(replace(tiny(**changes).config, num_classes=3), start)
        assert torch.isfinite(model(inputs(model))).all()
    with torch.device("meta"):
        assert zoo.build(tiny().config, start).pos_embed.is_meta


def test_dropout_and_stochastic_depth_act_in_training_only() -> None:
    model = tiny(dropout=0.5, attention_dropout=0.5, embedding_dropout=0.5, drop_path=0.5)
    x = inputs(model, 8)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model(x), rtol=0, atol=0)
        model.train()
        assert (model(x) - model(x)).abs().max() > 1e-3


def test_stochastic_depth_keeps_the_expectation_and_drops_whole_samples() -> None:
    from vitreous.models.vit import DropPath

    dropped = DropPath(0.25).train()(torch.ones(20_000, 2, 3))
    assert set(dropped.flatten(1).std(dim=1).tolist()) == {0.0}
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
