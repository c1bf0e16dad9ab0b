"""Muon in batches against torch's, one matrix after the other; a refused step moves nothing."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests import ranks
from tests.tiny import Tiny, batch
from vitreous import muon, optim
from vitreous.muon import Muon, orthogonalize

SHAPES = [(48, 16), (16, 16), (64, 16), (16, 64)]


def matrices(layers: int = 3, seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for _ in range(layers) for shape in SHAPES]


def set_gradients(parameters: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def groups(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Two groups whose matrices have the same shapes, but another rate and decay."""
    return [
        {"params": parameters[:5], "lr": 0.02, "weight_decay": 0.1},
        {"params": parameters[5:], "lr": 0.01, "weight_decay": 0.0},
    ]


def test_orthogonal_rows_come_out() -> None:
    for shape in ((3, 8, 32), (3, 32, 8), (20, 20), (30, 10)):
        torch.manual_seed(0)
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)).float())
        assert values.min() > 0.3 and values.max() < 1.3
    assert orthogonalize(torch.zeros(2, 4, 6)).abs().max() == 0


def test_a_cpu_computes_in_float32_and_a_gpu_in_bf16() -> None:
    assert muon.precision(torch.device("cuda")) == torch.bfloat16
    torch.manual_seed(0)
    given = torch.randn(3, 16, 48)
    exact = given.double() / given.double().norm(dim=(1, 2), keepdim=True)
    for _ in range(muon.STEPS):
        gram = exact @ exact.mT
        exact = muon.A * exact + (muon.B * gram + muon.C * gram @ gram) @ exact
    ours = orthogonalize(given)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("nesterov", [True, False])
def test_steps_are_torchs(nesterov: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "precision", lambda _: torch.bfloat16)  # torch's own, whatever the device
    ours, theirs = matrices(), matrices()
    mine = Muon(groups(ours), nesterov=nesterov)
    reference = torch.optim.Muon(groups(theirs), nesterov=nesterov, adjust_lr_fn="match_rms_adamw")
    for step in range(5):
        for parameters, optimizer in ((ours, mine), (theirs, reference)):
            set_gradients(parameters, step)
            optimizer.step()
        for a, b in zip(ours, theirs, strict=True):
            # The iteration runs in bf16, where another order of sums is another last digit
            torch.testing.assert_close(a, b, rtol=0, atol=2e-4)
            ours_state, theirs_state = mine.state[a], reference.state[b]
            assert ours_state.keys() == theirs_state.keys() == {"momentum_buffer"}
            assert torch.equal(ours_state["momentum_buffer"], theirs_state["momentum_buffer"])
    assert not torch.equal(ours[0], matrices()[0])


def test_a_matrix_without_gradient_stays() -> None:
    parameters = matrices()
    optimizer = Muon(parameters)
    set_gradients(parameters, 0)
    parameters[3].grad = None
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer.step()
    stays = [torch.equal(a, b) for a, b in zip(parameters, before, strict=True)]
    assert stays == [index == 3 for index in range(len(parameters))]
    assert parameters[3] not in optimizer.state


