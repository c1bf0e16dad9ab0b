"""Optimizers against torch's and against arithmetic written out; groups, schedules, clipping, EMA."""

import copy
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tiny import Tiny, batch
from vitreous import optim
from vitreous.errors import OptionError


def train(model: nn.Module, step_of: Callable[[], object], steps: int = 5) -> list[float]:
    losses = []
    for step in range(steps):
        images, targets = batch(step)
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(images), targets)
        loss.backward()
        step_of()
        losses.append(loss.item())
    return losses


def twins() -> tuple[Tiny, Tiny]:
    torch.manual_seed(0)
    ours = Tiny()
    return ours, copy.deepcopy(ours)


def assert_same(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-6) -> None:
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=0, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def torchs(model: nn.Module, name: str, lr: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """The same training written with torch's optimizers alone, without our groups."""
    named = dict(model.named_parameters())
    bare = {n for n, p in named.items() if p.ndim < 2 or n in ("cls_token", "pos_embed")}
    decayed = [p for n, p in named.items() if n not in bare]
    undecayed = [p for n, p in named.items() if n in bare]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
    if name == "adamw":
        return [torch.optim.AdamW(groups, lr, foreach=False)]
    if name == "adam":  # the paper's: decoupled decay is AdamW
        return [torch.optim.AdamW(groups, lr, foreach=False)]
    if name == "sgd":
        return [torch.optim.SGD(groups, lr, momentum=0.9, foreach=False)]
    hidden = [p for n, p in named.items() if n.startswith("blocks.") and p.ndim == 2]
    groups[0]["params"] = [p for p in decayed if all(p is not h for h in hidden)]
    matrices = torch.optim.Muon(
        hidden, lr, weight_decay=weight_decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    return [torch.optim.AdamW(groups, lr, fused=True), matrices]


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "muon"])
def test_every_step_is_torchs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's Muon asks for bf16, where the products of one matrix and of many are rounded apart on some
    # processors: both compute in float32 here.
    exact = SimpleNamespace(**{**vars(torch), "bfloat16": torch.float32})
    monkeypatch.setattr(torch.optim._muon, "torch", exact)
    ours, theirs = twins()
    optimizers = optim.build(ours.named_parameters(), name, lr=0.01, weight_decay=0.1)  # type: ignore[arg-type]
    references = torchs(theirs, name, 0.01, 0.1)
    for step in range(5):
        rate = 0.01 * (1 + step)
        optim.set_learning_rate(optimizers, rate)
        for reference in references:
            for group in reference.param_groups:
                group["lr"] = rate
        for model, steppers in ((ours, optimizers), (theirs, references)):
            train(model, lambda steppers=steppers: [s.step() for s in steppers], steps=1)
        # Muon's iteration magnifies what is small, and with it the last digit, by 3.4445 to the fifth power.
        assert_same(ours, theirs, tolerance=1e-5 if name == "muon" else 1e-6)
    assert any((a != b).any() for a, b in zip(ours.parameters(), twins()[0].parameters(), strict=True))


def test_five_adamw_steps_by_hand() -> None:
    """Losses and weights of five AdamW steps (arXiv 1711.05101), written out in numpy for a linear model."""
    lr, decay, beta1, beta2, eps = 0.02, 0.1, 0.9, 0.999, 1e-8
    torch.manual_seed(3)
    model = nn.Linear(4, 3).double()
    weight, bias = (p.detach().numpy().copy() for p in (model.weight, model.bias))
    moments = {key: [np.zeros_like(p), np.zeros_like(p)] for key, p in (("weight", weight), ("bias", bias))}
    (optimizer,) = optim.build(model.named_parameters(), "adamw", lr=lr, weight_decay=decay)
    for t in range(1, 6):
        rng = np.random.default_rng(t)
        x, y = rng.normal(size=(5, 4)), rng.integers(0, 3, 5)

        model.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        optimizer.step()

        logits = x @ weight.T + bias
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        expected = -np.log(p[np.arange(5), y]).mean()
        slope = (p - np.eye(3)[y]) / 5
        gradients = {"weight": slope.T @ x, "bias": slope.sum(0)}
        weight *= 1 - lr * decay  # the bias does not decay
        for key, parameter in (("weight", weight), ("bias", bias)):
            m, v = moments[key]
            m[...] = beta1 * m + (1 - beta1) * gradients[key]
            v[...] = beta2 * v + (1 - beta2) * gradients[key] ** 2
            parameter -= lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)

        assert loss.item() == pytest.approx(expected, abs=1e-12)
        np.testing.assert_allclose(model.weight.detach().numpy(), weight, rtol=0, atol=1e-12)
        np.testing.assert_allclose(model.bias.detach().numpy(), bias, rtol=0, atol=1e-12)


