"""What a classifier answered, against scikit-learn; ranks and parts change nothing; ties, a wish to stop."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, top_k_accuracy_score
from torch import Tensor, nn

from tests import ranks
from vitreous import parallel
from vitreous.data import Batch, Split, open_data
from vitreous.data.order import share
from vitreous.evals import accuracy, answers, mean_loss
from vitreous.evals.answers import Answers, rank_of_label
from vitreous.evals.outputs import Inference, Interrupted
from vitreous.objectives.supervised import Supervised

ALONE = parallel.World(device=torch.device("cpu"))
LABELS = [str(label) for label in range(10)]


class Linear(nn.Module):
    """A classifier of digits that has learned nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(64, 10)

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.layer(images.flatten(1))


class Feed:
    """Batches of a split in order, of which a rank gets its share; no loader, which has tests of its own."""

    def __init__(self, split: Split, batch_size: int = 50, world: parallel.World = ALONE) -> None:
        self.split, self.batch_size, self.world = split, batch_size, world

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        for first in range(0, len(self.split), self.batch_size):
            rows = np.arange(first, min(first + self.batch_size, len(self.split)))
            mine = rows[share(len(rows), self.world.rank, self.world.size)]
            pixels = [np.asarray(self.split.read(int(row), 1))[None] / 127.5 - 1 for row in mine]
            images = torch.from_numpy(np.array(pixels, np.float32).reshape(-1, 1, 8, 8))
            yield Batch(images, torch.from_numpy(self.split.targets[mine]), torch.from_numpy(mine))


def answered(split: Split, batch_size: int, world: parallel.World = ALONE, **how: object) -> Answers:
    inference = Inference(world=world, **how)  # type: ignore[arg-type]
    return answers.collect(inference.batches(Feed(split, batch_size, world), Linear()), world)


def all_probabilities(split: Split) -> np.ndarray:
    batches = [Linear()(batch.images) for batch in Feed(split).epoch(0)]
    return torch.cat(batches).detach().double().softmax(1).numpy()


def test_figures_are_scikit_learns() -> None:
    split = open_data("digits").splits["test"]
    document = accuracy.document(answered(split, 50), LABELS)
    shares, classes = all_probabilities(split), range(10)
    assert document["count"] == len(split) == 359
    assert document["accuracy"] == pytest.approx(accuracy_score(split.targets, shares.argmax(1)), abs=1e-12)
    assert document["top5"] == pytest.approx(top_k_accuracy_score(split.targets, shares, k=5), abs=1e-12)
    assert document["loss"] == pytest.approx(log_loss(split.targets, shares, labels=classes), rel=1e-5)
    assert document["confusion"] == confusion_matrix(split.targets, shares.argmax(1), labels=classes).tolist()
    each = -np.log(shares[np.arange(359), split.targets])
    wrong = shares.argmax(1) != split.targets
    order = [int(i) for i in np.argsort(-each) if wrong[i]][:24]
    assert [row["index"] for row in document["worst"]] == order
    first = document["worst"][0]
    assert first["truth"] == LABELS[split.targets[order[0]]]
    assert first["guess"] == LABELS[shares[order[0]].argmax()] != first["truth"]
    assert first["probability"] == pytest.approx(shares[order[0]].max(), rel=1e-6)


def test_parts_change_nothing() -> None:
    split = open_data("digits").splits["val"]
    whole = accuracy.headline(answered(split, 180))
    parts = accuracy.headline(answered(split, 37, micro_batch=5))
    assert whole == pytest.approx(parts, abs=1e-6)


def test_a_wish_to_stop_is_heard() -> None:
    split = open_data("digits").splits["val"]
    asked = []

    def stopped() -> bool:
        asked.append(True)
        return len(asked) == 3

    with pytest.raises(Interrupted):
        answered(split, 20, stopped=stopped)
    assert len(asked) == 3
    with pytest.raises(Interrupted):
        inference = Inference(world=ALONE, stopped=lambda: True)
        mean_loss.collect(Supervised(Linear()), Feed(split, 20), inference)  # type: ignore[arg-type]


