"""Checkpoints that several ranks write and any number of ranks reads."""

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests import ranks
from tests.tiny import Tiny, batch
from vitreous import optim, parallel
from vitreous.errors import DiskFullError
from vitreous.training import checkpoints as module
from vitreous.training.checkpoints import Checkpoints


class Objective(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Tiny(width=10)  # 10 rows and 3 classes: shards of unequal size, some of them empty

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(images), targets)


Job = tuple[str, bool, int, int]


def _go_on(folder: Path, jobs: list[Job]) -> None:
    with parallel.join("cpu") as world:
        for name, shard, first, last in jobs:
            _train(world, folder / name, shard, first, last)


def _train(world: parallel.World, folder: Path, shard: bool, first: int, last: int) -> None:
    """Train the steps [first, last) from the checkpoint before them, if any, and save after them."""
    torch.manual_seed(world.rank + first)  # other weights everywhere: only a checkpoint can make them equal
    objective = Objective()
    module = parallel.prepare(objective, world, shard=shard)
    optimizers = optim.build(objective.named_parameters(), lr=0.02)
    ema = optim.Ema(objective, 0.9)
    checkpoints = Checkpoints(folder)

    def live() -> dict[str, Tensor]:
        state = {f"optimizer.{name}": value for name, value in optim.state_tensors(optimizers).items()}
        weights = {f"model.{name}": value for name, value in objective.state_dict().items()}
        return {**weights, **{f"ema.{name}": value for name, value in ema.tensors.items()}, **state}

    saved = checkpoints.newest()
    if saved is not None:
        keys = [name.removeprefix("optimizer.") for name in saved.tensors if name.startswith("optimizer.")]
        optim.create_state(optimizers, keys)
        checkpoints.load(saved, live())
        assert saved.step == first
    for step in range(first, last):
        images, targets = batch(step)
        share = slice(world.rank * 6 // world.size, (world.rank + 1) * 6 // world.size)
        module(images[share], targets[share]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        ema.update(step)
    checkpoints.save(last, live(), {})
    checkpoints.wait()
    whole = parallel.whole_tensors(live())
    if world.is_main:
        save_file(whole, folder.with_suffix(f".{last}.safetensors"))
    checkpoints.close()


def test_two_ranks_write_one_and_three_go_on(tmp_path: Path) -> None:
    kinds = {"sharded": True, "replicated": False}
    # Uninterrupted; the same stopped at 3; and from there on, on as many ranks, on one, and on three.
    whole = [(f"whole-{kind}", shard, 0, 6) for kind, shard in kinds.items()]
    stopped = [(f"stopped-{kind}", shard, 0, 3) for kind, shard in kinds.items()]
    ranks.run(2, _go_on, tmp_path, [*whole, *stopped])
    shards = (tmp_path / "stopped-sharded" / "step-00000003").glob("*.safetensors")
    assert len(list(shards)) == 2
    for size in (1, 3):
        for kind in kinds:
            shutil.copytree(tmp_path / f"stopped-{kind}", tmp_path / f"{size}-{kind}")
        then = [(f"{size}-{kind}", shard, 3, last) for last in (3, 6) for kind, shard in kinds.items()]
        if size == 1:
            _go_on(tmp_path, then)
        else:
            ranks.run(size, _go_on, tmp_path, then)
    for kind in kinds:
        start = load_file(tmp_path / f"stopped-{kind}.3.safetensors")
        end = load_file(tmp_path / f"whole-{kind}.6.safetensors")
        for size in (1, 3):
            loaded = load_file(tmp_path / f"{size}-{kind}.3.safetensors")
            final = load_file(tmp_path / f"{size}-{kind}.6.safetensors")
            assert loaded.keys() == start.keys() == end.keys()
            for name, value in start.items():
                assert torch.equal(loaded[name], value), name  # exact: nothing was computed in between
                torch.testing.assert_close(
                    final[name], end[name], rtol=0, atol=1e-5, msg=f"{size} ranks: {name}"
                )
                assert not torch.equal(value, end[name])


def _no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _one_rank_fails(folder: Path) -> None:
    with parallel.join("cpu") as world:
        checkpoints = Checkpoints(folder)
        checkpoints.save(1, {f"r{i}": torch.ones(5) for i in range(4)}, {})
        checkpoints.wait()
        if world.rank == 1:
            real = module.async_save

            def full(*arguments: Any, storage_writer: Any, **options: Any) -> Any:
                storage_writer.write_data = _no_space
                return real(*arguments, storage_writer=storage_writer, **options)

            module.async_save = full  # type: ignore[assignment]
        checkpoints.save(2, {f"r{i}": torch.ones(5) for i in range(4)}, {})
        with pytest.raises(DiskFullError, match="no space for the checkpoint of step 2"):
            checkpoints.wait()
        saved = checkpoints.newest()
        assert saved is not None and saved.step == 1
        torch.distributed.barrier()
        assert sorted(path.name for path in folder.glob("step-*")) == ["step-00000001"]


def test_a_fault_on_one_rank_is_everyones(tmp_path: Path) -> None:
    ranks.run(2, _one_rank_fails, tmp_path)
