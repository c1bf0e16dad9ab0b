"""Other ways to the same value: attention without the keys' mean, patches as a product, halved sums."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.conftest import randomize
from vitreous import parallel
from vitreous.models import kernels
from vitreous.models.architecture import ViTConfig
from vitreous.models.vit import VisionTransformer

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
CPU = torch.device("cpu")


def attended(*tensors: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(*tensors, scale=0.25)  # type: ignore[arg-type]


def test_what_all_keys_have_in_common_is_not_seen() -> None:
    """Output and gradients stay, and no row's scores are all low, which cuDNN's gradients need."""
    q, k, v = torch.randn(3, 2, 4, 50, 16, dtype=torch.float64)
    k = k - 40.0  # every score is far below 0
    inputs = [each.requires_grad_() for each in (q.abs(), k, v)]
    output, centred = attended(*inputs), attended(inputs[0], kernels.centred(inputs[1]), inputs[2])
    torch.testing.assert_close(output, centred)
    wanted = torch.autograd.grad(output.square().sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad(centred.square().sum(), inputs), wanted)
    rows = (inputs[0] @ kernels.centred(inputs[1]).mT * 0.25).logsumexp(-1)
    assert rows.min() >= math.log(50) > (inputs[0] @ inputs[1].mT * 0.25).logsumexp(-1).max()


@pytest.mark.parametrize("kind", ["none", "mask", "weight", "offsets"])
@pytest.mark.parametrize("shape", [(2, 4, 50, 16), (1, 1, 1, 8), (3, 2, 37, 64), (0, 2, 5, 8)])
def test_written_out_is_what_the_fused_kernel_computes(shape: tuple[int, ...], kind: str) -> None:
    """In double precision, backwards too; from tensors that lie as a block makes them."""
    images, heads, tokens, width = shape
    qkv = torch.randn(images, tokens, 3, heads, width, dtype=torch.float64).requires_grad_()
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    seen = torch.rand(images, 1, 1, tokens) > 0.3
    seen[..., 0] = True  # the class token
    added = torch.randn(images, heads, tokens, tokens).double()
    bias = {"none": None, "mask": seen, "weight": added[:, :1, :1], "offsets": added}[kind]
    fused = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.25)
    written = kernels.written_out(q, k, v, 0.25, bias)
    torch.testing.assert_close(written, fused)
    (wanted,) = torch.autograd.grad(fused.square().sum(), qkv, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(written.square().sum(), qkv)[0], wanted)


@pytest.mark.parametrize("at_once", [1, 40, 300, 5000, 1 << 20])
@pytest.mark.parametrize("shape", [(2, 4, 50, 16), (1, 1, 1, 8), (3, 2, 37, 64), (0, 2, 5, 8)])
def test_attention_in_pieces_is_what_the_fused_kernel_computes(
    shape: tuple[int, ...], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row at a time, some rows, whole heads, all heads: in double precision, backwards too."""
    monkeypatch.setattr(kernels, "AT_ONCE", at_once)
    images, heads, tokens, width = shape
    qkv = torch.randn(images, tokens, 3, heads, width, dtype=torch.float64).requires_grad_()
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    fused = F.scaled_dot_product_attention(q, k, v, scale=0.25)
    found = kernels.in_pieces(q, k, v, 0.25)
    torch.testing.assert_close(found, fused)
    (wanted,) = torch.autograd.grad(fused.square().sum(), qkv, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), qkv)[0], wanted)


def test_no_more_scores_are_held_than_are_computed_at_once() -> None:
    """Among 4,097 tokens, where all scores of a head would take 16 times as much."""
    for heads, rows in kernels.pieces(heads=12, tokens=4097):
        assert (heads.stop - heads.start) * (rows.stop - rows.start) * 4097 <= kernels.AT_ONCE


def test_many_tokens_are_as_precise_in_bf16() -> None:
    """As torch's own kernel, within the rounding of scores and weights; gradients too."""
    inputs = [torch.randn(1, 2, kernels.MANY + 100, 32) for _ in range(3)]
    exact = [each.clone().requires_grad_() for each in inputs]
    halves = [each.bfloat16().requires_grad_() for each in inputs]
    wanted = F.scaled_dot_product_attention(*exact, scale=0.2)  # type: ignore[arg-type]
    with parallel.autocast(CPU, "bf16"):
        found = kernels.attention(*halves, scale=0.2)  # type: ignore[arg-type]
    assert found.dtype == torch.bfloat16
    assert (found - wanted).norm() < 0.01 * wanted.norm()
    wanted.sum().backward()
    found.sum().backward()
    for half, whole in zip(halves, exact, strict=True):
        assert half.grad is not None and whole.grad is not None
        assert (half.grad - whole.grad).norm() < 0.02 * whole.grad.norm() + 1e-3


