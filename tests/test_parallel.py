"""One process against several, compiled and checkpointed against plain; devices, precision, sums, speed."""

import json
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tests import ranks
from tests.tiny import Tiny, batch
from vitreous import optim, parallel
from vitreous.errors import OptionError
from vitreous.models import zoo
from vitreous.models.architecture import ViTConfig
from vitreous.models.zoo import build

CPU = torch.device("cpu")
ALONE = parallel.World(device=CPU)


class Objective(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = Tiny()

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(images), targets)


def trace(world: parallel.World, shard: bool, micro: int = 1, optimizer: str = "adamw") -> list[list[float]]:
    """Train five steps on this rank's share of each batch of 12; return losses, norms and final weights."""
    objective = Objective()
    module = parallel.prepare(objective, world, shard=shard)
    optimizers = optim.build(objective.named_parameters(), optimizer, lr=0.05, weight_decay=0.1)  # type: ignore[arg-type]
    ema = optim.Ema(objective, 0.9)
    losses, norms = [], []
    for step in range(5):
        images, targets = (torch.cat([batch(2 * step)[i], batch(2 * step + 1)[i]]) for i in range(2))
        share = 12 // world.size
        mine = slice(world.rank * share, (world.rank + 1) * share)
        loss = 0.0
        parts = list(zip(images[mine].chunk(micro), targets[mine].chunk(micro), strict=True))
        for i, (some_images, some_targets) in enumerate(parts):
            with parallel.accumulating(module, last=i == len(parts) - 1):
                part = module(some_images, some_targets) / len(parts)
                part.backward()
            loss += part.item()
        norm = optim.gradient_norm(objective.parameters())
        optim.clip_gradients(objective.parameters(), 0.5, norm)
        for o in optimizers:
            o.step()
            o.zero_grad()
        ema.update(step)
        losses.append(parallel.total({"loss": loss / world.size}, world)["loss"])
        norms.append(norm.item())
    tensors = parallel.whole_tensors(
        {**objective.state_dict(), **{f"ema.{k}": v for k, v in ema.tensors.items()}}
    )
    return [losses, norms, torch.cat([t.flatten() for t in tensors.values()]).tolist()]


def _write_traces(folder: Path) -> None:
    with parallel.join("cpu") as world:
        torch.manual_seed(world.rank)  # ranks must not depend on chance being the same
        found = {
            "ddp": trace(world, shard=False),
            "ddp, 2 micro-batches": trace(world, shard=False, micro=2),
            "fsdp": trace(world, shard=True),
            "fsdp, 2 micro-batches": trace(world, shard=True, micro=2),
        }
        for optimizer in ("adam", "sgd", "muon"):
            found[f"fsdp {optimizer}"] = trace(world, shard=True, optimizer=optimizer)
        if world.is_main:
            (folder / "traces.json").write_text(json.dumps(found))
        _check_talk(world)
        _check_shards(world)


def _check_talk(world: parallel.World) -> None:
    assert world.size == 2
    assert parallel.total({"a": 2**53 - 1 if world.is_main else 1, "b": 0.5}, world) == {
        "a": 2.0**53,
        "b": 1.0,
    }
    assert parallel.any_rank([world.is_main, False, not world.is_main], world) == [True, False, True]
    for flag, expected in ((world.is_main, True), (False, False), (True, True)):
        agreed = parallel.agree(torch.tensor(flag), world)
        assert agreed.dtype == torch.bool and bool(agreed) == expected
    assert parallel.broadcast({"rank": world.rank}, world) == {"rank": 0}
    assert parallel.gather(world.rank, world) == [0, 1]


def _check_shards(world: parallel.World) -> None:
    """Parameters, gradients and optimizer state of FSDP2 are split, and named as before."""
    objective = Objective()
    names = [name for name, _ in objective.named_parameters()]
    module = parallel.prepare(objective, world, shard=True, checkpointing=True)
    assert [name for name, _ in module.named_parameters()] == names
    optimizers = optim.build(objective.named_parameters(), lr=0.1)
    module(*batch(world.rank)).backward()
    optimizers[0].step()
    weight = objective.model.get_parameter("blocks.0.mlp.fc1.weight")
    state = optim.state_tensors(optimizers)["model.blocks.0.mlp.fc1.weight.exp_avg"]
    for tensor in (weight, weight.grad, state):
        assert isinstance(tensor, DTensor) and tensor.to_local().shape == (8, 8) and tensor.shape == (16, 8)


