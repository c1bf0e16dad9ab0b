"""A head that logistic regression found: what it means, where it goes, that a resumed run keeps it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import vitreous
from tests import ranks
from tests.training.runs import assert_same_weights, weights
from vitreous import parallel
from vitreous.config import FinetuneConfig, Precision
from vitreous.data import open_data
from vitreous.errors import OptionError
from vitreous.evals import linear, outputs
from vitreous.models import adapt, zoo
from vitreous.predict import load
from vitreous.training import finetune, head, setup

SEALED = "tests/fixtures/sealed_v1.safetensors"
OPTIONS = FinetuneConfig(
    epochs=1, batch_size=64, lr=1e-9, ema=0.0, augment="none", device="cpu", fit_head="yes", tune="head"
)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fifth of the digits: enough for a head."""
    arrays: dict[str, np.ndarray] = {}
    for name, split in open_data("digits").splits.items():
        rows = np.arange(len(split))[::5]
        arrays[f"{name}_images"] = np.stack([np.asarray(split.read(int(row), 1)) for row in rows])
        arrays[f"{name}_labels"] = split.targets[rows]
    path = tmp_path_factory.mktemp("few") / "digits.npz"
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    return str(path)


def test_the_head_gives_what_the_regression_gives(few: str) -> None:
    """Against scikit-learn: the same probabilities, from the model's own images."""
    dataset = open_data(few)
    classifier = load(SEALED)
    model = classifier.model
    adapt.set_classes(model, 10)
    preprocessing = classifier.preprocess.preprocessing
    head.fit(model, dataset, preprocessing, parallel.World(device=torch.device("cpu")))
    train, val = (
        head._seen(model, model.head, dataset.splits[name], preprocessing=preprocessing)
        for name in ("train", "val")
    )
    strength, _ = linear.choose(train, val, 10)
    mean, deviation = train[0].mean(0), train[0].std(0)
    reference = LogisticRegression(C=1 / (strength * len(train[0])), max_iter=5000, tol=1e-8)
    reference.fit((train[0] - mean) / deviation, train[1])
    expected = reference.predict_proba((val[0] - mean) / deviation)
    found = model.head(torch.from_numpy(val[0])).softmax(1).detach().numpy()
    assert np.abs(found - expected).max() < 1e-2


def test_no_more_images_than_one_rank_can_bear(few: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "MOST", 60)
    dataset, classifier = open_data(few), load(SEALED)
    adapt.set_classes(classifier.model, 10)
    seen: list[int] = []
    regress = linear.fit

    def counted(features: np.ndarray, *rest: Any, **options: Any) -> Any:
        seen.append(len(features))
        return regress(features, *rest, **options)

    monkeypatch.setattr(linear, "fit", counted)
    world = parallel.World(device=torch.device("cpu"))
    head.fit(classifier.model, dataset, classifier.preprocess.preprocessing, world)
    assert len(dataset.splits["train"]) > 60 and set(seen) == {60}


def test_a_run_starts_with_it(few: str, tmp_path: Path) -> None:
    """At a learning rate of nothing the run is the regression; without it, it is zeros: a guess."""
    fitted = finetune(SEALED, few, replace(OPTIONS, out=str(tmp_path / "fitted")))
    zeros = finetune(SEALED, few, replace(OPTIONS, out=str(tmp_path / "zeros"), fit_head="no"))
    assert fitted.figures["test"]["accuracy"] > zeros.figures["test"]["accuracy"] + 0.3
    assert vitreous.load(fitted.folder).about["recipe"]["fit_head"] is True


def test_going_on_does_not_fit_again(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(OPTIONS, lr=1e-2, epochs=4, tune="full", save_every=3)
    whole = finetune(SEALED, few, replace(options, out=str(tmp_path / "whole")))
    stopped = tmp_path / "stopped"
    steps: list[int] = []

    def stop(figures: dict[str, float]) -> None:
        steps.append(int(figures["step"]))
        if len(steps) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vitreous.finetune(
            SEALED,
            few,
            on_step=stop,
            out=stopped,
            **{n: v for n, v in vars(options).items() if n != "out" and v is not None},
        )
    monkeypatch.setattr(head, "fit", lambda *_: pytest.fail("fitted again"))
    again = finetune(SEALED, few, replace(options, out=str(stopped)))
    assert_same_weights(weights(whole.folder), weights(again.folder))


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_it_is_fitted_in_the_runs_precision(
    precision: Precision, few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the model will be trained and evaluated: on many processors bf16 is twice as fast."""
    used: list[str] = []
    run = outputs.run
    monkeypatch.setattr(
        head.outputs, "run", lambda *given, **how: used.append(how["precision"]) or run(*given, **how)
    )
    finetune(SEALED, few, replace(OPTIONS, out=str(tmp_path), precision=precision))
    assert used == [precision, precision]  # the training images, and those to choose with


def test_a_head_that_is_no_dense_layer_is_refused() -> None:
    model = vitreous.create_model("resnetv2_50x1_bit", num_classes=10, image_size=32)
    world = parallel.World(device=torch.device("cpu"))
    with pytest.raises(OptionError, match="dense head"):
        head.fit(model, open_data("digits"), load(SEALED).preprocess.preprocessing, world)


def _fit_here(out: str) -> None:
    model = load(SEALED).model
    adapt.set_classes(model, 10)
    with parallel.join("cpu") as world:
        head.fit(model, open_data("digits"), load(SEALED).preprocess.preprocessing, world)
        torch.save(model.head.state_dict(), f"{out}/{world.rank}.pt")


def test_ranks_have_the_same_head(tmp_path: Path) -> None:
    ranks.run(2, _fit_here, str(tmp_path))
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert first["weight"].abs().sum() > 0
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_several_labels_are_each_a_yes_or_no() -> None:
    """Two labels that say the same get the same weights; one that is always there is answered always."""
    whole = open_data("digits")
    splits = {
        name: replace(
            split, targets=np.stack([split.targets == 3, split.targets == 3, split.targets >= 0], 1)
        )
        for name, split in whole.splits.items()
    }
    dataset = replace(whole, labels=["three", "again", "any"], multilabel=True, splits=splits)
    classifier = load(SEALED)
    adapt.set_classes(classifier.model, 3)
    preprocessing = classifier.preprocess.preprocessing
    head.fit(classifier.model, dataset, preprocessing, parallel.World(device=torch.device("cpu")))
    weight, bias = classifier.model.head.weight, classifier.model.head.bias
    assert torch.allclose(weight[0], weight[1], rtol=1e-2) and bias[2] > 2


def test_by_itself_only_where_it_can_be_done() -> None:
    """A ResNet's head is a convolution, and shards are no matrix: a time budget does without."""
    vit, resnet = zoo.get_config("ViT-Ti/16"), zoo.get_config("BiT-R50x1")
    found = [
        setup.fits_head(FinetuneConfig(shard=shard), model)
        for model in (vit, resnet)
        for shard in (False, True)
    ]
    assert found == [True, False, False, False]
    assert setup.fits_head(FinetuneConfig(fit_head="yes"), resnet)
    assert not setup.fits_head(FinetuneConfig(fit_head="no"), vit)
