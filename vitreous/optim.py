"""How parameters move: optimizers, parameter groups, schedules, clipping, EMA; never which data or ranks.

Weight decay here is AdamW's: each step takes `lr * weight_decay` of a weight away. big_vision writes it
decoupled from the peak learning rate: each step takes `wd * lr / peak_lr`. Their `wd=1e-4` at `lr=1e-3` is
thus `weight_decay=0.1` here, the figure of the paper's Table 3; in general `weight_decay = wd / peak_lr`.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vitreous import config
from vitreous.errors import OptionError
from vitreous.muon import Muon

Named = Iterable[tuple[str, nn.Parameter]]
Group = dict[str, Any]

# An objective holds its model as `model`; what it adds itself (a decoder) learns at the full rate.
_BLOCK = re.compile(r"(?:stages\.(\d+)\.)?blocks\.(\d+)\.")
_INPUT = re.compile(r"(patch_embed|norm_pre|stem|cls_token|reg_token|dist_token|mask_token|pos_embed)")
_UNDECAYED = re.compile(r"(^|\.)((cls|reg|dist|mask)_token|pos_embed\w*|offset_embed|latent|gamma)(\.|$)")


def decays(name: str, parameter: Tensor) -> bool:
    """Tell whether weight decay applies: to matrices and filters, not to norms, biases, tokens, positions."""
    return parameter.ndim >= 2 and not _UNDECAYED.search(name)


def layers(names: Iterable[str]) -> dict[str, int]:
    """Number parameters by depth: 0 for patches, tokens, positions; 1 to L for blocks; L + 1 for the rest."""
    places: dict[str, tuple[int, int] | None] = {}
    for name in names:
        match = _BLOCK.match(name.removeprefix("model."))
        places[name] = (int(match[1] or 0), int(match[2])) if match else None
    order = {place: i for i, place in enumerate(sorted({p for p in places.values() if p}), start=1)}
    last = len(order) + 1
    return {
        name: order[place] if place else 0 if _INPUT.match(name.removeprefix("model.")) else last
        for name, place in places.items()
    }


def parameter_groups(parameters: Named, *, weight_decay: float, layer_decay: float = 1.0) -> list[Group]:
    """Group what is trained by decay and by its rate, `layer_decay ** layers_above` (arXiv 2003.10555)."""
    if not 0.0 < layer_decay <= 1.0:
        raise OptionError(
            f"layer decay {layer_decay} is out of range: give more than 0, at most 1 (one rate everywhere)"
        )
    named = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    depth = layers(name for name, _ in named)
    last = max(depth.values(), default=0)
    groups: dict[tuple[float, float], Group] = {}
    for name, parameter in named:
        scale = layer_decay ** (last - depth[name])
        decay = weight_decay if decays(name, parameter) else 0.0
        group = groups.setdefault((scale, decay), {"params": [], "lr_scale": scale, "weight_decay": decay})
        group["params"].append((name, parameter))
    return list(groups.values())


def build(
    parameters: Named,
    name: config.Optimizer = "adamw",
    *,
    lr: float,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    momentum: float = 0.9,
    layer_decay: float = 1.0,
    capturable: bool = False,
) -> list[torch.optim.Optimizer]:
    """Build the optimizers: one, or two for Muon, which leaves all but hidden matrices to AdamW.

    `adamw` decays as this module's docstring says. `adam` is the paper's (section 4.1: beta1 0.9, beta2 0.999
    and a high weight decay of 0.1). It was Flax's Adam, whose decay is decoupled too, so it differs from
    `adamw` in name alone. `sgd` is the paper's fine-tuning (Table 4: momentum 0.9, no decay); its decay is
    the usual L2 term. `muon` scales its update to AdamW's size (arXiv 2502.16982): one rate serves both.
    `capturable`: keep learning rates on the device, where a recorded CUDA graph reads them.
    """
    groups = parameter_groups(parameters, weight_decay=weight_decay, layer_decay=layer_decay)
    if not groups:
        raise OptionError("nothing to train: every parameter is frozen")
    devices = {p.device.type for group in groups for _, p in group["params"]}
    adam: dict[str, Any] = {"betas": betas, "fused": devices <= {"cpu", "cuda"}, "capturable": capturable}
    optimizers: list[torch.optim.Optimizer] = []
    if name == "adamw":
        optimizers.append(torch.optim.AdamW(groups, lr, **adam))
    elif name == "adam":
        optimizers.append(torch.optim.Adam(groups, lr, decoupled_weight_decay=True, **adam))
    elif name == "sgd":
        shards = any(isinstance(p, DTensor) for group in groups for _, p in group["params"])
        fused = adam["fused"] and not shards  # torch has no fused SGD of shards
        optimizers.append(torch.optim.SGD(groups, lr, momentum=momentum, fused=fused))
    elif name == "muon":
        hidden, rest = _split(
            groups, lambda name, p: p.ndim == 2 and ".blocks." in f".{name}" and decays(name, p)
        )
        if rest:
            optimizers.append(torch.optim.AdamW(rest, lr, **adam))
        if hidden:
            optimizers.append(Muon(hidden, lr))
    else:
        raise OptionError(f"unknown optimizer {name!r}: expected one of adamw, adam, sgd, muon")
    if capturable:
        for optimizer in optimizers:
            # No warning: the first steps are meant to run without a graph.
            optimizer._warned_capturable_if_run_uncaptured = True
            _keep_rates_on_device(optimizer)
    set_learning_rate(optimizers, lr)
    return optimizers


def _keep_rates_on_device(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=group["params"][0].device)


def _split(groups: list[Group], takes: Callable[[str, Tensor], bool]) -> tuple[list[Group], list[Group]]:
    taken, left = [], []
    for group in groups:
        for side, wanted in ((taken, True), (left, False)):
            members = [(name, p) for name, p in group["params"] if takes(name, p) is wanted]
            if members:
                side.append({**group, "params": members})
    return taken, left


def learning_rate(
    step: float,
    *,
    peak: float,
    steps: int,
    warmup: int = 0,
    schedule: config.Schedule = "cosine",
    final: float = 0.0,
    timescale: int = 10_000,
    cooldown: int = 0,
) -> float:
    """Return the learning rate of step 0, 1, ... steps - 1: a pure function, so nothing needs saving.

    It rises linearly over `warmup` steps, then falls to `final` along a cosine or a line, or as 1/sqrt(step)
    with a linear `cooldown` at the end (big_vision's rsqrt, arXiv 2106.04560), or stays.
    """
    if step < warmup:
        return peak * min(1.0, (step + 1) / warmup)
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    if schedule == "cosine":
        return final + (peak - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
    if schedule == "linear":
        return peak + (final - peak) * progress
    if schedule == "constant":
        return peak
    if schedule == "rsqrt":
        rate = peak * math.sqrt(timescale / (timescale + step - warmup))
        return rate * min(1.0, (steps - step) / cooldown) if cooldown else rate
    raise OptionError(f"unknown schedule {schedule!r}: expected one of cosine, linear, rsqrt, constant")


def set_learning_rate(optimizers: Iterable[torch.optim.Optimizer], lr: float) -> None:
    """Give every group its share of the learning rate; a rate on the device is changed where it lies."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * group["lr_scale"])
            else:
                group["lr"] = lr * group["lr_scale"]


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the global norm of all gradients, over every shard of every rank."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float, norm: Tensor) -> None:
    """Scale the gradients down where their global `norm` is above `max_norm`."""
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)