def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    ranks.run(2, _write_traces, tmp_path)
    traces = json.loads((tmp_path / "traces.json").read_text())
    assert len(traces) == 7
    names = ("adamw", "adam", "sgd", "muon")
    expected = {optimizer: trace(ALONE, shard=False, optimizer=optimizer) for optimizer in names}
    assert expected["adamw"][0][0] != expected["adamw"][0][-1]
    for name, found in traces.items():
        reference = expected[name.split()[1] if name.startswith("fsdp ") else "adamw"]
        # Muon orthogonalises in bf16, whose last digit depends on the order of sums.
        tolerance = 2e-2 if "muon" in name else 1e-5
        for ours, theirs in zip(found, reference, strict=True):
            assert ours == pytest.approx(theirs, abs=tolerance), name


def test_micro_batches_add_up() -> None:
    whole, parts = trace(ALONE, shard=False), trace(ALONE, shard=False, micro=3)
    for ours, theirs in zip(parts, whole, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_checkpointing_changes_nothing_but_memory() -> None:
    plain, thrifty = Objective(), Objective()
    names = [name for name, _ in thrifty.named_parameters()]
    kept = {"plain": 0, "thrifty": 0}
    for key, module in (("plain", plain), ("thrifty", parallel.prepare(thrifty, ALONE, checkpointing=True))):

        def keep(tensor: Tensor, key: str = key) -> Tensor:
            kept[key] += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = module(*batch(0))
        loss.backward()
    assert [name for name, _ in thrifty.named_parameters()] == names
    for a, b in zip(plain.parameters(), thrifty.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)  # type: ignore[arg-type]
    assert kept["thrifty"] < 0.7 * kept["plain"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["blocks", "whole"])
@pytest.mark.filterwarnings("ignore")  # inductor's own
def test_compiled_is_plain(how: str) -> None:
    plain, compiled = Objective(), Objective()
    names = list(compiled.state_dict())
    module = parallel.prepare(compiled, ALONE, compile=how, checkpointing=how == "blocks")  # type: ignore[arg-type]
    assert list(compiled.state_dict()) == names
    torch._dynamo.utils.counters.clear()  # type: ignore[attr-defined]
    losses = [module(*batch(0)), plain(*batch(0))]
    for loss in losses:
        loss.backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-5)
    for a, b in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # type: ignore[attr-defined]
    torch.compiler.reset()


def test_alone_there_is_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with parallel.join("cpu") as world:
        assert (world.rank, world.size, world.is_main, world.device) == (0, 1, True, CPU)
        assert not torch.distributed.is_initialized()
        assert parallel.total({"a": 3}, world) == {"a": 3.0}
        assert parallel.broadcast(7, world) == 7 and parallel.gather(7, world) == [7]