class Dropping(Linear):
    """The same, which forgets half of what it sees while it learns."""

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.layer(nn.functional.dropout(images.flatten(1), 0.5, self.training))


def test_a_mean_loss_is_taken_without_dropout() -> None:
    split = open_data("digits").splits["val"]
    objective = Supervised(Dropping()).train()  # type: ignore[arg-type]
    found = mean_loss.collect(objective, Feed(split), Inference(world=ALONE)).figures  # type: ignore[arg-type]
    assert found["loss"] == pytest.approx(accuracy.headline(answered(split, 50))["loss"], rel=1e-6)


def _on_ranks(folder: Path) -> None:
    """181 images in batches of 90: the last batch has one image, and all ranks but one have none of it."""
    with parallel.join("cpu") as world:
        split = open_data("digits").splits["train"].select(np.arange(181))
        found = accuracy.document(answered(split, 90, world), LABELS)
        objective = Supervised(Linear())  # type: ignore[arg-type]
        means = mean_loss.collect(objective, Feed(split, 90, world), Inference(world=world))
        if world.is_main:
            (folder / "found.json").write_text(json.dumps([found, means.document()]))


def _parts(folder: Path) -> None:
    """65 images on two ranks, 32 at a time: one part for the one, two for the other."""
    with parallel.join("cpu") as world:
        model, split = Linear(), open_data("digits").splits["train"].select(np.arange(65))
        sizes: list[int] = []
        model.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
        inference = Inference(world=world, micro_batch=32)
        counts = [len(values) for _, values in inference.batches(Feed(split, 65, world), model)]
        (folder / f"{world.rank}.json").write_text(json.dumps([sizes, counts]))


def test_ranks_that_share_a_model_call_it_equally_often(tmp_path: Path) -> None:
    """Each call exchanges its shards: one call more, and its rank would wait for ever."""
    ranks.run(2, _parts, tmp_path)
    calls, images = zip(
        *(json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)), strict=True
    )
    assert calls == ([32, 1], [32, 1]) and sorted(images) == [[32], [33]]


def test_ranks_share_the_work_and_no_image_counts_twice(tmp_path: Path) -> None:
    ranks.run(3, _on_ranks, tmp_path)
    found, means = json.loads((tmp_path / "found.json").read_text())
    split = open_data("digits").splits["train"].select(np.arange(181))
    alone = accuracy.document(answered(split, 90), LABELS)
    assert found["count"] == 181
    for name in ("accuracy", "top5", "confusion", "mean_per_class_accuracy", "accuracy_interval"):
        assert found[name] == alone[name], name
    assert found["loss"] == pytest.approx(alone["loss"], rel=1e-6)
    assert [row["index"] for row in found["worst"]] == [row["index"] for row in alone["worst"]]
    assert means["count"] == 181 and means["accuracy"] == pytest.approx(alone["accuracy"], abs=1e-6)
    assert means["loss"] == pytest.approx(alone["loss"], rel=1e-5)


def test_ranks_of_labels() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, 2.0]] * 4)
    assert rank_of_label(logits, torch.tensor([0, 1, 2, 3])).tolist() == [0, 3, 1, 2]  # of equals the first
    several = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0]], dtype=torch.float32)
    assert rank_of_label(logits, several).tolist() == [1, 4, 0, 3]
    scores = torch.randn(50, 7).round()  # with many ties
    labels = torch.randint(0, 7, (50,))
    assert torch.equal(rank_of_label(scores, labels) == 0, scores.argmax(1) == labels)


def test_scores_that_are_not_numbers_are_no_right_answer() -> None:
    """Every comparison with them is false, so none of them seems to be above the right class."""
    nan = float("nan")
    logits = torch.tensor([[nan, nan, nan], [nan, 2.0, 1.0], [0.0, nan, 1.0], [3.0, 2.0, 1.0]])
    ranks_of = rank_of_label(logits, torch.tensor([1, 1, 1, 0]))
    assert (ranks_of[:3] > 0).all() and ranks_of[3] == 0
    found = answers.from_logits(logits, torch.tensor([1, 1, 1, 0]), torch.arange(4))
    assert found.right.tolist() == [False, False, False, True]
