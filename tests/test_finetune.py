"""Fine-tuning: the paper's head, the recipes, what learns, another resolution, the same loop."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

import vitreous
from vitreous import checkpoint, cli, finetune
from vitreous.config import FinetuneConfig
from vitreous.errors import ModelError
from vitreous.models import adapt


def test_the_recipe_follows_the_data_and_gives_way_to_flags() -> None:
    few = finetune.with_recipe(FinetuneConfig(), 500)
    assert (few.optimizer, few.layer_decay, few.lr) == ("adamw", 0.75, 5e-4)
    many = finetune.with_recipe(FinetuneConfig(), 1_000_000)
    assert (many.optimizer, many.weight_decay, many.clip) == ("sgd", 0.0, 1.0)
    assert finetune.with_recipe(FinetuneConfig(lr=0.5), 500).lr == 0.5
    assert finetune.with_recipe(FinetuneConfig(tune="head"), 500).lr == 3e-3
    assert finetune.with_recipe(FinetuneConfig(recipe="none"), 500) == FinetuneConfig(recipe="none")


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["full", "head", "lora:2", "last:1"])
def test_each_way_to_tune_learns_and_seals_an_ordinary_model(
    tune: str, digits_file: Path, tmp_path: Path
) -> None:
    before = checkpoint.read(digits_file)
    options = FinetuneConfig(out=str(tmp_path / "run"), tune=tune, epochs=3, lr=3e-3, device="cpu", workers=0)
    result = finetune.finetune(str(digits_file), "digits", options)
    after = checkpoint.read(tmp_path / "run" / "best.safetensors")
    assert after.tensors.keys() == before.tensors.keys()
    assert after.preprocessing == before.preprocessing
    moved = {name for name in before.tensors if not torch.equal(before.tensors[name], after.tensors[name])}
    assert ("blocks.0.attn.qkv.weight" in moved) == (tune in ("full", "lora:2"))
    assert ("blocks.1.attn.qkv.weight" in moved) == (tune != "head")
    assert ("patch_embed.proj.weight" in moved) == (tune == "full")
    assert result.figures["test"]["accuracy"] > 0.6  # the head started at zero: features were kept
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows
    again = vitreous.load(tmp_path / "run")
    assert again.predict(np.zeros((8, 8, 1), np.uint8))[0].label in again.labels


def test_another_resolution_starts_from_timms_logits_at_that_resolution() -> None:
    shape = {"depth": 2, "num_classes": 3}
    source = vitreous.create_model("vit_tiny_patch16_224", **shape)
    with torch.no_grad():
        source.head.weight.normal_()
    peer = timm.create_model("vit_tiny_patch16_224", img_size=(256, 384), **shape).eval()
    state = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    peer.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(state, peer), strict=True)
    adapt.set_sizes(source.eval(), (256, 384), None)
    images = torch.randn(1, 3, 256, 384)
    with torch.no_grad():
        torch.testing.assert_close(source(images), peer(images), rtol=0, atol=1e-5)


def test_wrong_words_cost_nothing(digits_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected full, head, lora"):
        options = FinetuneConfig(out=str(tmp_path / "run"), tune="some", epochs=1, device="cpu")
        finetune.finetune(str(digits_file), "digits", options)
    assert not (tmp_path / "run").exists()
    assert cli.main(["finetune", "nothing.safetensors", "digits", "--out", str(tmp_path / "x")]) == 1
