"""Layouts: round trips, each owner's library as the oracle, Google's own logits, recognition and refusals."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from safetensors.torch import save_file
from timm.layers.hybrid_embed import HybridEmbed
from timm.layers.std_conv import StdConv2dSame
from timm.models.resnetv2 import ResNetV2
from torch import Tensor, nn

from tests import real_weights
from tests.conftest import FIXTURES, randomize
from vitreous import layouts
from vitreous.config import Preprocessing
from vitreous.errors import CheckpointError, LayoutError
from vitreous.layouts import containers, google, huggingface
from vitreous.layouts import timm as timm_layout
from vitreous.models import zoo
from vitreous.models.architecture import Architecture, ResNetConfig, ViTConfig
from vitreous.models.weights import Weights, build

PLAIN: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "width": 32, "depth": 2, "heads": 4, "mlp_width": 64, "num_classes": 5,
}  # fmt: skip
TRUNK = {"num_classes": 0, "preactivation": False, "same_padding": True}
GOOGLE_TRUNK = {"std_eps": 1e-5, "std_eps_on": "deviation", "norm_eps": 1e-6, **TRUNK}


def vit(**changes: Any) -> ViTConfig:
    return ViTConfig(**PLAIN | changes)


FAMILIES: dict[str, Architecture] = {
    "plain": vit(),
    "plain, tanh": vit(activation="gelu_tanh"),
    "features": vit(num_classes=0),
    "pre_logits": vit(activation="gelu_tanh", pre_logits=24),
    "pre_logits, exact": vit(pre_logits=24),
    "pooler": vit(pre_logits=32, num_classes=0),
    "gray, 384": vit(in_channels=1, image_size=(32, 64)),
    "distilled": vit(distilled=True),
    "gap": vit(pooling="gap", class_token=False, activation="gelu_tanh"),
    "gap, fc_norm": vit(pooling="gap", norm_after_pool=True),
    "map": vit(pooling="map", class_token=False, activation="gelu_tanh"),
    "deit3": vit(layer_scale=1e-5, positioned_prefix=0),
    "dinov2": vit(layer_scale=1e-5, num_classes=0),
    "dinov2, head": vit(layer_scale=1e-5, pooling="cls_gap"),
    "registers, timm's": vit(layer_scale=1e-5, registers=4, positioned_prefix=0, num_classes=0),
    "registers, hf's": vit(layer_scale=1e-5, registers=4, positioned_prefix=1, pooling="cls_gap"),
    "giant": vit(layer_scale=1e-5, activation="swiglu", mlp_width=48, width=32),
    "hybrid": vit(patch_size=1, image_size=64, stem=ResNetConfig(layers=(3, 4, 9), **TRUNK)),
    "hybrid, google's": vit(
        patch_size=1, image_size=64, activation="gelu_tanh", stem=ResNetConfig(layers=(1, 2), **GOOGLE_TRUNK)
    ),
    "hybrid, root": vit(
        patch_size=2, image_size=32, activation="gelu_tanh", stem=ResNetConfig(layers=(), **GOOGLE_TRUNK)
    ),
    "bit": ResNetConfig(stem_width=32, num_classes=5),
    "bit, x3": ResNetConfig(layers=(1, 1), stem_width=32, width_factor=3, num_classes=5),
    "bit, 50x3": ResNetConfig(layers=(3, 4, 6, 3), stem_width=32, width_factor=3, num_classes=5),
}
# what a layout can't express, and why
REFUSED = {
    ("hf", "pre_logits"): "a pre_logits layer under a head",
    ("hf", "pre_logits, exact"): "a pre_logits layer under a head",
    ("hf", "gray, 384"): "images that are not square",
    ("hf", "gap"): "gap pooling",
    ("hf", "gap, fc_norm"): "gap pooling",
    ("hf", "map"): "map pooling",
    ("hf", "hybrid"): "a hybrid's trunk",
    ("hf", "hybrid, google's"): "a hybrid's trunk",
    ("hf", "hybrid, root"): "a hybrid's trunk",
    ("timm", "pre_logits"): "a pre_logits layer",
    ("timm", "pre_logits, exact"): "a pre_logits layer",
    ("timm", "pooler"): "a pre_logits layer",
    ("timm", "dinov2, head"): "cls_gap pooling",
    ("timm", "registers, hf's"): "cls_gap pooling",
    ("timm", "hybrid, google's"): "a trunk of stages [1, 2]",
    ("timm", "bit, x3"): "a ResNet of stages [1, 1]",
}
GOOGLES = ("plain, tanh", "pre_logits", "gap", "map", "hybrid, google's", "hybrid, root", "bit", "bit, x3")
TORCHVISIONS = ("plain", "pre_logits, exact")
HFS = tuple(family for family in FAMILIES if family != "bit, 50x3")  # 200 MB, which timm's names need


def weights(family: str) -> Weights:
    config = FAMILIES[family]
    model = randomize(zoo.build(config))
    preprocessing = Preprocessing(
        image_size=config.image_size,
        resize_size=(int(config.image_size[0] / 0.875), int(config.image_size[1] / 0.875)),
        mean=(0.4,) * config.in_channels,
        std=(0.2,) * config.in_channels,
    )
    labels = [f"class {row}" for row in range(config.num_classes)] or None
    return Weights(
        config=config, tensors=dict(model.state_dict()), preprocessing=preprocessing, labels=labels
    )


def images(config: Architecture) -> Tensor:
    size = (64, 64) if isinstance(config, ResNetConfig) else config.image_size
    return torch.randn(2, config.in_channels, *size)


def destination(folder: Path, layout: str) -> Path:
    return {
        "hf": folder / "hf",
        "timm": folder / "timm",
        "google": folder / "weights.npz",
        "torchvision": folder / "weights.pth",
    }[layout]


def owners_model(layout: str, path: Path, config: Architecture) -> nn.Module:
    """Load with the library that the layout belongs to."""
    if layout == "timm":
        return timm.create_model(f"local-dir:{path}", pretrained=True).eval()
    if layout == "hf":
        kind = transformers.AutoModelForImageClassification if config.num_classes else transformers.AutoModel
        return kind.from_pretrained(path).eval()
    assert layout == "torchvision" and isinstance(config, ViTConfig)
    model = torchvision.models.VisionTransformer(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp_width,
        num_classes=config.num_classes,
        representation_size=config.pre_logits,
    )
    model.load_state_dict(torch.load(path, weights_only=True), strict=True)
    return model.eval()


def outputs(layout: str, model: nn.Module, x: Tensor, config: Architecture) -> Tensor:
    result = model(x)
    if layout != "hf":
        return result
    if config.num_classes:
        return result.logits
    pooled = isinstance(config, ViTConfig) and config.pre_logits
    return result.pooler_output if pooled else result.last_hidden_state[:, 0]


def cases(layout: str) -> list[str]:
    every = {"google": GOOGLES, "hf": HFS, "torchvision": TORCHVISIONS}.get(layout, tuple(FAMILIES))
    return [family for family in every if (layout, family) not in REFUSED]


@pytest.mark.parametrize(
    ("layout", "family"),
    [(layout, family) for layout in ("timm", "hf", "torchvision") for family in cases(layout)],
)
def test_the_owners_library_gives_the_same_logits(layout: str, family: str, tmp_path: Path) -> None:
    ours = weights(family)
    path = destination(tmp_path, layout)
    layouts.write(ours, path, layout)
    x = images(ours.config)
    model = build(ours)
    with torch.no_grad():
        theirs = outputs(layout, owners_model(layout, path, ours.config), x, ours.config)
        torch.testing.assert_close(model(x), theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("layout", "family"),
    [(layout, family) for layout in ("timm", "hf", "torchvision", "google") for family in cases(layout)],
)
def test_there_and_back_is_bit_equal(layout: str, family: str, tmp_path: Path) -> None:
    ours = weights(family)
    path = destination(tmp_path, layout)
    layouts.write(ours, path, layout)
    name, back = layouts.read(path, {} if layout != "torchvision" else {"heads": 4})
    assert name == layout
    x = images(ours.config)
    with torch.no_grad():
        torch.testing.assert_close(build(back)(x), build(ours)(x), rtol=0, atol=1e-5)
    changed = (layout, family) in {("hf", "deit3"), ("hf", "giant"), ("hf", "registers, timm's")}
    if not changed:  # those get a zero row or a zero half that the owner's model demands
        assert back.tensors.keys() == ours.tensors.keys()
        assert all(torch.equal(back.tensors[key], ours.tensors[key]) for key in ours.tensors)
        if family != "registers, hf's":
            assert replace_details(back.config) == replace_details(ours.config)
    if layout in ("timm", "hf"):
        assert back.labels == ours.labels
        assert back.preprocessing == ours.preprocessing


def replace_details(config: Architecture) -> Architecture:
    """Leave out what weights don't tell: the initial LayerScale, a ResNet's nominal size and epsilons."""
    if isinstance(config, ResNetConfig):
        stem = config.channels[0]
        return replace(config, image_size=(224, 224), std_eps=1e-8, stem_width=stem, width_factor=1)
    scale = None if config.layer_scale is None else 1e-5
    epsilons: dict[str, Any] = {"std_eps": 1e-8, "std_eps_on": "variance", "norm_eps": 1e-5}
    stem = None if config.stem is None else replace(config.stem, image_size=(224, 224), **epsilons)
    prefix = None if config.positioned_prefix in (None, config.prefix) else config.positioned_prefix
    return replace(config, layer_scale=scale, stem=stem, positioned_prefix=prefix)


@pytest.mark.parametrize(("layout", "family"), REFUSED)
def test_what_a_layout_cannot_express_is_refused_by_name(layout: str, family: str, tmp_path: Path) -> None:
    with pytest.raises(LayoutError) as refusal:
        layouts.write(weights(family), destination(tmp_path, layout), layout)
    assert REFUSED[layout, family] in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("layout", "config", "reason"),
    [
        ("torchvision", vit(registers=2), "registers"),
        ("torchvision", ResNetConfig(stem_width=32), "BiT"),
        ("google", vit(activation="gelu_tanh", layer_scale=0.1), "LayerScale"),
        ("google", vit(), "the activation gelu (JAX computes gelu_tanh)"),
        ("timm", vit(positions="rope"), "rope positions"),
    ],
    ids=str,
)
def test_further_refusals(layout: str, config: Architecture, reason: str, tmp_path: Path) -> None:
    model = Weights(config=config, tensors=dict(zoo.build(config).state_dict()))
    with pytest.raises(LayoutError) as refusal:
        layouts.write(model, destination(tmp_path, layout), layout)
    assert reason in str(refusal.value)


@pytest.mark.parametrize("name", ["google_vit", "google_hybrid"])
def test_googles_files_give_googles_logits(name: str) -> None:
    layout, loaded = layouts.read(FIXTURES / f"{name}.npz", {})
    reference = np.load(FIXTURES / f"{name}.reference.npz")
    assert layout == "google"
    x = torch.from_numpy(reference["images_nhwc"]).permute(0, 3, 1, 2)
    with torch.no_grad():
        logits = build(loaded)(x)
    torch.testing.assert_close(logits, torch.from_numpy(reference["logits"]), rtol=0, atol=1e-5)


PUBLISHED: dict[str, dict[str, list[int]]] = json.loads(
    (FIXTURES / "google_vit_npz_layouts.json").read_text()
)


@pytest.mark.parametrize("variant", PUBLISHED)
def test_every_published_google_file_is_understood_and_written_alike(variant: str) -> None:
    shapes = PUBLISHED[variant]
    container = containers.Container(
        tensors={name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    )
    assert google.matches(container)
    read = google.read(container, {})
    name, classes, representation = variant.split("|")
    expected = zoo.get_config(name.replace("_", "/"), num_classes=int(classes.removeprefix("classes=")))
    assert isinstance(read.config, ViTConfig) and isinstance(expected, ViTConfig)
    for field in ("width", "depth", "heads", "mlp_width", "num_classes", "grid", "step"):
        assert getattr(read.config, field) == getattr(expected, field), field
    assert str(read.config.pre_logits) == representation.removeprefix("rep=")
    with torch.device("meta"):
        built = zoo.build(read.config)
    assert {key: value.shape for key, value in built.state_dict().items()} == {
        key: value.shape for key, value in read.tensors.items()
    }
    written = google.write(read).tensors
    assert {key: list(value.shape) for key, value in written.items()} == shapes


@pytest.mark.parametrize("root", ["params/", "opt/target/", "params/img/"])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("family", ["map", "gap"])
def test_big_visions_names_are_read(root: str, stacked: bool, family: str) -> None:
    ours = weights(family)
    names = {name.removeprefix("params/"): tensor for name, tensor in google.write(ours).tensors.items()}
    if stacked:
        first = [name for name in names if name.startswith("Transformer/encoderblock_0/")]
        for name in first:
            layers = [names.pop(name.replace("encoderblock_0", f"encoderblock_{i}")) for i in range(2)]
            names[name.replace("encoderblock_0", "encoderblock")] = torch.stack(layers)
    back = google.read(
        containers.Container(tensors={root + name: tensor for name, tensor in names.items()}), {}
    )
    x = images(ours.config)
    with torch.no_grad():
        torch.testing.assert_close(build(back)(x), build(ours)(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["plain", "distilled", "dinov2, head", "giant"])
def test_transformers_5_runtime_names_are_read(family: str, tmp_path: Path) -> None:
    ours = weights(family)
    path = destination(tmp_path, "hf")
    layouts.write(ours, path, "hf")
    state = owners_model("hf", path, ours.config).state_dict()
    assert any("q_proj" in name for name in state)
    back = huggingface.read(containers.Container(tensors=dict(state)), {"heads": 4})
    x = images(ours.config)
    with torch.no_grad():
        torch.testing.assert_close(build(back)(x), build(ours)(x), rtol=0, atol=1e-5)


def test_deit_without_teacher_reads_its_distillation_token_as_a_register(tmp_path: Path) -> None:
    config = transformers.DeiTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32,
        patch_size=8, num_labels=3,
    )  # fmt: skip
    peer = randomize(transformers.DeiTForImageClassification(config))
    peer.save_pretrained(tmp_path)
    _, loaded = layouts.read(tmp_path, {})
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(build(loaded)(x), peer(x).logits, rtol=0, atol=1e-5)


def test_sharded_folders_are_read(tmp_path: Path) -> None:
    ours = weights("plain")
    layouts.write(ours, tmp_path / "whole", "hf")
    owners_model("hf", tmp_path / "whole", ours.config).save_pretrained(
        tmp_path / "shards", max_shard_size="20KB"
    )
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 1
    _, back = layouts.read(tmp_path / "shards", {})
    assert all(torch.equal(back.tensors[key], ours.tensors[key]) for key in ours.tensors)


def test_a_shard_outside_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "../../secret.safetensors"}}'
    )
    with pytest.raises(CheckpointError, match="shards are .safetensors files in the same folder"):
        layouts.read(tmp_path, {})


def test_meta_repositories_names_are_read() -> None:
    """DINOv2's and MAE's own checkpoints: other token names, chunked blocks, decoders to leave out."""
    ours = weights("giant")
    state = {
        name.replace("blocks.", "blocks.0.")
        .replace("mlp.fc1", "mlp.w12")
        .replace("mlp.fc2", "mlp.w3"): tensor
        for name, tensor in ours.tensors.items()
    } | {"mask_token": torch.zeros(1, 32), "decoder_pred.weight": torch.zeros(3, 3)}
    back = timm_layout.read(containers.Container(tensors=state), {"heads": 4})
    assert back.tensors.keys() == ours.tensors.keys()
    assert any("left out: 2 tensors" in note for note in back.notes)


def test_heads_are_asked_for_where_no_published_shape_tells() -> None:
    container = containers.Container(tensors=weights("plain").tensors)
    with pytest.raises(LayoutError, match=r"number of heads of a model of width 32 .* --heads N"):
        timm_layout.read(container, {})
    with torch.device("meta"):
        known = containers.Container(tensors=dict(zoo.create_model("ViT-H/14").state_dict()))
    read = timm_layout.read(known, {})
    assert isinstance(read.config, ViTConfig) and read.config.heads == 16
    assert any("heads: 16" in note for note in read.notes)


def test_an_unknown_layout_is_refused_with_its_keys(tmp_path: Path) -> None:
    torch.save({"model": {"conv1.weight": torch.zeros(1)}}, tmp_path / "odd.pth")
    with pytest.raises(LayoutError, match="has no known layout: its tensors are conv1.weight"):
        layouts.read(tmp_path / "odd.pth", {})


@pytest.mark.data
def test_a_real_dinov2_loads_and_matches_timm(tmp_path: Path) -> None:
    state = real_weights.dinov2()
    assert sum(tensor.numel() for tensor in state.values()) == 22_056_192
    save_file(state, tmp_path / "dinov2.safetensors")
    layout, loaded = layouts.read(tmp_path / "dinov2.safetensors", {})
    assert layout == "hf"
    ours = build(loaded)
    peer = timm.create_model("vit_small_patch14_dinov2").eval()
    peer.load_state_dict(ours.state_dict(), strict=True)
    x = torch.randn(1, 3, 518, 518)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), peer(x), rtol=0, atol=1e-5)


@pytest.mark.data
def test_a_real_hybrid_loads_and_matches_timm() -> None:
    state = real_weights.hybrid()
    with pytest.raises(LayoutError, match="504|505 position embeddings make no square grid"):
        timm_layout.read(containers.Container(tensors=state), {"heads": 8})
    hints = {"heads": 8, "image_size": (192, 672)}
    ours = build(timm_layout.read(containers.Container(tensors=state), hints))
    trunk = ResNetV2(
        layers=(2, 3, 7), num_classes=0, global_pool="", in_chans=1, preact=False, stem_type="same",
        conv_layer=partial(StdConv2dSame, eps=1e-8),
    )  # fmt: skip
    peer = timm.models.VisionTransformer(
        img_size=(192, 672), patch_size=1, in_chans=1, embed_dim=256, depth=4, num_heads=8, num_classes=0,
        embed_layer=partial(HybridEmbed, backbone=trunk),
    )  # fmt: skip
    peer.load_state_dict(state, strict=True)
    x = torch.randn(1, 1, 192, 672)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), peer.eval()(x), rtol=0, atol=1e-5)