def test_big_visions_decay_is_adamws() -> None:
    """Their wd 1e-4 at lr 1e-3 takes wd * lr / peak of a weight; so does AdamW's 0.1."""
    weight = nn.Parameter(torch.ones(2, 2))
    (optimizer,) = optim.build([("w", weight)], "adamw", lr=1e-3, weight_decay=0.1)
    for rate in (1e-3, 5e-4):
        before = weight.detach().clone()
        weight.grad = torch.zeros_like(weight)
        optim.set_learning_rate([optimizer], rate)
        optimizer.step()
        torch.testing.assert_close(weight.detach(), before * (1 - 1e-4 * rate / 1e-3))


def test_what_decays() -> None:
    groups = optim.parameter_groups(Tiny().named_parameters(), weight_decay=0.1)
    decayed = {name for group in groups if group["weight_decay"] for name, _ in group["params"]}
    assert decayed == {
        "patch_embed.proj.weight",
        "head.weight",
        *(f"blocks.{i}.mlp.{fc}.weight" for i in range(2) for fc in ("fc1", "fc2")),
    }
    matrix = torch.zeros(2, 2)
    for name in (
        "model.reg_token",
        "dist_token",
        "pos_embed_x",
        "blocks.0.ls1.gamma",
        "mask_token",
        "blocks.0.attn.offset_embed",
    ):
        assert not optim.decays(name, matrix)
    assert optim.decays("blocks.0.attn.qkv.weight", matrix)
    assert sum(len(group["params"]) for group in groups) == len(list(Tiny().parameters()))


def test_layers_from_patches_to_head() -> None:
    names = [
        "cls_token",
        "pos_embed",
        "patch_embed.proj.weight",
        "blocks.10.norm1.bias",
        "blocks.2.norm1.bias",
    ]
    assert optim.layers([*names, "norm.weight", "head.bias"]) == {
        "cls_token": 0,
        "pos_embed": 0,
        "patch_embed.proj.weight": 0,
        "blocks.2.norm1.bias": 1,
        "blocks.10.norm1.bias": 2,
        "norm.weight": 3,
        "head.bias": 3,
    }
    bit = [
        "stem.conv.weight",
        "stages.1.blocks.0.conv1.weight",
        "stages.0.blocks.1.conv1.weight",
        "head.fc.weight",
    ]
    assert list(optim.layers(bit).values()) == [0, 2, 1, 3]
    hybrid = optim.layers(["patch_embed.backbone.stages.0.blocks.0.conv1.weight", "blocks.0.norm1.bias"])
    assert list(hybrid.values()) == [0, 1]
    inside = optim.layers(["model.cls_token", "model.blocks.0.norm1.bias", "decoder.blocks.0.norm1.bias"])
    assert list(inside.values()) == [0, 1, 2]


def test_layer_decay_scales_the_rate() -> None:
    model = Tiny()
    (optimizer,) = optim.build(model.named_parameters(), "sgd", lr=1.0, momentum=0.0, layer_decay=0.5)
    rates = {name: group["lr"] for group in optimizer.param_groups for name in group["param_names"]}
    assert rates["head.weight"] == rates["norm.bias"] == 1.0
    assert rates["blocks.1.norm1.weight"] == 0.5
    assert rates["blocks.0.norm1.weight"] == 0.25
    assert rates["pos_embed"] == rates["patch_embed.proj.bias"] == 0.125
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train(model, lambda: optimizer.step(), steps=1)  # plain SGD: the step is rate times gradient
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] - rates[name] * p.grad)  # type: ignore[operator]


