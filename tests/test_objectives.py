"""Losses against timm's and against sums written out; weights, smoothing, mixed and several labels."""

import numpy as np
import pytest
import torch
from timm.loss.binary_cross_entropy import BinaryCrossEntropy
from timm.loss.cross_entropy import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor, nn

from tests.conftest import randomize
from vitreous.data import Batch
from vitreous.errors import OptionError
from vitreous.models.zoo import create_model
from vitreous.objectives.supervised import Supervised, correct

torch.manual_seed(0)
LOGITS = torch.randn(7, 5) * 3
LABELS = torch.tensor([0, 1, 2, 3, 4, 0, 2])
MIXED = torch.softmax(torch.randn(7, 5) * 4, 1)
SEVERAL = (torch.rand(7, 5) > 0.6).float()


class Fixed(nn.Module):
    """Gives the scores that it was told."""

    def __init__(self, logits: Tensor = LOGITS) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.logits[: len(images)]


def loss_of(targets: Tensor, **options: object) -> float:
    objective = Supervised(Fixed(), **options)  # type: ignore[arg-type]
    loss, _ = objective(Batch(torch.zeros(len(targets), 1), targets, torch.arange(len(targets))))
    return loss.item()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_is_timms(smoothing: float) -> None:
    theirs = LabelSmoothingCrossEntropy(smoothing)(LOGITS, LABELS).item()
    assert loss_of(LABELS, label_smoothing=smoothing) == pytest.approx(theirs, rel=1e-6)
    soft = MIXED * (1 - smoothing) + smoothing / 5
    theirs = SoftTargetCrossEntropy()(LOGITS, soft).item()
    assert loss_of(MIXED, label_smoothing=smoothing) == pytest.approx(theirs, rel=1e-6)


