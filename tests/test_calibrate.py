"""`evaluate --calibrate` and `--abstain`: fitted on val alone, sealed where it helps, told on the card."""

from pathlib import Path
from shutil import copy

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

import vitreous
from tests.conftest import train_digits
from vitreous import checkpoint, files
from vitreous.config import EvaluateConfig
from vitreous.data import open_data
from vitreous.errors import CheckpointError, DataError
from vitreous.evals import calibration
from vitreous.evaluate import calibrating, evaluate, percent
from vitreous.predict import Classifier


def test_calibration_is_fitted_on_val_sealed_and_used(
    digits_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed = overconfident(digits_file, tmp_path / "a.safetensors")
    before = evaluate(str(sealed), "digits", EvaluateConfig())
    after = evaluate(str(sealed), "digits", EvaluateConfig(calibrate=True))
    assert after["accuracy"] == before["accuracy"]
    assert after["loss"] < before["loss"]
    shown = after["calibration"]
    assert shown["before"] == {"loss": before["loss"], "ece": before["ece"]} and shown["split"] == "test"
    assert shown["after"] == {"loss": after["loss"], "ece": after["ece"]} and shown["written"] is True
    said = capsys.readouterr().err
    assert f"calibration error {percent(before['ece'])} → {percent(after['ece'])}: written into" in said
    again = evaluate(str(sealed), "digits", EvaluateConfig(calibrate=True))
    assert again["calibration"]["written"] is False and again["loss"] == after["loss"]  # nothing to gain
    temperature = checkpoint.read(sealed).about["calibration"]["temperature"]
    assert temperature > 2
    picture = open_data("digits").splits["test"].read(0, 1)
    sure = vitreous.load(sealed).predict(picture)[0].probability
    plain = checkpoint.read(sealed)
    plain.about = {}
    checkpoint.write(plain, sealed)
    assert sure < vitreous.load(sealed).predict(picture)[0].probability


CARD = """# Model card

An image classifier.

## Results

| split | accuracy |
|---|---|
| test | 98.00% |

## Recipe

- epochs: 3

## Limits

It knows these classes only.
"""


def test_the_card_of_a_run_tells_of_its_calibration(
    digits_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sealed, between the results and the recipe; the rest of the card stays, whatever it says."""
    sealed, card = overconfident(digits_file, tmp_path / "best.safetensors"), tmp_path / "model_card.md"
    card.write_text(CARD)

    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(files, "publish", killed)
        evaluate(str(tmp_path), "digits", EvaluateConfig(calibrate=True))
    assert card.read_text() == CARD and "calibration" not in checkpoint.read(sealed).about  # sealed first
    found = evaluate(str(tmp_path), "digits", EvaluateConfig(calibrate=True))
    fit = found["calibration"]
    before, after = fit["before"], fit["after"]
    told = (
        f"Probabilities are calibrated: logits are divided by {fit['temperature']:.4g}, fitted on "
        f"{fit['images']} val images. On {found['count']} test images, which had no part in it: "
        f"calibration error {percent(before['ece'])} → {percent(after['ece'])}, "
        f"loss {before['loss']:.4f} → {after['loss']:.4f}."
    )
    assert card.read_text() == CARD.replace("## Recipe", f"## Calibration\n\n{told}\n\n## Recipe")
    card.write_text(
        CARD
    )  # as if it had not come so far: the next call makes it good, though nothing is fitted
    again = evaluate(str(tmp_path), "digits", EvaluateConfig(calibrate=True))
    assert not again["calibration"]["written"] and card.read_text().count(told) == 1
    evaluate(str(tmp_path), "digits", EvaluateConfig(calibrate=True))
    assert card.read_text().count("## Calibration") == 1


def test_only_the_best_model_of_a_run_is_on_its_card(digits_file: Path, tmp_path: Path) -> None:
    overconfident(digits_file, tmp_path / "last.safetensors")
    (tmp_path / "model_card.md").write_text(CARD)
    evaluate(str(tmp_path / "last.safetensors"), "digits", EvaluateConfig(calibrate=True))
    assert (tmp_path / "model_card.md").read_text() == CARD


def overconfident(source: Path, path: Path) -> Path:
    """Write the model anew: the same answers, far too sure."""
    weights = checkpoint.read(source)
    for name in ("head.weight", "head.bias"):
        weights.tensors[name] = weights.tensors[name] * 4
    checkpoint.write(weights, path)
    return path


def test_calibration_is_fitted_on_val_alone(digits_file: Path, tmp_path: Path) -> None:
    """Where half of val is labelled wrongly and test rightly, the two ask for very different temperatures."""
    digits, arrays = open_data("digits"), {}
    for name in ("train", "val", "test"):
        split = digits.splits[name]
        targets = split.targets.copy()
        if name == "val":
            targets[::2] = (targets[::2] + 1) % 10
        pixels = np.stack([np.asarray(split.read(i, 1)) for i in range(len(split))])
        arrays |= {f"x_{name}": pixels, f"y_{name}": targets}
    np.savez(tmp_path / "wrong.npz", **arrays)  # pyright: ignore[reportArgumentType]
    path = Path(copy(digits_file, tmp_path / "mine.safetensors"))
    found = evaluate(str(path), str(tmp_path / "wrong.npz"), EvaluateConfig(calibrate=True))["calibration"]
    clf, best = vitreous.load(digits_file), {}
    for name in ("val", "test"):
        images = torch.stack([clf.preprocess(Image.fromarray(pixels)) for pixels in arrays[f"x_{name}"]])
        with torch.no_grad():
            logits = clf.model(images)
        grid = np.linspace(0.1, 20, 400)
        losses = [cross_entropy(logits / t, torch.from_numpy(arrays[f"y_{name}"])).item() for t in grid]
        best[name] = grid[int(np.argmin(losses))]
    assert found["temperature"] == pytest.approx(best["val"], abs=0.1)
    assert best["val"] > 2 * best["test"]
    assert found["images"] == len(arrays["y_val"])
    # On test, which is labelled rightly, it does harm: it is shown, and the file is as it was
    assert found["after"]["ece"] > found["before"]["ece"] and found["written"] is False
    assert path.read_bytes() == digits_file.read_bytes()


def test_a_threshold_to_abstain_is_measured_and_sealed(digits_file: Path, tmp_path: Path) -> None:
    path = Path(copy(digits_file, tmp_path / "mine.safetensors"))
    found = evaluate(str(path), "digits", EvaluateConfig(abstain=0.9))
    clf, test = vitreous.load(path), open_data("digits").splits["test"]
    sure = [clf.predict(test.read(i, 1))[0].probability >= 0.9 for i in range(len(test))]
    assert found["abstain"]["coverage"] == pytest.approx(np.mean(sure))
    assert found["abstain"]["accuracy"] > found["accuracy"]
    assert clf.abstain == 0.0
    evaluate(str(path), "digits", EvaluateConfig(abstain=0.9, calibrate=True))
    assert vitreous.load(path).abstain == 0.9


def test_calibration_never_sees_what_is_reported(digits_file: Path, tmp_path: Path) -> None:
    path = Path(copy(digits_file, tmp_path / "mine.safetensors"))
    digits = open_data("digits")
    arrays = {}
    for name in ("train", "val"):
        split = digits.splits[name]
        pixels = np.stack([np.asarray(split.read(i, 1)) for i in range(len(split))])
        arrays |= {f"x_{name}": pixels, f"y_{name}": split.targets}
    np.savez(tmp_path / "two.npz", **arrays)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="besides the one that is measured"):  # without a test split: val
        evaluate(str(path), str(tmp_path / "two.npz"), EvaluateConfig(calibrate=True))


def test_a_calibration_that_is_cut_short_leaves_the_old_file(
    digits_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overconfident(digits_file, tmp_path / "best.safetensors")
    old = (tmp_path / "best.safetensors").read_bytes()

    def fail(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("killed")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(checkpoint, "save_file", fail)
        evaluate(str(tmp_path), "digits", EvaluateConfig(calibrate=True))
    assert [path.name for path in tmp_path.iterdir()] == ["best.safetensors"]
    assert (tmp_path / "best.safetensors").read_bytes() == old


def test_a_temperature_that_nothing_determines_is_not_written(
    digits_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of images that are all answered right the best temperature is 0: every answer would be certain."""
    sealed = overconfident(digits_file, tmp_path / "a.safetensors")
    before = sealed.read_bytes()
    monkeypatch.setattr(calibration, "determines", lambda *_: False)
    monkeypatch.setattr(calibrating, "_is_better", lambda *_: True)
    found = evaluate(str(sealed), "digits", EvaluateConfig(calibrate=True))["calibration"]
    assert not found["written"] and sealed.read_bytes() == before
    assert "don't determine a temperature" in capsys.readouterr().err


def test_a_link_to_a_sealed_file_stays_one(digits_file: Path, tmp_path: Path) -> None:
    sealed = overconfident(digits_file, tmp_path / "a.safetensors")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "model.safetensors").symlink_to(sealed)
    assert evaluate(str(tmp_path / "linked"), "digits", EvaluateConfig(calibrate=True))["calibration"][
        "written"
    ]
    assert (tmp_path / "linked" / "model.safetensors").is_symlink()
    assert "calibration" in checkpoint.read(sealed).about


def test_thresholds_are_written_only_where_they_help(pairs: Path, tmp_path: Path) -> None:
    """Labels that are never given at 0.5 are at a fitted threshold; a second fit has nothing to gain."""
    model = train_digits(steps=1, image_size=(8, 8))
    arrays = dict(np.load(pairs))
    arrays |= {"x_val": arrays["x_train"][:200], "y_val": arrays["y_train"][:200]}
    np.savez(tmp_path / "several.npz", **arrays)
    with torch.no_grad():
        model.model.head.bias -= 5.0
    sealed = Classifier(model.model, model.preprocess, model.labels, {"multilabel": True}).save(
        tmp_path / "best.safetensors"
    )
    (tmp_path / "model_card.md").write_text("# Model card\n\n")
    options = EvaluateConfig(calibrate=True)
    found = evaluate(str(sealed), str(tmp_path / "several.npz"), options)["calibration"]
    assert found["written"] and found["after"]["f1"] > found["before"]["f1"] == 0
    assert checkpoint.read(sealed).about["thresholds"] == found["thresholds"]
    told = (tmp_path / "model_card.md").read_text()
    assert "## Calibration\n\nEach label has a threshold of its own, fitted on 200 val images. On " in told
    assert f"F1 0.00 % → {percent(found['after']['f1'])}." in told
    assert not evaluate(str(sealed), str(tmp_path / "several.npz"), options)["calibration"]["written"]


def test_an_abstention_counts_for_several_labels_too(pairs: Path, tmp_path: Path) -> None:
    """Labels below it are given to nobody, as by `predict`."""
    model = train_digits(steps=40, image_size=(8, 8))
    sealed = Classifier(model.model, model.preprocess, model.labels, {"multilabel": True}).save(
        tmp_path / "several.safetensors"
    )
    plain, strict = (
        evaluate(str(sealed), str(pairs), EvaluateConfig(abstain=abstain)) for abstain in (None, 0.99999)
    )
    assert [row["threshold"] for row in strict["per_class"]] == [0.99999] * 10
    given = [sum(cells[0][1] + cells[1][1] for cells in each["confusion"]) for each in (plain, strict)]
    assert given[0] > 0 == given[1]
    assert strict["mean_average_precision"] == plain["mean_average_precision"]


def test_calibration_wants_a_sealed_file(digits_file: Path, tmp_path: Path) -> None:
    vitreous.load(digits_file).save(tmp_path / "timm", layout="timm")
    with pytest.raises(CheckpointError, match="is not a sealed file"):
        evaluate(str(tmp_path / "timm"), "digits", EvaluateConfig(calibrate=True))