def test_a_cpu_writes_attention_out_in_bf16_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in float32, nor with dropout; among many tokens only a piece at a time."""
    taken: list[int] = []
    written = kernels.written_out
    pieces = kernels.in_pieces
    monkeypatch.setattr(kernels, "written_out", lambda *given: taken.append(1) or written(*given))
    monkeypatch.setattr(kernels, "in_pieces", lambda *given: taken.append(10) or pieces(*given))
    q = torch.randn(1, 2, 20, 8)
    halves = q.bfloat16()

    def attend(x: torch.Tensor, **others: Any) -> int:
        found = kernels.attention(x, x, x, scale=0.3, **others)
        assert found.shape == x.shape and found.dtype == x.dtype
        return sum(taken)

    assert attend(halves) == 1
    exact = F.scaled_dot_product_attention(q, q, q, scale=0.3)
    assert (kernels.attention(halves, halves, halves, scale=0.3) - exact).abs().max() < 0.05
    assert sum(taken) == 2
    assert attend(q) == attend(halves, dropout=0.5) == 2
    many = torch.randn(1, 1, kernels.MANY + 1, 8).bfloat16()
    assert attend(many) == 12
    assert attend(many, dropout=0.5) == attend(many, bias=torch.ones(1, 1, 1, many.shape[2]).bool()) == 12


@pytest.mark.parametrize(("size", "patch"), [((16, 24), (8, 8)), ((12, 16), (4, 8))])
def test_patches_are_the_convolution(size: tuple[int, int], patch: tuple[int, int]) -> None:
    convolution = torch.nn.Conv2d(3, 10, patch, patch).double()
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    found = kernels.patches(images, convolution.weight, convolution.bias)
    torch.testing.assert_close(found, convolution(images).flatten(2).mT)


def test_residual_sums_of_training_are_as_precise_as_its_products() -> None:
    """Evaluation, and training in float32, add up in float32."""
    made = VisionTransformer(ViTConfig(image_size=(8, 8), patch_size=(4, 4), width=32, depth=1, heads=2))
    types: list[torch.dtype] = []
    made.blocks[0].register_forward_hook(
        lambda _, inputs, output: types.extend([inputs[0].dtype, output.dtype])
    )
    for training, precision in ((True, "bf16"), (False, "bf16"), (True, "float32")):
        with parallel.autocast(CPU, precision):  # type: ignore[arg-type]
            made.train(training)(torch.zeros(1, 3, 8, 8))
    assert types == [torch.bfloat16] * 2 + [torch.float32] * 4


def test_cudnn_is_not_taken_where_it_is_not() -> None:
    assert not parallel.cudnn_attends(CPU, 16)


@CUDA
@pytest.mark.parametrize("tokens", [50, 144, 197])
def test_a_gpus_way_is_the_plain_way(tokens: int) -> None:
    """Run on one H200 with torch 2.11: `python -m pytest tests/test_kernels.py`."""
    device = torch.device("cuda", 0)
    side = 2 * math.isqrt(tokens)
    config = ViTConfig(image_size=(side, side), patch_size=(2, 2), width=128, depth=2, heads=2, num_classes=5)
    made = VisionTransformer(config)
    randomize(made)
    images = torch.randn(4, 3, side, side)
    wanted = made.train()(images)
    wanted.square().sum().backward()
    exact = {name: each.grad.clone() for name, each in made.named_parameters() if each.grad is not None}
    made.zero_grad()
    parallel.prepare(made, parallel.World(device=device), precision="bf16")
    assert made.blocks[0].attn.cudnn
    with parallel.autocast(device, "bf16"):
        found = made(images.to(device)).float()
    found.square().sum().backward()
    assert (found.cpu() - wanted).norm() < 0.03 * wanted.norm()
    for name, each in made.named_parameters():
        assert each.grad is not None
        assert (each.grad.cpu() - exact[name]).norm() < 0.1 * exact[name].norm() + 1e-3, name