def test_frozen_parameters_are_left_out() -> None:
    model = Tiny()
    model.requires_grad_(False)
    with pytest.raises(OptionError, match="nothing to train"):
        optim.build(model.named_parameters(), lr=0.1)
    model.head.requires_grad_(True)
    (optimizer,) = optim.build(model.named_parameters(), lr=0.1)
    assert sorted(n for g in optimizer.param_groups for n in g["param_names"]) == ["head.bias", "head.weight"]


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "muon"])
def test_state_moves_to_a_fresh_optimizer(name: str) -> None:
    """The live tensors are all there is: a fresh optimizer that gets them goes on bit for bit."""
    ours, theirs = twins()
    first = optim.build(ours.named_parameters(), name, lr=0.01)  # type: ignore[arg-type]
    second = optim.build(theirs.named_parameters(), name, lr=0.01)  # type: ignore[arg-type]
    step = lambda optimizers: [o.step() for o in optimizers]  # noqa: E731
    train(ours, lambda: step(first), steps=3)
    state = optim.state_tensors(first)
    assert state and optim.state_tensors(second) == {}
    optim.create_state(second, state)
    theirs.load_state_dict(ours.state_dict())
    fresh = optim.state_tensors(second)
    assert fresh.keys() == state.keys()
    for key, value in state.items():
        fresh[key].copy_(value)
    assert train(ours, lambda: step(first)) == train(theirs, lambda: step(second))
    assert_same(ours, theirs, tolerance=0.0)


def test_schedule_shapes() -> None:
    rates = [optim.learning_rate(s, peak=1.0, steps=110, warmup=10) for s in range(110)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.5)
    for step, rate in enumerate(rates[10:]):
        assert rate == pytest.approx((1 + math.cos(math.pi * step / 100)) / 2)
    line = [optim.learning_rate(s, peak=2.0, steps=100, schedule="linear", final=1.0) for s in range(101)]
    assert line == pytest.approx(np.linspace(2.0, 1.0, 101))
    flat = {optim.learning_rate(s, peak=0.3, steps=9, schedule="constant") for s in range(9)}
    assert flat == {0.3}
    with pytest.raises(OptionError, match="unknown schedule 'step'"):
        optim.learning_rate(0, peak=1.0, steps=2, schedule="step")  # type: ignore[arg-type]


def test_rsqrt_is_big_visions() -> None:
    """As in big_vision's create_learning_rate_schedule: 1/sqrt after the warm-up, and a cooldown."""
    for step in range(100, 1000):
        theirs = 1.0 / math.sqrt((step + 400 - 100) / 400) * min(1.0, (1000 - step) / 200)
        ours = optim.learning_rate(
            step, peak=1.0, steps=1000, warmup=100, schedule="rsqrt", timescale=400, cooldown=200
        )
        assert ours == pytest.approx(theirs)


@given(
    steps=st.integers(1, 500),
    share=st.floats(0.0, 1.0),
    schedule=st.sampled_from(["cosine", "linear", "rsqrt", "constant"]),
)
def test_schedule_stays_in_range(steps: int, share: float, schedule: str) -> None:
    warmup = int(share * steps)
    rates = [
        optim.learning_rate(s, peak=1.0, steps=steps, warmup=warmup, schedule=schedule)  # type: ignore[arg-type]
        for s in range(steps)
    ]
    assert all(0.0 < rate <= 1.0 for rate in rates)
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)


def test_clipping_is_torchs() -> None:
    ours, theirs = twins()
    for max_norm in (0.01, 1e9):
        for model in (ours, theirs):
            train(model, lambda: None, steps=1)
        norm = optim.gradient_norm(ours.parameters())
        optim.clip_gradients(ours.parameters(), max_norm, norm)
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        assert norm == expected and norm > 0.01
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)  # type: ignore[arg-type]
    ours.head.weight.grad[0, 0] = float("nan")  # type: ignore[index]
    assert not torch.isfinite(optim.gradient_norm(ours.parameters()))


def test_ema_follows_and_is_exchanged() -> None:
    model, _ = twins()
    ema = optim.Ema(model, 0.99)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    (optimizer,) = optim.build(model.named_parameters(), lr=0.05)
    for step in range(4):
        train(model, lambda: optimizer.step(), steps=1)
        ema.update(step)
        decay = min(0.99, (1 + step) / (10 + step))
        expected = {n: decay * expected[n] + (1 - decay) * p.detach() for n, p in model.named_parameters()}
    for name, value in expected.items():
        torch.testing.assert_close(ema.tensors[name], value)
    live = {name: p.detach().clone() for name, p in model.named_parameters()}
    with ema.applied():
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), expected[name])
            assert not torch.equal(p, live[name])
    assert all(torch.equal(p, live[name]) for name, p in model.named_parameters())
    with pytest.raises(OptionError, match="EMA decay 1.0"):
        optim.Ema(model, 1.0)