def refuse(optimizer: torch.optim.Optimizer, refused: Tensor | None) -> None:
    """Let the optimizer's next step move nothing where `refused`, on the device, is true; None: let it move.

    Torch's own gradient scaler makes fused optimizers skip a step in this way.
    """
    if refused is None:
        optimizer.__dict__.pop("found_inf", None)
    else:
        optimizer.found_inf = refused.float()  # type: ignore[attr-defined]


def state_tensors(optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return the optimizers' live state by `<parameter>.<state>`; values loaded into it take effect."""
    return {
        f"{name}.{key}": value
        for optimizer in optimizers
        for name, parameter in _named(optimizer)
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def create_state(optimizers: Iterable[torch.optim.Optimizer], keys: Collection[str]) -> None:
    """Make the optimizers allocate the state named by `keys`, to be loaded into; torch needs a step for it.

    That step has gradients and a learning rate of zero, but it is counted: load over its state.
    """
    owners = {key.rsplit(".", 1)[0] for key in keys}
    for optimizer in optimizers:
        rates = [group["lr"] for group in optimizer.param_groups]
        for name, parameter in _named(optimizer):
            parameter.grad = torch.zeros_like(parameter) if name in owners else None
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _named(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, nn.Parameter]]:
    for group in optimizer.param_groups:
        yield from zip(group["param_names"], group["params"], strict=True)


class ScheduledDecay:
    """Weight decay that changes along a run by a cosine, AdamW's way: `lr * decay` of each weight is taken
    away before a step. An optimizer's own decay can't change when a CUDA graph replays it."""

    def __init__(
        self, parameters: Named, first: float, last: float, device: torch.device, *, layer_decay: float = 1.0
    ) -> None:
        self.first, self.last = first, last
        groups = parameter_groups(parameters, weight_decay=1.0, layer_decay=layer_decay)
        self.groups = [
            (group["lr_scale"], [parameter for _, parameter in group["params"]])
            for group in groups
            if group["weight_decay"]
        ]
        """Weights that decay, by their part of the learning rate."""
        self.taken = torch.zeros((), device=device)
        """The share of each weight that the next step takes away."""

    def set(self, lr: float, progress: float) -> None:
        """Set that share for a step at this rate; `progress`: the part of the run behind it, 0 to 1."""
        self.taken.fill_(lr * (self.last + (self.first - self.last) * (1 + math.cos(math.pi * progress)) / 2))

    @torch.no_grad()
    def apply(self, refused: Tensor | None = None) -> None:
        """Take that share away, unless `refused` is given and true."""
        taken = self.taken if refused is None else self.taken * (1 - refused.float())
        for scale, weights in self.groups:
            torch._foreach_mul_([_local(each) for each in weights], 1 - scale * taken)  # pyright: ignore[reportPrivateImportUsage]


class Ema:
    """An exponential moving average of a module's weights, kept beside it (Polyak averaging)."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        if not 0.0 < decay < 1.0:
            raise OptionError(
                f"EMA decay {decay} is out of range: give more than 0 and less than 1, such as 0.9999"
            )
        self.decay = decay
        self._live: dict[str, Tensor] = dict(module.state_dict(keep_vars=True))
        self.tensors: dict[str, Tensor] = {name: value.detach().clone() for name, value in self._live.items()}

    @torch.no_grad()
    def update(self, step: int | Tensor, refused: Tensor | None = None) -> None:
        """Move the average towards the weights after step 0, 1, ...; early on it follows them closely.

        For a captured CUDA graph the step may be a tensor. Where the tensor `refused` is 1 (an optimizer's
        `found_inf`), the average stays. Neither makes the host wait.
        """
        pairs = [(_local(self.tensors[name]), _local(value).detach()) for name, value in self._live.items()]
        means = [mean for mean, _ in pairs if mean.is_floating_point()]
        values = [value for mean, value in pairs if mean.is_floating_point()]
        follow(means, values, self._weight(step, refused))
        for mean, value in pairs:
            if not mean.is_floating_point():
                mean.copy_(value)

    def _weight(self, step: int | Tensor, refused: Tensor | None) -> float | Tensor:
        """Return the share of the new weights."""
        if isinstance(step, Tensor):
            weight = 1 - ((1 + step) / (10 + step)).clamp(max=self.decay)
        else:
            weight = 1 - min(self.decay, (1 + step) / (10 + step))
        return weight if refused is None else weight * (1 - refused.float())

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Exchange weights and average while the context lasts, to evaluate or to write the average."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, value in self._live.items():
            ours, theirs = _local(self.tensors[name]), _local(value)
            kept = theirs.clone()
            theirs.copy_(ours)
            ours.copy_(kept)


def follow(means: list[Tensor], values: list[Tensor], weight: float | Tensor) -> None:
    """Move means towards values by a share of the way, which may be a number on the device."""
    if not isinstance(weight, Tensor):
        torch._foreach_lerp_(means, values, weight)  # pyright: ignore[reportPrivateImportUsage]
        return
    changes = torch._foreach_sub(values, means)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_mul_(changes, weight)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_add_(means, changes)  # pyright: ignore[reportPrivateImportUsage]


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