def test_the_rate_may_be_a_tensor() -> None:
    ours, theirs = matrices(), matrices()
    mine, reference = Muon(ours, torch.tensor(0.02)), Muon(theirs, 0.02)
    for step in range(2):
        for parameters, optimizer in ((ours, mine), (theirs, reference)):
            set_gradients(parameters, step)
            optimizer.step()
        mine.param_groups[0]["lr"].fill_(0.01)
        reference.param_groups[0]["lr"] = 0.01
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def bits(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = [value for p in parameters for value in optimizer.state[p].values()]
    return [tensor.detach().clone().view(torch.int32) for tensor in [*parameters, *state]]


def test_a_refused_step_moves_nothing() -> None:
    """Even with gradients that are not finite, and to the bit; the next step goes on as if it had not
    been."""
    ours, theirs = matrices(), matrices()
    mine, reference = Muon(ours, 0.02), Muon(theirs, 0.02)
    mine.found_inf = torch.zeros(())
    for step in range(3):
        for parameters, optimizer in ((ours, mine), (theirs, reference)):
            set_gradients(parameters, step)
            optimizer.step()
        before = bits(mine)
        mine.found_inf.fill_(1.0)
        set_gradients(ours, 99)
        for parameter, value in zip(ours, (float("nan"), float("inf")), strict=False):
            assert parameter.grad is not None
            parameter.grad[0, 0] = value
        mine.step()
        assert all(torch.equal(a, b) for a, b in zip(bits(mine), before, strict=True))
        mine.found_inf.fill_(0.0)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def _step_shards() -> None:
    """On two ranks: a split matrix moves as a whole one does, and not at all where the flag says so."""
    torch.distributed.init_process_group("gloo")
    try:
        mesh = init_device_mesh("cpu", (2,))
        ours, theirs = matrices(1), matrices(1)
        split = [nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])) for p in ours]
        mine, reference = Muon(split, 0.02), Muon(theirs, 0.02)
        mine.found_inf = torch.zeros(())
        for step in range(3):
            set_gradients(theirs, step)
            for part, whole in zip(split, theirs, strict=True):
                part.grad = distribute_tensor(whole.grad, mesh, [Shard(0)])
            mine.step()
            reference.step()
        for part, whole in zip(split, theirs, strict=True):
            assert isinstance(part.data, DTensor) and part.to_local().shape[0] * 2 == whole.shape[0]
            torch.testing.assert_close(part.full_tensor(), whole.data, rtol=0, atol=1e-5)
            state, expected = mine.state[part]["momentum_buffer"], reference.state[whole]["momentum_buffer"]
            torch.testing.assert_close(state.full_tensor(), expected)
        before = [part.to_local().clone() for part in split]
        mine.found_inf.fill_(1.0)
        mine.step()
        assert all(torch.equal(part.to_local(), old) for part, old in zip(split, before, strict=True))
        mine.found_inf.fill_(0.0)
        mine.step()
        assert not any(torch.equal(part.to_local(), old) for part, old in zip(split, before, strict=True))
    finally:
        torch.distributed.destroy_process_group()


def test_split_matrices_move_as_whole_ones() -> None:
    ranks.run(2, _step_shards)


def test_one_iteration_per_shape() -> None:
    """However many layers: (64, 16) and (16, 64) go together, so three iterations for four shapes."""
    counts = []
    for layers in (2, 8):
        parameters = matrices(layers)
        set_gradients(parameters, 0)
        optimizer = Muon(parameters)
        with torch.profiler.profile() as profile:
            optimizer.step()
        counts.append(sum(event.count for event in profile.key_averages() if event.key == "aten::baddbmm"))
    assert counts == [3 * 5 * 2, 3 * 5 * 2]


def test_only_matrices_are_taken() -> None:
    with pytest.raises(ValueError, match="a parameter of 4: Muon moves matrices"):
        Muon([nn.Parameter(torch.zeros(4))])


def trained(model: nn.Module, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    images, targets = batch(step)
    model.zero_grad()
    nn.functional.cross_entropy(model(images), targets).backward()
    for optimizer in optimizers:
        optimizer.step()


def test_old_checkpoints_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch's Muon left behind under the same names is what ours starts from."""
    monkeypatch.setattr(muon, "precision", lambda _: torch.bfloat16)
    torch.manual_seed(0)
    model = Tiny()
    hidden = {n: p for n, p in model.named_parameters() if n.startswith("blocks.") and p.ndim == 2}
    theirs = torch.optim.Muon(hidden.items(), 0.01, adjust_lr_fn="match_rms_adamw")
    trained(model, [theirs], 0)
    other = copy.deepcopy(model)
    ours = Muon([(n, p) for n, p in other.named_parameters() if n in hidden], 0.01)
    old = {f"{name}.momentum_buffer": theirs.state[p]["momentum_buffer"] for name, p in hidden.items()}
    optim.create_state([ours], old)
    state = optim.state_tensors([ours])
    assert state.keys() == old.keys()
    for name, value in old.items():
        state[name].copy_(value)
    other.load_state_dict(model.state_dict())
    trained(model, [theirs], 1)
    trained(other, [ours], 1)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
