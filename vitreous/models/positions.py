"""Where a patch is: the fixed position codes, and how learned ones are resampled. Pure functions.

A grid is (rows, columns); patches are numbered row by row, after the prefix tokens (class, distillation,
registers).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

Grid = tuple[int, int]

ROPE_BASE = 100.0
SINCOS_BASE = 10_000.0


def sincos2d(grid: Grid, width: int) -> Tensor:
    """Return MAE's fixed sinusoidal positions (N, D): half of the width codes the column, half the row."""
    rows, columns = _coordinates(grid)
    frequencies = _frequencies(width // 4, SINCOS_BASE)
    angles = [torch.outer(axis, frequencies) for axis in (columns, rows)]
    return torch.cat([part for angle in angles for part in (angle.sin(), angle.cos())], dim=1).float()


def rotary2d(grid: Grid, head_width: int, prefix: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (prefix + N, D/H) that turn queries and keys by place (arXiv 2403.13298).

    Pairs of channels (2i, 2i+1) turn together; the first half of the pairs by the row, the second by the
    column. Prefix tokens have no place: they turn by zero.
    """
    rows, columns = _coordinates(grid)
    frequencies = _frequencies(head_width // 4, ROPE_BASE)
    angles = torch.cat([torch.outer(rows, frequencies), torch.outer(columns, frequencies)], dim=1)
    angles = F.pad(angles.repeat_interleave(2, dim=1), (0, 0, prefix, 0))
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn each pair of channels by its angle: (a, b) → (a cos - b sin, b cos + a sin)."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return x * cosine + torch.stack((-b, a), dim=-1).flatten(-2) * sine


def relative_offsets(grid: Grid, prefix: int) -> Tensor:
    """Return, for each query and key (N, N), which row of the table of offset embeddings belongs to the pair.

    Rows 0 to (2h-1)(2w-1)-1 are offsets between patches; the last three are prefix→patch, patch→prefix and
    prefix→prefix, which have no offset.
    """
    height, width = grid
    rows, columns = (axis.long() for axis in _coordinates(grid))
    down = rows[:, None] - rows[None, :] + height - 1
    right = columns[:, None] - columns[None, :] + width - 1
    between = down * (2 * width - 1) + right
    table = (2 * height - 1) * (2 * width - 1)
    offsets = torch.full((prefix + len(rows),) * 2, table + 2)
    offsets[:prefix, prefix:] = table
    offsets[prefix:, :prefix] = table + 1
    offsets[prefix:, prefix:] = between
    return offsets


def relative_rows(grid: Grid) -> int:
    """Return the length of the table that `relative_offsets` points into."""
    return (2 * grid[0] - 1) * (2 * grid[1] - 1) + 3


def resample_positions(positions: Tensor, old: Grid, new: Grid, prefix: int) -> Tensor:
    """Interpolate learned positions (1, prefix + N, D) to another grid in 2D; prefix rows are untouched.

    Section 3.2 of the paper. Bicubic with antialias, as timm; a clip's positions (N = T·h·w) by frame.
    """
    if old == new:
        return positions
    head, patches = positions[:, :prefix], positions[:, prefix:]
    maps = patches.reshape(-1, *old, patches.shape[-1]).permute(0, 3, 1, 2)  # (T, D, h, w)
    maps = _resize(maps, new).permute(0, 2, 3, 1)
    return torch.cat([head, maps.reshape(1, -1, positions.shape[-1])], dim=1)


def resample_axis(positions: Tensor, length: int) -> Tensor:
    """Interpolate the positions along one axis (1, n, D/2) to another length."""
    if positions.shape[1] == length:
        return positions
    return _resize(positions.mT[..., None, :], (1, length)).squeeze(-2).mT


def resample_relative(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """Interpolate a table of offset embeddings (rows, D/H) to another grid; its last three rows stay."""
    if old == new:
        return table
    spans = [(2 * height - 1, 2 * width - 1) for height, width in (old, new)]
    maps = table[:-3].reshape(1, *spans[0], -1).permute(0, 3, 1, 2)
    maps = _resize(maps, spans[1]).permute(0, 2, 3, 1).reshape(-1, table.shape[1])
    return torch.cat([maps, table[-3:]])


def resample_patches(weight: Tensor, new: Grid) -> Tensor:
    """Resize patch filters (D, C, ..., P, P) so that resized patches give the same tokens (arXiv 2212.08013).

    A patch p is resized by a linear map B; the pseudo-inverse of Bᵀ gives filters with <ω', B p> = <ω, p>,
    exactly when patches grow and in the least-squares sense when they shrink.
    """
    old = (weight.shape[-2], weight.shape[-1])
    if old == new:
        return weight
    basis = torch.eye(old[0] * old[1], dtype=torch.float32, device=weight.device).reshape(-1, 1, *old)
    resize = _resize(basis, new).flatten(1).T  # B: (P'P', PP)
    filters = weight.float().flatten(-2) @ torch.linalg.pinv(resize)  # ω (Bᵀ)⁺ᵀ = ω B⁺
    return filters.unflatten(-1, new).to(weight.dtype)


def _resize(maps: Tensor, size: Grid) -> Tensor:
    resized = F.interpolate(maps.float(), size=size, mode="bicubic", antialias=True, align_corners=False)
    return resized.to(maps.dtype)


def _coordinates(grid: Grid) -> tuple[Tensor, Tensor]:
    axes = [torch.arange(length, dtype=torch.float64) for length in grid]
    rows, columns = torch.meshgrid(*axes, indexing="ij")
    return rows.flatten(), columns.flatten()


def _frequencies(count: int, base: float) -> Tensor:
    return base ** -(torch.arange(count, dtype=torch.float64) / count)
