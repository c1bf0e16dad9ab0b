"""Which kernel computes attention, or projects patches: the same value in the fastest way.

Letters: B batch, N tokens, D width, H heads, P patch, C channels, (h, w) grid.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

FEW = 64
"""Up to this many tokens a GPU needs no fused kernel, if attention is compiled with the code around it."""
MANY = 320
"""Up to this many tokens a CPU's memory holds the scores of every image and head of a batch."""
AT_ONCE = 1 << 20
"""Scores that a CPU computes at a time where there are more tokens: in bf16 2 MiB, which its caches hold."""


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    cudnn: bool = False,
) -> Tensor:
    """Return softmax(QKᵀ · scale + bias) V, each (B, H, N, D/H): equation 7 of the paper's appendix A.

    `cudnn`: its kernels may be used for gradients in half precision; see `cudnn_attention`. On one H200
    forward and backward of ViT-B/16 (batch 256, bf16) take 66.1 ms with them, 69.3 with torch's flash
    attention. With 64 tokens a block of width 192 takes 2.38 ms written out, and 2.64 fused.

    In bf16 on a CPU torch's fused kernel is slow: see `written_out` and `InPieces`.
    """
    if not dropout and q.device.type == "cpu" and q.dtype == torch.bfloat16:
        if q.shape[-2] <= MANY:
            return written_out(q, k, v, scale, bias)
        if bias is None and not torch.compiler.is_compiling():  # a compiler would write out each piece
            return in_pieces(q, k, v, scale)
    if bias is None and not dropout and q.is_cuda:
        if q.shape[-2] <= FEW and torch.compiler.is_compiling():
            return (q @ k.mT * scale).softmax(-1).to(v.dtype) @ v
        if cudnn and torch.is_grad_enabled() and q.dtype in (torch.bfloat16, torch.float16):
            return cudnn_attention(q, k, v, scale)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)


def written_out(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """Return attention by two matrix products for each image and head, with all their scores in memory.

    `bias` (B or 1, H or 1, N or 1, N): added to the scores; if boolean, keys that are False are not seen.

    On a Zen 5 core, 64 images, three heads of 64, bf16: 197 tokens take 14 ms forward and 52 ms both ways
    instead of 29 and 114, 101 tokens 5 and 14 ms instead of 10 and 64. In float32 the fused kernel wins.
    """
    images, heads, tokens, _ = q.shape
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))  # (B H, N, D/H)
    nothing = q.new_empty(1, 1, 1).expand(len(q), tokens, tokens)
    scores = torch.baddbmm(nothing, q, k.mT, beta=0, alpha=scale)
    if bias is not None:
        apart = scores.unflatten(0, (images, heads))
        apart = apart.masked_fill(~bias, float("-inf")) if bias.dtype == torch.bool else apart + bias
        scores = apart.flatten(0, 1)
    return torch.bmm(scores.softmax(-1).to(v.dtype), v).unflatten(0, (images, heads))


def in_pieces(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Return attention by a few heads, or some rows of one, at a time: memory grows with N, not with N²."""
    flat = (each.flatten(0, 1) for each in (q, k, v))  # (B H, N, D/H)
    return InPieces.apply(*flat, scale).unflatten(0, q.shape[:2])  # type: ignore[no-any-return]


class InPieces(torch.autograd.Function):
    """The same two matrix products, whose scores are forgotten, and computed again for the gradients.

    On a Zen 5 core, heads of 64 in bf16, forward and both ways: 24 heads of 577 tokens take 10 and 33 ms, and
    26 and 85 by torch's fused kernel; 3 heads of 4,097 tokens 60 and 204 ms instead of 144 and 367.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.scale = scale
        out = torch.empty_like(q)
        for heads, rows in pieces(*q.shape[:2]):
            out[heads, rows] = torch.bmm(probabilities(q[heads, rows], k[heads], scale), v[heads])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v = ctx.saved_tensors
        exact = torch.promote_types(q.dtype, torch.float32)  # in which the rows' shares are added up
        dq, dk, dv = (torch.zeros_like(each, dtype=exact) for each in (q, k, v))
        for heads, rows in pieces(*q.shape[:2]):
            weights, given = probabilities(q[heads, rows], k[heads], ctx.scale), gradient[heads, rows]
            scores = torch.bmm(given, v[heads].mT)  # not `@`, which copies what is transposed
            scores = torch.ops.aten._softmax_backward_data(scores, weights, -1, weights.dtype)
            dq[heads, rows] = torch.bmm(scores, k[heads])
            dk[heads] += torch.bmm(scores.mT, q[heads, rows])
            dv[heads] += torch.bmm(weights.mT, given)
        return (dq * ctx.scale).to(q.dtype), (dk * ctx.scale).to(k.dtype), dv.to(v.dtype), None


def pieces(heads: int, tokens: int) -> Iterator[tuple[slice, slice]]:
    """Yield the heads and the rows of their scores that are computed together."""
    some, part = max(1, AT_ONCE // tokens**2), min(tokens, max(1, AT_ONCE // tokens))
    for head in range(0, heads, some):
        for row in range(0, tokens, part):
            yield slice(head, head + some), slice(row, row + part)


def probabilities(q: Tensor, k: Tensor, scale: float) -> Tensor:  # (n, r, D/H), (n, N, D/H) → (n, r, N)
    """Return softmax(QKᵀ · scale)."""
    nothing = q.new_empty(1, 1, 1).expand(len(q), q.shape[1], k.shape[1])
    return torch.baddbmm(nothing, q, k.mT, beta=0, alpha=scale).softmax(-1)


def cudnn_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Return attention by cuDNN's kernels, whose gradients are only right where no row's scores are all low.

    With strongly negative log-sum-exps of the scores its backward pass gave NaN for finite inputs. The mean
    of the keys adds the same number to all scores of a row, which the softmax ignores: without it, the mean
    score of every row is 0, so its log-sum-exp is at least ln N.
    """
    return torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, centred(k), v, None, True, 0.0, False, False, scale=scale
    )[0]


def centred(k: Tensor) -> Tensor:
    """Return keys (B, H, N, D/H) without their mean over the tokens: attention stays the same."""
    return k - k.mean(dim=-2, keepdim=True)


def patches(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # (B, C, H, W) → (B, N, D)
    """Cut images into patches and project each, as one matrix product.

    The same as a convolution of stride P, for which cuDNN first reorders the image: that way, forward and
    backward take 3.0 of a ViT-B/16's 66 ms (one H200, batch 256).
    """
    rows, columns = weight.shape[2:]
    cells = x.unflatten(3, (-1, columns)).unflatten(2, (-1, rows))  # (B, C, h, P, w, P)
    return F.linear(cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2), weight.flatten(1), bias)
