"""`vitreous probe`: features once, three methods, suites of data sets."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitreous
from vitreous import cli, parallel
from vitreous.config import ProbeConfig
from vitreous.data import open_data
from vitreous.errors import DataError, ModelError, OptionError
from vitreous.evals import features, metrics
from vitreous.parallel import hardware
from vitreous.probe import probe, suite, summary


def test_every_method_finds_the_digits(digits_file: Path, tmp_path: Path) -> None:
    options = ProbeConfig(cache=str(tmp_path), shots=(1, 10), seeds=3)
    found = probe(str(digits_file), "digits", options)
    assert found["knn"]["accuracy"] > 0.85 and found["linear"]["accuracy"] > 0.85
    assert found["fewshot"]["shots"]["10"]["accuracy"] > found["fewshot"]["shots"]["1"]["accuracy"]
    assert found["fewshot"]["accuracy"] == found["fewshot"]["shots"]["10"]["accuracy"]
    low, high = found["linear"]["interval"]
    assert low <= found["linear"]["accuracy"] <= high
    json.dumps(found)
    again = probe(str(digits_file), "digits", ProbeConfig(cache=str(tmp_path), method="knn"))
    assert set(again) == {"knn"} and again["knn"]["metric"] == "accuracy"
    assert again["knn"]["accuracy"] == found["knn"]["accuracy"]
    assert len(list(tmp_path.glob("*.npz"))) == 3  # one a split, made once


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shots": (0,)}, "--shots 0 is out of range"),
        ({"shots": (1, -5)}, "--shots 1 -5 is out of range"),
        ({"shots": ()}, "--shots of none is out of range"),
        ({"seeds": 0}, "--seeds 0 is out of range"),
        ({"method": "knn", "seeds": 3}, "--seeds is for --method fewshot or all, not knn"),
        ({"method": "linear", "shots": (1,)}, "--shots is for --method fewshot or all, not linear"),
    ],
)
def test_draws_that_can_not_be_made_are_refused(
    options: dict[str, Any], said: str, digits_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=said):
        probe(str(digits_file), "digits", ProbeConfig(cache=str(tmp_path), **options))


def test_features_are_the_models_own_and_kept_by_content(digits_file: Path, tmp_path: Path) -> None:
    clf, split = vitreous.load(digits_file), open_data("digits").splits["val"]
    take = lambda **options: features.extract(  # noqa: E731
        clf.model, split, clf.preprocess.preprocessing, cache=tmp_path, **options
    )
    found = take()
    image = clf.preprocess(split.read(0, 1))[None]
    own = clf.model.pool(clf.model.forward_features(image))[0].detach().numpy()
    np.testing.assert_allclose(found.values[0], own, atol=1e-5)
    assert take(pooling="cls_gap").values.shape == (len(split), 64)
    assert not np.allclose(take(layer=0).values, found.values)
    assert len(list(tmp_path.glob("*.npz"))) == 3
    for size in (100, 0):  # a half or empty file, whoever left it, is computed again
        for path in tmp_path.glob("*.npz"):
            path.write_bytes(path.read_bytes()[:size])
        np.testing.assert_array_equal(take().values, found.values)
    with pytest.raises(ModelError, match="out of range"):
        take(layer=9)


def test_features_that_are_not_numbers_are_an_error(digits_file: Path, tmp_path: Path) -> None:
    clf = vitreous.load(digits_file)
    with torch.no_grad():
        clf.model.get_parameter("norm.weight")[0] = float("nan")
    source = clf.save(tmp_path / "damaged.safetensors")
    for method in ("knn", "fewshot", "linear"):
        with pytest.raises(ModelError, match="the features of [\\d,]+ of [\\d,]+ images are not numbers"):
            probe(str(source), "digits", ProbeConfig(cache=str(tmp_path), method=method))
    assert not list(tmp_path.glob("*.npz"))


def test_features_in_bf16_are_near_and_kept_apart(digits_file: Path, tmp_path: Path) -> None:
    clf, split = vitreous.load(digits_file), open_data("digits").splits["val"]
    about = clf.model, split, clf.preprocess.preprocessing
    exact, rough = (
        features.take(*about, ProbeConfig(cache=str(tmp_path), precision=precision)).values
        for precision in ("float32", "bf16")
    )
    images = torch.stack([clf.preprocess(split.read(i, 1)) for i in range(len(split))])
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        expected = clf.model.encode(images).float().numpy()
    assert 1e-4 < np.abs(rough - exact).max() < 0.2
    assert np.abs(rough - expected).mean() < np.abs(rough - exact).mean() / 3
    assert len(list(tmp_path.glob("*.npz"))) == 2
    again = features.take(*about, ProbeConfig(cache=str(tmp_path), precision="bf16")).values
    np.testing.assert_array_equal(again, rough)


def test_auto_is_what_the_hardware_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, expected in ((True, "bf16"), (False, "float32")):
        monkeypatch.setattr(hardware, "has_bf16", lambda _, has=has: has)
        assert parallel.precision("auto", torch.device("cpu")) == expected
        assert parallel.precision("float32", torch.device("cpu")) == "float32"


def test_a_suite_says_what_it_lacks_and_averages_the_rest(digits_file: Path, tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(
        '[a]\ngroup = "natural"\ndata = "digits"\nmetric = "mean_per_class_accuracy"\n'
        '[b]\ngroup = "natural"\ndata = "not/there"\n'
        '[c]\ngroup = "structured"\nunavailable = "ask its owner"\n'
    )
    options = ProbeConfig(cache=str(tmp_path / "cache"), method="knn")
    found = suite(str(digits_file), str(tmp_path / "suite.toml"), options)
    assert found["train_images"] == 1000
    assert found["means"]["natural"]["knn"] == found["tasks"][0]["knn"] > 0.8
    assert "no data at" in found["tasks"][1]["error"] and found["tasks"][2]["error"] == "ask its owner"
    assert found["means"]["structured"] == {}
    few = ProbeConfig(cache=str(tmp_path / "cache"), method="knn", train_limit=1000)
    alone = probe(str(digits_file), "digits", replace(few, metric="mean_per_class_accuracy"))
    assert alone["knn"]["features"] | {"seconds": 0} == {
        "width": 32,
        "train": 800,
        "val": 200,
        "test": 359,
        "seconds": 0,
    }
    assert alone["knn"]["mean_per_class_accuracy"] == found["tasks"][0]["knn"]


def test_several_labels_are_probed_by_average_precision(
    digits_file: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "RESAMPLES", 50)  # scikit-learn takes milliseconds for each
    options = ProbeConfig(cache=str(tmp_path / "cache"))
    found = probe(str(digits_file), str(pairs), options)
    assert found["knn"]["metric"] == "mean_average_precision" and "fewshot" not in found
    assert (
        found["linear"]["mean_average_precision"] > 0.5 > 2 * 0.19
    )  # chance: each digit is in 19 % of pairs
    low, high = found["knn"]["interval"]
    assert low <= found["knn"]["mean_average_precision"] <= high
    for wrong in (replace(options, method="fewshot"), replace(options, metric="accuracy")):
        with pytest.raises(DataError, match="several"):
            probe(str(digits_file), str(pairs), wrong)


def test_strengths_are_shown_in_one_form() -> None:
    taken = {"width": 4, "seconds": 1.0}
    about = {"metric": "accuracy", "accuracy": 0.5, "interval": [0.4, 0.6], "seconds": 1.0, "features": taken}
    shots = {str(n): {**about, "strength": 2.0**power} for n, power in ((1, -10), (5, 17))}
    document = {"linear": {**about, "strength": 10.0}, "fewshot": {**about, "shots": shots}}
    chosen = [row[1] for row in summary(document)[1]]
    assert chosen[:3] == ["strength = 10", "strength = 0.000977", "strength = 1.31e+05"]


def test_from_the_command_line(digits_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["probe", str(digits_file), "digits", "--method", "linear", "--cache", str(tmp_path)]
    assert cli.main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["linear"]["accuracy"] > 0.85
    assert cli.main(arguments) == 0
    assert "linear" in capsys.readouterr().out