def test_softmax_by_hand() -> None:
    logits = LOGITS.double().numpy()
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert loss_of(LABELS) == pytest.approx(-log_p[np.arange(7), LABELS.numpy()].mean(), rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sigmoid_is_timms(smoothing: float) -> None:
    """timm's is the mean over classes, ours and big_vision's the sum; its threshold is DeiT III's reading."""
    theirs = BinaryCrossEntropy(smoothing)(LOGITS, LABELS).item()
    assert loss_of(LABELS, loss="sigmoid", label_smoothing=smoothing) == pytest.approx(5 * theirs, rel=1e-6)
    binary = BinaryCrossEntropy(0.0, target_threshold=0.0)
    theirs = binary(LOGITS, SEVERAL * 0.3).item()
    ours = loss_of(SEVERAL * 0.3, loss="sigmoid", positive_above=0.0)
    assert ours == pytest.approx(5 * theirs, rel=1e-6)
    assert ours != pytest.approx(loss_of(SEVERAL * 0.3, loss="sigmoid"), rel=1e-2)


def test_sigmoid_by_hand() -> None:
    p = 1 / (1 + np.exp(-LOGITS.double().numpy()))
    y = SEVERAL.numpy()
    expected = -(y * np.log(p) + (1 - y) * np.log(1 - p)).sum(1).mean()
    assert loss_of(SEVERAL, loss="sigmoid") == pytest.approx(expected, rel=1e-5)


def test_class_weights_multiply_each_image() -> None:
    weights = [0.5, 1.0, 2.0, 0.0, 3.0]
    objective = Supervised(Fixed(), class_weights=weights)
    plain = Supervised(Fixed())
    expected = plain.losses(LOGITS, LABELS) * torch.tensor(weights)[LABELS]
    torch.testing.assert_close(objective.losses(LOGITS, LABELS), expected)
    one_hot = nn.functional.one_hot(LABELS, 5).float()
    torch.testing.assert_close(objective.losses(LOGITS, one_hot), expected)
    sigmoid = Supervised(Fixed(), loss="sigmoid", class_weights=weights)
    each = nn.functional.binary_cross_entropy_with_logits(LOGITS, SEVERAL, reduction="none")
    torch.testing.assert_close(sigmoid.losses(LOGITS, SEVERAL), (each * torch.tensor(weights)).sum(1))
    assert list(objective.state_dict()) == ["model.logits"]  # weights are an option, not a result


def test_parts_add_up_to_the_whole() -> None:
    """Means weighted by the number of images are the mean of all, also with weights and an empty part."""
    objective = Supervised(Fixed(), class_weights=[1.0, 2.0, 3.0, 4.0, 5.0])
    whole = objective.losses(LOGITS, LABELS).mean()
    total = torch.zeros(())
    for start, stop in ((0, 3), (3, 3), (3, 4), (4, 7)):
        part = Supervised(Fixed(LOGITS[start:stop]), class_weights=[1.0, 2.0, 3.0, 4.0, 5.0])
        count = stop - start
        loss, metrics = part(Batch(torch.zeros(count, 1), LABELS[start:stop], torch.arange(count)))
        assert torch.isfinite(loss) and torch.isfinite(metrics["accuracy"])
        total = total + loss * count / 7
    torch.testing.assert_close(total, whole)


def test_only_one_label_per_image_has_an_accuracy() -> None:
    """With several labels the best one may be right and the answer still wrong: another name."""
    for loss, targets, name in (
        ("softmax", LABELS, "accuracy"),
        ("softmax", MIXED, "accuracy"),
        ("sigmoid", LABELS, "accuracy"),
        ("sigmoid", SEVERAL, "best_label_right"),
    ):
        objective = Supervised(Fixed(), loss=loss)  # type: ignore[arg-type]
        _, metrics = objective(Batch(torch.zeros(7, 1), targets, torch.arange(7)))
        assert metrics.keys() == {name}
        assert metrics[name] == correct(LOGITS, targets).float().mean()


def test_what_counts_as_correct() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0]] * 4)
    assert correct(logits, torch.tensor([0, 1, 2, 0])).tolist() == [True, False, False, True]
    mixed = torch.tensor([[0.7, 0.3, 0.0], [0.3, 0.7, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
    assert correct(logits, mixed).tolist() == [True, False, False, True]
    several = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert correct(logits, several).tolist() == [
        True,
        False,
        False,
        True,
    ]  # no label at all: nothing is right


def test_a_vit_learns_through_it() -> None:
    model = create_model(
        "vit_tiny_patch16_224",
        image_size=8,
        patch_size=4,
        width=16,
        depth=1,
        heads=2,
        mlp_width=32,
        num_classes=5,
    )
    objective = Supervised(model)
    batch = Batch(torch.randn(7, 3, 8, 8), LABELS, torch.arange(7))
    optimizer = torch.optim.Adam(objective.parameters(), 0.01)
    losses, metrics = [], {}
    for _ in range(60):
        loss, metrics = objective(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(np.log(5))  # the head starts at zero: all classes are equal
    assert losses[-1] < 0.1 and metrics["accuracy"] == 1.0
    assert not metrics["accuracy"].requires_grad


def test_padding_is_left_out_of_what_is_learned() -> None:
    """Whatever lies under the mask changes neither the loss nor a gradient; without one it does."""
    shape = {"image_size": 8, "patch_size": 4, "width": 16, "depth": 1, "heads": 2, "mlp_width": 32}
    objective = Supervised(randomize(create_model("vit_tiny_patch16_224", **shape, num_classes=5)))  # type: ignore[arg-type]
    images, mask = torch.randn(7, 3, 8, 8), torch.tensor([[True, True, False, False]] * 7)
    other = images.clone()
    other[:, :, 4:] += 1.0

    def learned(images: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        loss, _ = objective(Batch(images, LABELS, torch.arange(7), mask))
        return loss, *torch.autograd.grad(loss, list(objective.parameters()))

    for ours, theirs in zip(learned(images, mask), learned(other, mask), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert (learned(images, None)[0] - learned(other, None)[0]).abs() > 1e-3


def test_wrong_options_are_named() -> None:
    with pytest.raises(OptionError, match="unknown loss 'hinge': expected softmax or sigmoid"):
        Supervised(Fixed(), loss="hinge")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="label smoothing 1.0 is out of range"):
        Supervised(Fixed(), label_smoothing=1.0)
