"""Muon (momentum, orthogonalised by Newton and Schulz's iteration) for many matrices at once.

Arithmetic and state are those of `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`. But torch takes
one matrix after another, a dozen small kernels each; here all matrices of one shape go through the iteration
together. Nothing waits for the device, and a flag there can refuse a step.

K matrices of m by n.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

# Keller Jordan's quintic: its slope at zero is as steep as can be, singular values end between 0.7 and 1.2.
A, B, C = 3.4445, -4.7750, 2.0315
STEPS = 5
EPSILON = 1e-7


def precision(device: torch.device) -> torch.dtype:
    """Return what the iteration computes in: bf16 on a GPU; many CPUs have none, and emulate it slowly."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return (…, m, n) with all singular values near 1: U S Vᵀ becomes about U Vᵀ."""
    x = matrices.to(precision(matrices.device))
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=EPSILON)  # the largest singular value is below 1
    add = torch.addmm if x.ndim == 2 else torch.baddbmm
    for _ in range(STEPS):
        gram = x @ x.mT
        x = add(x, add(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.mT if tall else x


@dataclass
class _Matrices:
    """Matrices of one shape and one parameter group, side by side."""

    group: dict[str, Any]
    parameters: list[Tensor]
    buffers: list[Tensor]
    weights: Tensor
    """(K, m, n), as are the others."""
    before: Tensor
    momentum: Tensor
    direction: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """The shorter side and the longer one: a matrix and a transposed one are iterated together."""
        sides = sorted(self.weights.shape[1:])
        return sides[0], sides[1]

    def lying(self) -> Tensor:
        """Return the directions with the longer side across."""
        return self.direction.mT if self.direction.shape[1] > self.direction.shape[2] else self.direction


class Muon(torch.optim.Optimizer):
    """Muon for hidden matrices, one Newton–Schulz iteration per shape."""

    found_inf: Tensor | None = None
    """As for torch's fused optimizers: where this device tensor is 1, the step moves nothing."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        *,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
    ) -> None:
        """`lr` may be a tensor without dimensions, so that a captured CUDA graph can be given another."""
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        super().__init__(params, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    shape = "x".join(map(str, parameter.shape))
                    raise ValueError(f"a parameter of {shape}: Muon moves matrices, give others to AdamW")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every matrix that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        together: dict[tuple[Any, ...], list[_Matrices]] = {}
        for group in self.param_groups:
            for matrices in self._stacked(group):
                key = (*matrices.shape, matrices.weights.device)
                together.setdefault(key, []).append(matrices)
        for same_shape in together.values():
            updates = orthogonalize(torch.cat([matrices.lying() for matrices in same_shape]))
            counts = [len(matrices.parameters) for matrices in same_shape]
            for matrices, update in zip(same_shape, updates.split(counts), strict=True):
                self._move(matrices, update)
        return loss

    def _stacked(self, group: dict[str, Any]) -> list[_Matrices]:
        """Return a group's whole matrices by shape; move those that are split among ranks right away."""
        alike: dict[tuple[Any, ...], list[Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter.grad)
            if isinstance(parameter, DTensor):
                self._move_shards(group, parameter)
            else:
                key = (parameter.shape, parameter.device, parameter.dtype)
                alike.setdefault(key, []).append(parameter)
        return [self._matrices(group, parameters) for parameters in alike.values()]

    def _matrices(self, group: dict[str, Any], parameters: list[Tensor]) -> _Matrices:
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        gradient = torch.stack([parameter.grad for parameter in parameters if parameter.grad is not None])
        before = torch.stack(buffers)
        momentum, direction = _momentum(group, before, gradient)
        return _Matrices(group, parameters, buffers, torch.stack(parameters), before, momentum, direction)

    def _move(self, matrices: _Matrices, update: Tensor) -> None:
        """Write new weights and momenta back, in two launches."""
        if matrices.weights.shape[1] > matrices.weights.shape[2]:
            update = update.mT
        weights = _moved(matrices.group, matrices.weights, update)
        momentum = self._unless_refused(matrices.before, matrices.momentum)
        weights = self._unless_refused(matrices.weights, weights)
        torch._foreach_copy_(matrices.buffers, list(momentum.unbind()))  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_copy_(matrices.parameters, list(weights.unbind()))  # pyright: ignore[reportPrivateImportUsage]

    def _move_shards(self, group: dict[str, Any], parameter: DTensor) -> None:
        """Move one matrix that is split among ranks; torch gathers what its products need."""
        buffer, gradient = self.state[parameter]["momentum_buffer"], parameter.grad
        momentum, direction = _momentum(group, buffer, gradient)
        update = orthogonalize(direction)
        assert isinstance(update, DTensor)
        local = update.redistribute(parameter.device_mesh, parameter.placements).to_local()
        weights = parameter.to_local()
        moved = _moved(group, weights, local, parameter.shape)
        buffer.to_local().copy_(self._unless_refused(buffer.to_local(), momentum.to_local()))
        weights.copy_(self._unless_refused(weights, moved))

    def _unless_refused(self, before: Tensor, after: Tensor) -> Tensor:
        """Return what came after, or, where the flag says so, what was before, to the bit."""
        return after if self.found_inf is None else torch.where(self.found_inf > 0, before, after)


def _momentum(group: dict[str, Any], before: Tensor, gradient: Any) -> tuple[Any, Any]:
    """Return the new momentum, and the direction that is orthogonalised."""
    momentum = before.lerp(gradient, 1 - group["momentum"])
    return momentum, gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum


def _moved(group: dict[str, Any], weights: Tensor, update: Tensor, shape: torch.Size | None = None) -> Tensor:
    """Return decayed weights minus the update, scaled to the size of AdamW's (arXiv 2502.16982)."""
    scale = 0.2 * math.sqrt(max((shape or weights.shape)[-2:]))
    return weights * (1 - group["lr"] * group["weight_decay"]) - update.to(weights.dtype) * (
        group["lr"] * scale
    )