def test_the_average_is_torchs_to_the_bit() -> None:
    model, _ = twins()
    ema = optim.Ema(model, 0.99)
    means = [p.detach().clone() for p in model.parameters()]
    (optimizer,) = optim.build(model.named_parameters(), lr=0.05)
    for step in range(4):
        train(model, lambda: optimizer.step(), steps=1)
        ema.update(step)
        average = get_ema_multi_avg_fn(min(0.99, (1 + step) / (10 + step)))
        average(means, [p.detach() for p in model.parameters()], None)
    for (name, _), mean in zip(model.named_parameters(), means, strict=True):
        assert torch.equal(ema.tensors[name], mean)


def test_the_average_takes_its_step_and_a_refusal_from_the_device() -> None:
    model, _ = twins()
    plain, on_device = optim.Ema(model, 0.3), optim.Ema(model, 0.3)
    (optimizer,) = optim.build(model.named_parameters(), lr=0.05)
    step, refused = torch.zeros((), dtype=torch.int64), torch.zeros(())
    for number in range(5):
        train(model, lambda: optimizer.step(), steps=1)
        plain.update(number)
        on_device.update(step, refused)
        step += 1
        for name, mean in plain.tensors.items():
            torch.testing.assert_close(on_device.tensors[name], mean)
    train(model, lambda: optimizer.step(), steps=1)
    before = {name: mean.clone() for name, mean in on_device.tensors.items()}
    on_device.update(step, torch.ones(()))
    assert all(torch.equal(on_device.tensors[name], mean) for name, mean in before.items())
    on_device.update(7, torch.zeros(()))
    assert not torch.equal(on_device.tensors["head.weight"], before["head.weight"])


def test_rates_on_the_device_are_changed_in_place() -> None:
    ours, theirs = twins()
    optimizers, references = (
        optim.build(model.named_parameters(), "muon", lr=0.01, layer_decay=0.5, capturable=capturable)
        for model, capturable in ((ours, True), (theirs, False))
    )
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    for step in range(3):
        for model, steppers in ((ours, optimizers), (theirs, references)):
            optim.set_learning_rate(steppers, 0.01 / (1 + step))
            train(model, lambda steppers=steppers: [s.step() for s in steppers], steps=1)
    assert all(
        a is b["lr"] for a, b in zip(rates, [g for o in optimizers for g in o.param_groups], strict=True)
    )
    assert_same(ours, theirs, tolerance=1e-5)


class Counting(TorchDispatchMode):
    """Counts operations, and refuses those that wait for the device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "detach" not in str(func)  # a view is no launch
        assert "_local_scalar_dense" not in str(func), f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


def test_clipping_and_averaging_take_few_launches() -> None:
    """As many for a deep model as for a shallow one, and no word back to the host."""
    counts = []
    for depth in (1, 6):
        model = Tiny(depth=depth)
        train(model, lambda: None, steps=1)
        ema = optim.Ema(model, 0.99)
        with Counting() as counter, torch.no_grad():
            norm = optim.gradient_norm(model.parameters())
            optim.clip_gradients(model.parameters(), 0.5, norm)
            update = counter.count
            ema.update(torch.tensor(3), torch.zeros(()))
        counts.append((update, counter.count - update))
    assert counts[0] == counts[1] and max(counts[0]) < 15


def test_wrong_options_are_named() -> None:
    with pytest.raises(OptionError, match="unknown optimizer 'lion': expected one of adamw"):
        optim.build(Tiny().named_parameters(), "lion", lr=0.1)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="layer decay 1.5"):
        optim.build(Tiny().named_parameters(), lr=0.1, layer_decay=1.5)


def test_a_warm_up_between_two_steps_does_not_exceed_the_peak() -> None:
    """The schedule of a time budget has no whole steps."""
    rates = [optim.learning_rate(0.1 * i, peak=2.0, steps=100, warmup=10) for i in range(200)]
    assert max(rates) == 2.0 and rates[:90] == sorted(rates[:90]) and rates[100:] == sorted(rates[100:])[::-1]


def test_a_scheduled_decay_follows_the_layers_rates() -> None:
    """As AdamW's own with no gradient: what learns at half the rate is taken away at half the rate."""
    ours, theirs = twins()
    for parameter in theirs.parameters():
        parameter.grad = torch.zeros_like(parameter)
    (optimizer,) = optim.build(theirs.named_parameters(), lr=0.1, weight_decay=0.5, layer_decay=0.5)
    optimizer.step()
    decay = optim.ScheduledDecay(ours.named_parameters(), 0.5, 0.5, torch.device("cpu"), layer_decay=0.5)
    decay.set(0.1, 0.3)
    decay.apply()
    assert len({group["lr_scale"] for group in optimizer.param_groups}) > 1
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=0)