def test_devices_are_chosen_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="unknown device 'gpu': use auto, cpu, cuda"):
        parallel.choose_device("gpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert parallel.choose_device("auto", local_rank=1) == torch.device("cuda:1")
    assert parallel.choose_device("cuda:0", local_rank=1) == torch.device("cuda:0")
    with pytest.raises(OptionError, match="cuda:2 is not available: 2 GPUs are visible"):
        parallel.choose_device("cuda", local_rank=2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert parallel.choose_device("auto") == CPU


def test_precision_follows_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    for native in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *, including_emulation, n=native: n)
        assert parallel.has_bf16(torch.device("cuda:0")) == native
        for instruction in ("avx512_bf16", "amx_bf16"):
            found = {instruction: native}
            monkeypatch.setattr(torch.cpu, "get_capabilities", lambda f=found: f, raising=False)
            assert parallel.has_bf16(CPU) == native
    assert not parallel.has_bf16(torch.device("mps"))
    weight = torch.randn(4, 4)
    products = []
    for precision in ("bf16", "float32"):
        context: AbstractContextManager[object] = parallel.autocast(CPU, precision)  # type: ignore[arg-type]
        with context:
            products.append((weight @ weight).dtype)
    assert products == [torch.bfloat16, torch.float32]


def test_steps_are_seeded_by_function() -> None:
    draws = {}
    for key in [(0, 1, 0), (0, 2, 0), (0, 1, 1), (1, 1, 0)]:
        parallel.seed_step(*key)
        draws[key] = torch.rand(3).tolist()
    parallel.seed_step(0, 1, 0)
    assert torch.rand(3).tolist() == draws[0, 1, 0]
    assert len({tuple(draw) for draw in draws.values()}) == 4


def test_out_of_memory_is_recognised() -> None:
    assert parallel.out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert parallel.out_of_memory(caught.value)
    assert not parallel.out_of_memory(RuntimeError("shape mismatch"))


def test_speed_is_measured() -> None:
    rate = parallel.measure_matrix_rate(CPU, "float32", seconds=0.05)
    assert 1e8 < rate < 1e14
    assert parallel.utilization(100.0, 10**9, 1e12) == pytest.approx(0.3)
    before = parallel.peak_memory(CPU)
    held = torch.ones(64 * 2**20, dtype=torch.uint8)
    assert parallel.peak_memory(CPU) - before > 0.3 * held.numel() or before > 2**30


def test_convolutions_get_their_layout() -> None:
    """A ResNet computes channels last; its names, values and checkpoints are the same."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    module = parallel.prepare(model, ALONE)
    assert module.state_dict()["1.weight"].is_contiguous(memory_format=torch.channels_last)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    half = parallel.prepare(nn.Sequential(*(nn.Conv2d(3, 3, 3) for _ in range(2))), ALONE, precision="bf16")
    assert half.state_dict()["1.weight"].is_contiguous()  # whose group norm is slow that way
    single = parallel.prepare(Tiny(), ALONE)  # one convolution alone: the patches of a ViT
    assert single.get_parameter("patch_embed.proj.weight").is_contiguous()


def test_compiled_code_is_kept_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TORCHINDUCTOR_CACHE_DIR"
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(name, "elsewhere")
    with parallel.join("cpu"):
        assert os.environ[name] == "elsewhere"  # the user's own choice
    monkeypatch.delenv(name)
    with parallel.join("cpu"):
        assert Path(os.environ[name]) == tmp_path / "cache" / "compiled" and Path(os.environ[name]).is_dir()
    monkeypatch.delenv(name)
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "file"))
    with parallel.join("cpu"):
        assert name not in os.environ  # no folder can be made: torch takes its own


def test_settings_of_torch_are_put_back() -> None:
    """Those that a run changes, also where it fails: here to unusual ones."""
    before = torch.get_float32_matmul_precision(), torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.set_float32_matmul_precision("medium")
        torch.backends.cuda.enable_cudnn_sdp(True)
        with pytest.raises(ZeroDivisionError), parallel.join("cpu"):
            assert not torch.backends.cuda.cudnn_sdp_enabled()
            torch.set_float32_matmul_precision("high")  # as `prepare` does on a GPU
            raise ZeroDivisionError
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cuda.enable_cudnn_sdp(before[1])


def test_the_chosen_gpu_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events and recorded graphs are of the current GPU: with another one, outcomes are read too early."""
    current = [0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: current.append(getattr(device, "index", device))
    )
    with parallel.join("cuda:2") as world:
        assert current == [0, 2] and world.device == torch.device("cuda", 2)
    assert current == [0, 2, 0]


def test_an_evaluation_is_not_compiled() -> None:
    calls: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        calls.append("compiled")
        return graph

    layer = nn.Linear(2, 2)
    layer.compile(backend=backend)
    with parallel.uncompiled():
        layer(torch.ones(1, 2))
    assert not calls
    layer(torch.ones(1, 2))
    assert calls == ["compiled"]


def test_one_compiled_block_serves_every_rate_of_stochastic_depth() -> None:
    """With torch 2.11's treatment of numbers; the first block, which drops nothing, has its own."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    shape: dict[str, Any] = {"width": 16, "depth": 5, "heads": 2, "mlp_width": 32, "num_classes": 3}
    model = build(ViTConfig(image_size=(8, 8), patch_size=(4, 4), drop_path=0.2, **shape)).train()
    with torch.no_grad(), torch._dynamo.config.patch(specialize_float=True):
        for block in parallel.blocks(model):
            block.compile(backend=backend)
        model(torch.ones(2, 3, 8, 8))
    assert len(graphs) == 2


def test_what_is_frozen_is_compiled_with_what_learns() -> None:
    student, teacher = (zoo.create_model("ViT-Ti/16", depth=2, image_size=32) for _ in range(2))
    world = parallel.World(device=torch.device("cpu"))
    parallel.prepare(student, world, compile="blocks", frozen=(teacher,))
    for model in (student, teacher):
        assert all(block._compiled_call_impl is not None for block in parallel.blocks(model))
    parallel.prepare(other := zoo.create_model("ViT-Ti/16", depth=2, image_size=32), world)
    assert all(block._compiled_call_impl is None for block in parallel.blocks(other))
