"""Which part of a trained model learns: all of it, its head, its last blocks, or low-rank updates (LoRA).

LoRA's factors live beside the frozen matrices while training; `merged` folds them in, so what is saved is
an ordinary model for every layout and export.
"""

import re
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.architecture import Architecture
from vitreous.models.vit import VisionTransformer
from vitreous.models.weights import Model

RANK, ALPHA = 8, 8.0
LAYERS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")


class LoRALinear(nn.Linear):
    """A frozen dense layer with a learned low-rank update: y = W x + b + (α / r) B A x (arXiv 2106.09685).

    A fused layer (qkv) has factors of its own for each of its `parts`.
    """

    def __init__(self, layer: nn.Linear, rank: int, parts: int) -> None:
        like = layer.weight
        super().__init__(
            layer.in_features, layer.out_features, layer.bias is not None, like.device, like.dtype
        )
        self.weight, self.bias = layer.weight, layer.bias
        self.parts, self.scale = parts, ALPHA / rank
        self.lora_a = nn.Parameter(
            torch.empty(parts, rank, layer.in_features, device=like.device, dtype=like.dtype)
        )
        self.lora_b = nn.Parameter(
            torch.zeros(parts, layer.out_features // parts, rank, device=like.device, dtype=like.dtype)
        )  # zero: training starts from the checkpoint
        nn.init.normal_(self.lora_a, std=layer.in_features**-0.5)

    def forward(self, input: Tensor) -> Tensor:
        low = F.linear(input, self.lora_a.flatten(0, 1))
        update = F.linear(low, self.scale * torch.block_diag(*self.lora_b))  # each part from its own factors
        return F.linear(input, self.weight, self.bias) + update


def parse(tune: str) -> tuple[str, int | None]:
    """Read `full`, `head`, `last:N`, `lora` or `lora:RANK`: the kind, and the number where there is one."""
    match = re.fullmatch(r"(full|head|lora|lora:[1-9]\d*|last:[1-9]\d*)", tune)
    if match is None:
        raise ModelError(f"unknown way to tune {tune!r}: expected full, head, lora, lora:RANK or last:N")
    kind, _, number = tune.partition(":")
    return kind, int(number) if number else None


def require(config: Architecture, tune: str) -> None:
    """Refuse a way to tune that the model does not allow."""
    kind, number = parse(tune)
    if kind in ("last", "lora") and not config.has_attention:
        raise ModelError(f"a ResNet is tuned full or by its head, not {tune}")
    if kind == "last" and config.kind == "vit" and (number or 0) > config.depth:
        raise ModelError(f"{tune} is more than the model's {config.depth} blocks")


def apply(model: Model, tune: str) -> str:
    """Freeze what does not learn, add what does, and return a sentence that says so.

    `tune` is `full`, `head`, `last:N` (the head and the last N blocks), `lora` or `lora:RANK`.
    """
    require(model.config, tune)
    kind, number = parse(tune)
    if kind != "full":
        model.requires_grad_(False)
    for module in _learning(model, kind, number):
        module.requires_grad_(True)
    if kind == "lora":
        _add_factors(model, number or RANK)
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for name, p in model.named_parameters() if ".lora_" not in name)
    share = 100 * learning / total
    shown = f"{share:.2g}" if 0 < share < 1 else f"{share:.1f}"  # of a head alone it is 0.025 %
    return f"{learning:,} of {total:,} parameters ({shown} %)"


def passes(config: Architecture, tune: str) -> float:
    """Return what one image costs in training, in forward passes: 3 where all learns, 1 for the head."""
    kind, number = parse(tune)
    if kind == "last" and config.kind == "vit":
        return 1.0 + 2.0 * (number or 0) / config.depth
    return {"full": 3.0, "lora": 2.0}.get(kind, 1.0)


@torch.no_grad()
def merged(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of an ordinary model: every low-rank update folded into its matrix."""
    plain = {name: tensor for name, tensor in state.items() if ".lora_" not in name}
    for name, a in state.items():
        if name.endswith(".lora_a"):
            layer = name.removesuffix(".lora_a")
            update = (state[f"{layer}.lora_b"] @ a).flatten(0, 1)
            plain[f"{layer}.weight"] = plain[f"{layer}.weight"] + ALPHA / a.shape[1] * update
    return plain


def unmerged(plain: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return a state, for a model with factors, that computes the same: the ordinary one and zero updates."""
    factors = {name: tensor for name, tensor in model.state_dict().items() if ".lora_" in name}
    return {**plain, **{name: torch.zeros(tensor.shape) for name, tensor in factors.items()}}


def _learning(model: Model, kind: str, number: int | None) -> Iterator[nn.Module]:
    if kind == "full":
        return
    yield from (getattr(model, name) for name in ("head", "head_dist") if hasattr(model, name))
    if kind == "last" and isinstance(model, VisionTransformer):
        assert number is not None
        yield from list(model.blocks)[-number:]
        yield from (model.norm, model.fc_norm)


def _add_factors(model: Model, rank: int) -> None:
    assert isinstance(model, VisionTransformer)
    for block in model.blocks:
        for name in LAYERS:
            owner = block.get_submodule(name.split(".")[0])
            leaf = name.split(".")[1]
            layer = getattr(owner, leaf)
            setattr(owner, leaf, LoRALinear(layer, rank, 3 if leaf == "qkv" else 1))
