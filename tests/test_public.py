"""The public surface: these names and no others, loaded on first use, never hidden by a module."""

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import vitreous
from tests.forks import printed
from vitreous import config
from vitreous.options import unused

CONFIGS: dict[str, type[Any]] = {
    "bench": config.BenchConfig,
    "clean": config.CleanConfig,
    "convert": config.ConvertConfig,
    "distill": config.DistillConfig,
    "embed": config.EmbedConfig,
    "evaluate": config.EvaluateConfig,
    "export": config.ExportConfig,
    "finetune": config.FinetuneConfig,
    "inspect": config.InspectConfig,
    "predict": config.PredictConfig,
    "pretrain": config.PretrainConfig,
    "probe": config.ProbeConfig,
    "reproduce": config.ReproduceConfig,
    "search": config.SearchConfig,
    "train": config.TrainConfig,
}


def test_the_public_names_are_these() -> None:
    assert sorted(vitreous.__all__) == [
        "Classifier",
        "Figures",
        "Run",
        "VitreousError",
        "__version__",
        "attention_maps",
        "bench",
        "check",
        "clean",
        "convert",
        "create_model",
        "distill",
        "embed",
        "evaluate",
        "export",
        "finetune",
        "inspect",
        "list_models",
        "load",
        "predict",
        "pretrain",
        "probe",
        "reproduce",
        "search",
        "train",
    ]
    for name in vitreous.__all__:
        assert getattr(vitreous, name) is not None
    assert dir(vitreous) == sorted(vitreous.__all__)


def test_importing_the_package_imports_no_torch() -> None:
    program = (
        "import sys, vitreous; vitreous.list_models('B'); vitreous.train; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'creat_model'"):
        _ = vitreous.creat_model


def test_no_import_of_a_module_hides_a_public_name(tmp_path: Path) -> None:
    """`import vitreous.evaluate` binds the module to the package, unless the package refuses."""
    program = """
import importlib, pkgutil, types
from tests.forks import forget_vitreous
forget_vitreous()
import vitreous
for each in pkgutil.walk_packages(vitreous.__path__, "vitreous."):
    if not each.name.endswith("__main__"):
        importlib.import_module(each.name)
import vitreous.evaluate, vitreous.predict.classifier
from vitreous import evaluate, predict
from vitreous.evaluate import evaluate as work
from vitreous.predict import Classifier
assert evaluate is vitreous.evaluate and predict is vitreous.predict and work is not evaluate
for name in vitreous.__all__:
    assert not isinstance(getattr(vitreous, name), types.ModuleType), name
assert isinstance(vitreous.models, types.ModuleType)
vitreous.train = 1
assert vitreous.train == 1
"""
    printed(tmp_path, exec, program, {})


@pytest.mark.parametrize("verb", CONFIGS)
def test_a_verb_has_the_options_and_defaults_of_its_config(verb: str) -> None:
    parameters = inspect.signature(getattr(vitreous, verb)).parameters.values()
    options = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    for callback in ("on_step", "on_evaluation"):  # Python's alone
        assert (callback in options) == (verb in ("train", "finetune", "distill", "pretrain"))
        assert options.pop(callback, None) is None
    own = [each for each in fields(CONFIGS[verb]) if unused(each) is None]
    assert options == {each.name: each.default for each in own}


@pytest.mark.parametrize("verb", CONFIGS)
def test_an_unknown_option_is_refused_before_anything_is_read(verb: str) -> None:
    known = fields(CONFIGS[verb])[-1].name
    few: dict[str, tuple[str, ...]] = {
        "bench": (),
        "convert": ("a", "b", "hf"),
        "train": ("no-data",),
        "pretrain": ("no-data",),
        "reproduce": ("no-name",),
    }
    arguments = few.get(verb, ("no-file", "no-data"))
    with pytest.raises(vitreous.VitreousError) as caught:
        getattr(vitreous, verb)(*arguments, **{f"{known}x": 1})
    assert str(caught.value) == f"{verb} has no option '{known}x'; did you mean {known}?"


def test_without_the_modules_of_unix_there_is_everything_but_training(
    digits_file: Path, tmp_path: Path
) -> None:
    """As on Windows, which has neither `fcntl` nor `resource`."""
    program = """
import sys
sys.modules["fcntl"] = sys.modules["resource"] = None
import torch, vitreous
from vitreous import cli, parallel
from vitreous.data import open_data
classifier = vitreous.load(sys.argv[1])
print(classifier.predict(open_data("digits").splits["test"].read(0, 1))[0].error)
print(parallel.peak_memory(torch.device("cpu")))
print(cli.main(["train", "digits", "--device", "cpu", "--out", "run"]))
"""
    arguments = [sys.executable, "-c", program, str(digits_file)]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.splitlines() == ["None", "0", "1"], done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "training needs Linux or macOS" in line and not (tmp_path / "run").exists()
