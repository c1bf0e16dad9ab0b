"""Where memory is short a batch is computed in parts, and nothing else changes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests import ranks
from tests.training.runs import OPTIONS, assert_same_weights, run, scarce, weights
from vitreous import optim, parallel
from vitreous.data import Batch
from vitreous.errors import TrainingError
from vitreous.objectives.supervised import Supervised
from vitreous.training import train
from vitreous.training.gradients import Gradients


def test_out_of_memory_takes_smaller_parts(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = replace(OPTIONS, epochs=1)
    train(data, replace(options, out=str(tmp_path / "scarce")), make_objective=scarce(5))
    said = capsys.readouterr().err
    assert "out of memory: computing 8 images at a time; the batch stays 16" in said
    assert "computing 4 images at a time" in said and said.count("out of memory") == 2
    given = run(data, tmp_path / "given", epochs=1, micro_batch=4)
    assert_same_weights(weights(tmp_path / "scarce"), weights(given.folder))


def test_no_memory_for_one_image_is_said(data: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="out of memory with a single image: .*--checkpointing"):
        train(data, replace(OPTIONS, out=str(tmp_path)), make_objective=scarce(0))


def test_a_batch_is_cut_into_parts() -> None:
    batch = Batch(
        torch.arange(7.0)[:, None], torch.arange(7), torch.arange(7), torch.ones(7, 2, dtype=torch.bool)
    )
    parts = batch.parts(3)
    assert [len(part) for part in parts] == [3, 3, 1]
    assert torch.equal(torch.cat([part.images for part in parts]), batch.images)
    assert all(part.mask is not None and len(part.mask) == len(part) for part in parts)


def _scarce_here(data: str, folder: Path) -> None:
    train(data, replace(OPTIONS, out=str(folder), epochs=1), make_objective=scarce(3))


@pytest.mark.slow
def test_ranks_agree_on_smaller_parts(data: str, tmp_path: Path) -> None:
    ranks.run(2, _scarce_here, data, tmp_path / "run")
    assert (tmp_path / "run" / "results.json").exists()


class Flat(nn.Module):
    """A classifier of vectors that is called as our models are, with a mask."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.layer(images)


def test_gradients_do_not_depend_on_parts() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    batch = Batch(torch.randn(7, 4), torch.randint(0, 3, (7,)), torch.arange(7))
    found = []
    for micro in (7, 3, 1):
        objective = Supervised(Flat(model))
        world = parallel.World(device=torch.device("cpu"))
        gradients = Gradients(
            objective, objective, world, images=7, micro_batch=micro, precision="float32", seed=0, note=print
        )
        figures = gradients(batch, 0)
        found.append([figures["loss"].item(), optim.gradient_norm(model.parameters()).item()])
        model.zero_grad()
    assert found[1] == pytest.approx(found[0], abs=1e-6)
    assert found[2] == pytest.approx(found[0], abs=1e-6)
