"""Figures of a split against scikit-learn's; ranks and parts change nothing; ties, several labels."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, top_k_accuracy_score
from torch import Tensor, nn
from vitreous.evals.validation import Details, mean_loss, rank_of_label, validate

from tests import ranks
from vitreous import parallel
from vitreous.config import Preprocessing
from vitreous.data import Loader, Split, make_loader, open_data
from vitreous.objectives.supervised import Supervised

ALONE = parallel.World(device=torch.device("cpu"))
SIZE = Preprocessing(image_size=(8, 8), mean=(0.5,), std=(0.5,))


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def losses(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, targets, reduction="none")


def loader(split: Split, batch_size: int = 50, world: parallel.World = ALONE) -> Loader:
    return make_loader(
        split,
        preprocessing=SIZE,
        batch_size=batch_size,
        training=False,
        rank=world.rank,
        world_size=world.size,
    )


def all_logits(split: Split) -> np.ndarray:
    batches = [model()(batch.images) for batch in loader(split).epoch(0)]
    return torch.cat(batches).detach().double().softmax(1).numpy()


def test_figures_are_scikit_learns() -> None:
    split = open_data("digits").splits["test"]
    seen = Details(split)
    found = validate(model(), loader(split), losses, ALONE, details=seen)
    shares, classes = all_logits(split), range(10)
    assert found is not None
    assert found["count"] == len(split) == 359
    assert found["accuracy"] == pytest.approx(accuracy_score(split.targets, shares.argmax(1)), abs=1e-12)
    assert found["top5"] == pytest.approx(top_k_accuracy_score(split.targets, shares, k=5), abs=1e-12)
    assert found["loss"] == pytest.approx(log_loss(split.targets, shares, labels=classes), rel=1e-5)
    details = seen.gather(ALONE)
    assert details["confusion"] == confusion_matrix(split.targets, shares.argmax(1), labels=classes).tolist()
    each = -np.log(shares[np.arange(359), split.targets])
    wrong = shares.argmax(1) != split.targets
    order = [int(i) for i in np.argsort(-each) if wrong[i]][:24]
    assert [row["index"] for row in details["worst"]] == order
    first = details["worst"][0]
    assert first["file"] == split.name(order[0]) and first["truth"] == split.targets[order[0]]
    assert first["guess"] == shares[order[0]].argmax() != first["truth"]


def test_parts_change_nothing() -> None:
    split = open_data("digits").splits["val"]
    whole = validate(model(), loader(split, 180), losses, ALONE)
    parts = validate(model(), loader(split, 37), losses, ALONE, micro_batch=5)
    assert whole == pytest.approx(parts, abs=1e-6)


def test_a_wish_to_stop_is_heard() -> None:
    split = open_data("digits").splits["val"]
    assert validate(model(), loader(split, 20), losses, ALONE, stop=lambda: True) is None


def _on_ranks(folder: Path) -> None:
    """181 images in batches of 90: the last batch has one image, and all ranks but one have none of it."""
    with parallel.join("cpu") as world:
        data = open_data("digits")
        split = data.splits["train"].select(np.arange(181))
        seen = Details(split)
        found = validate(model(), loader(split, 90, world), losses, world, details=seen)
        both = mean_loss(Supervised(model()), loader(split, 90, world), world)
        details = seen.gather(world)
        if world.leads:
            (folder / "found.json").write_text(json.dumps([found, details, both]))


def test_ranks_share_the_work_and_no_image_counts_twice(tmp_path: Path) -> None:
    ranks.run(3, _on_ranks, tmp_path)
    found, details, both = json.loads((tmp_path / "found.json").read_text())
    split = open_data("digits").splits["train"].select(np.arange(181))
    seen = Details(split)
    alone = validate(model(), loader(split, 90), losses, ALONE, details=seen)
    assert alone is not None and found["count"] == 181
    assert found["accuracy"] == alone["accuracy"] and found["top5"] == alone["top5"]
    assert found["loss"] == pytest.approx(alone["loss"], rel=1e-6)
    assert details["confusion"] == seen.gather(ALONE)["confusion"]
    assert [row["index"] for row in details["worst"]] == [r["index"] for r in seen.gather(ALONE)["worst"]]
    assert both["count"] == 181 and both["accuracy"] == pytest.approx(alone["accuracy"], abs=1e-6)


def test_ranks_of_labels() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, 2.0]] * 4)
    assert rank_of_label(logits, torch.tensor([0, 1, 2, 3])).tolist() == [0, 3, 1, 2]  # of equals the first
    several = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0]], dtype=torch.float32)
    assert rank_of_label(logits, several).tolist() == [1, 4, 0, 3]
    scores = torch.randn(50, 7).round()  # with many ties
    labels = torch.randint(0, 7, (50,))
    assert torch.equal(rank_of_label(scores, labels) == 0, scores.argmax(1) == labels)
