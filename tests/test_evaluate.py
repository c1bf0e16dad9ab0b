"""`vitreous evaluate`: the document's shape, how classes are matched, honest splits, odd test sets."""

import json
from dataclasses import replace
from pathlib import Path
from shutil import copy
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score

import vitreous
from tests.conftest import randomize
from vitreous import checkpoint, cli
from vitreous.config import EvaluateConfig, Preprocessing, ProbeConfig, TrainConfig
from vitreous.data import open_data
from vitreous.data.augment import evaluation_transform
from vitreous.data.images import EncodedImages
from vitreous.errors import DataError, ModelError
from vitreous.evals import corruptions
from vitreous.evaluate import conditions, evaluate
from vitreous.models.architecture import ViTConfig
from vitreous.models.zoo import build
from vitreous.predict import Classifier
from vitreous.probe import probe
from vitreous.training import train


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A test folder of twelve digits as pictures, classes out of order, one of them broken."""
    test = open_data("digits").splits["test"]
    for label in (7, 3, 1):
        for number, index in enumerate(np.flatnonzero(test.targets == label)[:4]):
            path = tmp_path / "data" / "test" / str(label) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            test.read(int(index), 1).save(path)
    (tmp_path / "data" / "test" / "3" / "broken.png").write_bytes(b"not a picture")
    return tmp_path / "data"


def test_the_document_has_its_shape_and_the_right_figures(digits_file: Path) -> None:
    document = evaluate(str(digits_file), "digits", EvaluateConfig())
    assert {"accuracy", "top5", "loss", "ece", "per_class", "confusion", "count"} <= document.keys()
    json.dumps(document)
    clf, test = vitreous.load(digits_file), open_data("digits").splits["test"]
    guess = [clf.predict(test.read(i, 1))[0].label for i in range(len(test))]
    truth = [clf.labels[target] for target in test.targets]
    assert document["accuracy"] == pytest.approx(accuracy_score(truth, guess))
    assert document["count"] == len(test) == np.sum(document["confusion"])
    assert document["split"] == "test" and document["accuracy"] > 0.85
    assert all(row["truth"] != row["guess"] for row in document["worst"])


def test_a_folder_with_some_classes_out_of_order_gives_the_right_answer(
    digits_file: Path, folder: Path
) -> None:
    document = evaluate(str(digits_file), str(folder), EvaluateConfig())
    clf = vitreous.load(digits_file)
    paths = sorted(path for path in folder.glob("test/*/*.png") if path.name != "broken.png")
    right = [clf.predict(path)[0].label == path.parent.name for path in paths]
    assert document["count"] == 12
    assert document["accuracy"] == pytest.approx(np.mean(right))
    assert [row["count"] for row in document["per_class"]] == [0, 4, 0, 4, 0, 0, 0, 4, 0, 0]
    assert list(document["bad_files"]) == ["test/3/broken.png"] or "broken.png" in next(
        iter(document["bad_files"])
    )
    restricted = evaluate(str(digits_file), str(folder), EvaluateConfig(restrict=True))
    assert restricted["accuracy"] >= document["accuracy"]
    assert {k for k, column in enumerate(np.sum(restricted["confusion"], 0)) if column} <= {1, 3, 7}


def test_an_unknown_class_and_a_missing_split_are_one_line(digits_file: Path, folder: Path) -> None:
    with pytest.raises(DataError, match=r"the data has no split 'train': it has test|no split"):
        evaluate(str(digits_file), str(folder), EvaluateConfig(split="holdout"))
    (folder / "test" / "3").rename(folder / "test" / "cow")
    with pytest.raises(DataError, match="does not know 1 of the data's 3 classes: 'cow'"):
        evaluate(str(digits_file), str(folder), EvaluateConfig())


def test_classes_that_are_not_matched_by_name_are_said(
    digits_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By number or order the accuracy may be that of other classes: on stderr, table and JSON say so."""
    clf = vitreous.load(digits_file)
    names = "zero one two three four five six seven eight nine".split()
    named = str(replace(clf, labels=names).save(tmp_path / "named.safetensors"))
    test = open_data("digits").splits["test"].select(np.arange(40))
    pixels = np.stack([np.asarray(test.read(row, 1)) for row in range(40)])
    np.savez(tmp_path / "plain.npz", x_test=pixels, y_test=test.targets)
    np.savez(tmp_path / "names.npz", x_test=pixels, y_test=test.targets, names=np.array(names))
    plain, with_names = str(tmp_path / "plain.npz"), str(tmp_path / "names.npz")
    same = evaluate(str(digits_file), plain, EvaluateConfig())
    assert "classes_matched_by" not in same and "warning" not in capsys.readouterr().err
    found = evaluate(named, plain, EvaluateConfig(compare=str(digits_file)))
    said = capsys.readouterr().err
    assert found["accuracy"] == same["accuracy"] and found["classes_matched_by"] == "number"
    assert "classes_matched_by" not in found["compare"]
    assert f"warning: {named}: the data's 10 classes are matched" in said and said.count("warning") == 1
    assert cli.main(["evaluate", str(digits_file), with_names, "--compare", str(digits_file)]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("so the data's 10 classes are matched to its by order ('zero' is taken for") == 2
    assert printed.out.count("by order, not by name") == 2
    found = evaluate(named, with_names, EvaluateConfig(compare=str(digits_file)))
    assert "classes_matched_by" not in found and found["compare"]["classes_matched_by"] == "order"
    with pytest.raises(DataError, match="does not know 10 of the data's 10 classes: '0'"):
        evaluate(named, "digits", EvaluateConfig())  # these are names, and none of the model's


def test_digits_are_no_imagenet_without_a_word(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluate("tiny", str(folder), EvaluateConfig())
    assert found["classes_matched_by"] == "number"
    assert "3 classes are matched to the checkpoint's 1,000 by number, not by name ('1' is taken for " in (
        capsys.readouterr().err
    )


def test_one_image_is_enough(digits_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "one" / "test" / "5" / "a.png"
    path.parent.mkdir(parents=True)
    Image.new("L", (8, 8)).save(path)
    assert evaluate(str(digits_file), str(tmp_path / "one"), EvaluateConfig())["count"] == 1


def test_two_checkpoints_are_compared_on_the_same_images(digits_file: Path, tmp_path: Path) -> None:
    worse = Path(copy(digits_file, tmp_path / "b.safetensors"))
    weights = checkpoint.read(worse)
    weights.tensors["head.weight"] = weights.tensors["head.weight"].clone()
    weights.tensors["head.weight"][3] = 0
    checkpoint.write(weights, worse)
    found = evaluate(str(digits_file), "digits", EvaluateConfig(compare=str(worse)))
    other = found["compare"]
    assert other["difference"] == pytest.approx(other["accuracy"] - found["accuracy"])
    assert other["difference"] < 0 and other["p_value"] < 0.05
    same = evaluate(str(digits_file), "digits", EvaluateConfig(compare=str(digits_file)))
    assert same["compare"]["p_value"] == 1.0


@pytest.mark.slow
def test_corruptions_and_resolutions(digits_file: Path, folder: Path) -> None:
    options = EvaluateConfig(corruptions=True)
    found = evaluate(str(digits_file), str(folder), options)["corruptions"]
    assert len(found["errors"]) == 15 and all(len(row) == 5 for row in found["errors"].values())
    assert 0 <= found["mean_error"] <= 1 and "mce" not in found
    assert evaluate(str(digits_file), str(folder), options)["corruptions"] == found


def tiny_classifier(resize: Literal["pad", "none"], seed: int = 0, **about: Any) -> Classifier:
    """A model of digits whose weights are drawn at random."""
    shape: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2, "mlp_width": 32, "in_channels": 1}
    config = ViTConfig(image_size=(8, 8), patch_size=(2, 2), num_classes=10, **shape)
    settings = Preprocessing(image_size=(8, 8), resize=resize, mean=(0.3,), std=(0.35,))
    model = build(config)
    randomize(model, seed)
    return Classifier(model, evaluation_transform(settings, 2), [str(row) for row in range(10)], about)


@pytest.mark.parametrize("restrict", [False, True])
def test_what_is_corrupted_is_what_was_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restrict: bool
) -> None:
    """A corruption of nothing gives the same error; no padding is corrupted, and few images are held."""
    for path in folder.glob("test/*/?.png"):
        Image.open(path).crop((0, 0, 4, 8)).save(path)
    read, reads = EncodedImages.read, 0
    shapes, held = [], set[int]()

    def counted(*given: Any, **options: Any) -> Image.Image:
        nonlocal reads
        reads += 1
        return read(*given, **options)

    def nothing(pixels: np.ndarray, *_: object) -> np.ndarray:
        shapes.append(pixels.shape)
        held.add(reads)
        return pixels

    monkeypatch.setattr(EncodedImages, "read", counted)
    monkeypatch.setattr(corruptions, "CORRUPTIONS", {"nothing": (nothing, range(5))})
    monkeypatch.setattr(conditions, "AT_ONCE", 5)
    options = EvaluateConfig(corruptions=True, restrict=restrict, device="cpu")
    for seed in range(4):
        source = tiny_classifier("pad", seed).save(tmp_path / f"{seed}.safetensors")
        found = evaluate(str(source), str(folder), options)
        assert found["count"] == 12
        assert found["corruptions"]["errors"] == {"nothing": [pytest.approx(1 - found["accuracy"])] * 5}
    assert set(shapes) == {(8, 4, 1)} and len(shapes) == 4 * 5 * 12
    assert len(held) == 4 * 3  # five images, five more, and the last two


def test_a_model_is_measured_on_data_of_its_own_kind(pairs: Path, tmp_path: Path) -> None:
    recipe = {"seed": 0}
    one, several, bare = (
        str(tiny_classifier("none", **about).save(tmp_path / f"{name}.safetensors"))
        for name, about in (
            ("one", {"recipe": recipe}),
            ("several", {"recipe": recipe, "multilabel": True}),
            ("bare", {}),
        )
    )
    options = EvaluateConfig(device="cpu")
    message = "trained on images with {} each, and the data's have {}: measure it on data of its own kind"
    with pytest.raises(DataError, match=message.format("one label", "several labels")):
        evaluate(one, str(pairs), options)
    with pytest.raises(DataError, match=message.format("several labels", "one label")):
        evaluate(several, "digits", options)
    with pytest.raises(DataError, match=message.format("several labels", "one label")):
        evaluate(one, "digits", replace(options, compare=several))
    for source, data in ((one, "digits"), (several, str(pairs)), (bare, "digits"), (bare, str(pairs))):
        found = evaluate(source, data, options)
        assert ("mean_average_precision" in found) == (data == str(pairs))


def unsplit(path: Path) -> Path:
    """Digits without splits of their own, so that a seed holds some of them out."""
    test = open_data("digits").splits["test"]
    pixels = np.stack([np.asarray(test.read(row, 1)) for row in range(len(test))])
    np.savez(path, images=pixels, labels=test.targets)
    return path


def test_a_run_is_measured_on_what_it_held_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of data without splits each seed holds out other images; the run's own is sealed in it."""
    data = unsplit(tmp_path / "digits.npz")
    options = TrainConfig(epochs=2, device="cpu")
    runs = [
        train(str(data), replace(options, seed=seed, out=str(tmp_path / f"run{seed}"))) for seed in (0, 3)
    ]
    for run in runs:
        found = evaluate(str(run.folder), str(data), EvaluateConfig())
        test = run.figures["test"]
        assert found["accuracy"] == pytest.approx(test["accuracy"]) and found["count"] == test["count"]
        assert probe(str(run.folder), str(data), ProbeConfig(method="knn", cache=str(tmp_path)))
    capsys.readouterr()
    first, second = (str(run.folder) for run in runs)
    evaluate(first, str(data), EvaluateConfig(compare=second))
    told = capsys.readouterr().err
    assert f"warning: {second} held out other images when it was trained (--seed 3)" in told
    evaluate(second, str(data), EvaluateConfig(seed=0))
    assert "(--seed 3)" in capsys.readouterr().err
    with pytest.raises(DataError, match="--calibrate would seal that"):
        evaluate(second, str(data), EvaluateConfig(seed=0, calibrate=True))
    evaluate(second, str(data), EvaluateConfig())
    evaluate(second, "digits", EvaluateConfig(seed=0))  # its splits are its own
    assert "held out" not in capsys.readouterr().err


def test_calibration_is_fitted_on_what_the_run_held_out(digits_file: Path, tmp_path: Path) -> None:
    """Also where what is measured is a split of its own: only the val images are other ones."""
    arrays = {"x_train": "train", "x_test": "test"}
    splits = open_data("digits").splits
    given: dict[str, np.ndarray] = {}
    for name, part in arrays.items():
        few = splits[part].select(np.arange(120))
        given[name] = np.stack([np.asarray(few.read(row, 1)) for row in range(120)])
        given[name.replace("x", "y")] = few.targets
    np.savez(tmp_path / "digits.npz", **given)  # pyright: ignore[reportArgumentType]
    clf = vitreous.load(digits_file)
    clf.about = {**clf.about, "recipe": {"seed": 3}}
    source = str(clf.save(tmp_path / "sealed.safetensors"))
    evaluate(source, str(tmp_path / "digits.npz"), EvaluateConfig(seed=0))  # the test split is its own
    with pytest.raises(DataError, match="--calibrate would seal that"):
        evaluate(source, str(tmp_path / "digits.npz"), EvaluateConfig(seed=0, calibrate=True))
    evaluate(source, str(tmp_path / "digits.npz"), EvaluateConfig(seed=3, calibrate=True))


@pytest.mark.parametrize("sealed", [-1, "5", 2.5, True, None])
def test_a_seed_that_is_none_is_zero(digits_file: Path, sealed: object) -> None:
    classifier = vitreous.load(digits_file)
    classifier.about = {"recipe": {"seed": sealed}}
    assert classifier.seed == 0
    classifier.about = {"recipe": "text"}
    assert classifier.seed == 0


def test_bf16_is_said_and_near(digits_file: Path) -> None:
    exact, rough = (
        evaluate(str(digits_file), "digits", EvaluateConfig(precision=precision))
        for precision in ("float32", "bf16")
    )
    assert "arithmetic" not in exact and rough["arithmetic"] == "bf16"
    assert 1e-6 < abs(rough["loss"] - exact["loss"]) < 0.05
    assert abs(rough["accuracy"] - exact["accuracy"]) < 0.02


def test_a_model_without_classes_is_sent_to_probe(digits_file: Path, tmp_path: Path) -> None:
    vitreous.load(digits_file, num_classes=0).save(tmp_path / "features.safetensors")
    with pytest.raises(ModelError, match="fine-tune it first, or use `vitreous probe`"):
        evaluate(str(tmp_path / "features.safetensors"), "digits", EvaluateConfig())


def test_from_the_command_line(digits_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(digits_file), "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == len(open_data("digits").splits["test"])
    assert cli.main(["evaluate", str(digits_file), "digits", "--split", "val"]) == 0
    table = capsys.readouterr().out
    assert "accuracy" in table and " % (" in table
    assert cli.main(["evaluate", str(digits_file), "nowhere"]) == 1
    assert capsys.readouterr().err.startswith("error: no data at 'nowhere'")


@pytest.mark.parametrize("several", [False, True])
def test_answers_that_are_not_numbers_are_an_error(
    several: bool, digits_file: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would be counted as right: no class scores higher than what is not a number."""
    clf = vitreous.load(digits_file)
    with torch.no_grad():
        clf.model.get_parameter("norm.weight")[0] = float("nan")
    source = clf.save(tmp_path / "damaged.safetensors")
    assert cli.main(["evaluate", str(source), str(pairs) if several else "digits"]) == 1
    assert "are not numbers: its weights are damaged" in capsys.readouterr().err


def test_what_is_compared_needs_classes(
    digits_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clf = vitreous.load(digits_file)
    clf.model.reset_classifier(0)
    headless = replace(clf, labels=[]).save(tmp_path / "headless.safetensors")
    assert cli.main(["evaluate", str(digits_file), "digits", "--compare", str(headless)]) == 1
    assert f"error: {headless} has no classes: fine-tune it first" in capsys.readouterr().err


@pytest.mark.parametrize("several", [False, True])
def test_an_infinite_loss_is_an_error(
    several: bool, digits_file: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`Infinity` is no JSON."""
    clf = vitreous.load(digits_file)
    with torch.no_grad():
        clf.model.get_parameter("head.bias")[0] = float("-inf")
    source = clf.save(tmp_path / "damaged.safetensors")
    assert cli.main(["evaluate", str(source), str(pairs) if several else "digits", "--json"]) == 1
    said = capsys.readouterr()
    assert "are not numbers: its weights are damaged" in said.err and not said.out
