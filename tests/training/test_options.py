"""Every option has an effect: it changes the plan, and it changes what is learned."""

import ast
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.runs import assert_same_weights, plan_of, run, weights
from vitreous import checkpoint, parallel
from vitreous.config import DistillConfig, FinetuneConfig, PretrainConfig, TrainConfig
from vitreous.data import make_loader
from vitreous.data.device import DeviceLoader
from vitreous.data.host import HostLoader
from vitreous.errors import DataError, ResumeError
from vitreous.training import Result, loaders, setup, train
from vitreous.training.plan import NAMES, UNSEALED

BASE = TrainConfig(
    image_size=(16,),
    patch_size=(8,),
    epochs=2,
    batch_size=16,
    optimizer="adamw",
    lr=2e-3,
    ema=0.0,
    augment="none",
    device="cpu",
)
# The option, another value, where the plan holds it, and what else it needs to matter.
CHANGES: list[tuple[str, Any, str, dict[str, Any]]] = [
    ("model", "ViT-Ti/16", "architecture.width", {"epochs": 1, "image_size": (8,)}),
    ("image_size", (24,), "preprocessing.image_size", {}),
    ("patch_size", (4,), "architecture.patch_size", {}),
    ("drop_path", 0.5, "architecture.drop_path", {}),
    ("patch_drop", 0.5, "architecture.patch_drop", {}),
    ("reconstruct", 1.0, "reconstruct", {"patch_drop": 0.5}),
    ("initialization", "mimetic", "initialization", {}),
    ("initialization", "torch", "initialization", {}),
    ("epochs", 3, "epochs", {}),
    ("batch_size", 8, "batch_size", {}),
    ("optimizer", "sgd", "optimizer", {}),
    ("optimizer", "muon", "optimizer", {}),
    ("lr", 1e-3, "lr", {}),
    ("schedule", "linear", "schedule", {}),
    ("schedule", "rsqrt", "schedule", {}),
    ("schedule", "constant", "schedule", {}),
    ("warmup", 0.5, "warmup", {}),
    ("weight_decay", 2.0, "weight_decay", {}),
    ("layer_decay", 0.5, "layer_decay", {}),
    ("clip", 0.01, "clip", {"optimizer": "sgd"}),
    ("ema", 0.5, "ema", {}),
    ("loss", "sigmoid", "loss", {}),
    ("label_smoothing", 0.0, "label_smoothing", {}),
    ("binary_targets", True, "binary_targets", {"loss": "sigmoid", "mixup": 0.8}),
    ("seed", 1, "seed", {}),
    ("augment", "strong", "augment", {}),
    ("crop_scale", (0.3, 0.6), "augment.crop_scale", {}),
    ("flip", 1.0, "augment.flip", {}),
    ("randaugment", (2, 20), "augment.randaugment", {}),
    ("three_augment", True, "augment.three_augment", {}),
    ("color_jitter", 0.5, "augment.color_jitter", {}),
    ("erase", 1.0, "augment.erase", {}),
    ("mixup", 0.8, "augment.mixup", {}),
    ("cutmix", 1.0, "augment.cutmix", {}),
    ("mix_probability", 0.3, "augment.mix_probability", {"mixup": 0.8}),
    ("unmixed", 0.5, "augment.unmixed", {"mixup": 0.8}),
    ("repeats", 2, "augment.repeats", {"flip": 0.5}),
    ("geometry", 1.0, "augment.geometry", {}),
    ("color", 1.0, "augment.color", {}),
    ("fit", "pad", "preprocessing.resize", {}),
    ("fit", "stretch", "preprocessing.resize", {}),
    ("balance", "loss", "balance", {}),
    ("balance", "sampler", "balance", {}),
    ("precision", "bf16", "precision", {}),
]
# The others, and the test that shows what each does.
ELSEWHERE = {
    "recipe": "training/test_recipes.py::test_a_run_is_repeated",
    "time_budget": "training/test_budget.py::test_a_time_budget_is_kept",
    "find_lr": "training/test_find_lr.py::test_a_run_is_left_as_it_was",
    "extend": "training/test_extension.py::test_an_ended_extension_is_shown_or_extended_again",
    "out": "training/test_loop.py::test_the_command_line_trains_and_reports",
    "workers": "training/test_results.py::test_every_evaluation_uses_the_workers_of_the_run",
    "micro_batch": "training/test_memory.py::test_out_of_memory_takes_smaller_parts",
    "thumbnails": "training/test_thumbnails.py::test_training_seals_what_the_explorer_shows",
    "on_nan": "training/test_refusal.py::test_rollback_leaves_the_batch_out",
    "tune": "training/test_finetune.py::test_each_way_to_tune_learns_and_seals_an_ordinary_model",
    **dict.fromkeys(
        ("tensorboard", "wandb", "mlflow"), "training/test_log.py::test_sinks_are_those_that_were_asked_for"
    ),
    **dict.fromkeys(
        ("device", "compile", "checkpointing", "shard"),
        "training/test_options.py::test_how_it_is_computed_reaches_the_hardware",
    ),
    **dict.fromkeys(
        ("keep", "save_every"), "training/test_options.py::test_what_is_free_on_resume_changes_nothing"
    ),
    "pixels": "training/test_options.py::test_pixels_are_kept_where_they_are_asked_for",
    "data_root": "training/test_options.py::test_data_root_is_where_data_is_looked_for",
    "train_limit": "training/test_finetune.py::test_train_limit_is_how_many_images_take_part",
    "keep_head": "training/test_finetune.py::test_keep_head_keeps_the_rows_of_classes_that_both_know",
    "init": "training/test_initial.py::test_few_colour_photographs_start_from_tiny",
    "fit_head": "training/test_head.py::test_a_run_starts_with_it",
    "heads": "training/test_finetune.py::test_heads_are_those_of_bare_weights",
    **dict.fromkeys(
        ("match", "targets", "temperature", "teacher_share", "distance"),
        "training/test_distill.py::test_settings_are_the_options",
    ),
    "objective": "training/test_pretrain.py::test_what_is_painted_is_shown",
    "preview": "training/test_pretrain.py::test_what_is_painted_is_shown",
    "on_collapse": "training/test_pretrain.py::test_a_collapse_is_caught",
    **dict.fromkeys(
        (
            *("target", "mask_ratio", "decoder_width", "decoder_depth"),
            *("prototypes", "local_crops", "local_scale"),
        ),
        "training/test_pretrain.py::test_options_change_what_is_learned",
    ),
}
KINDS = (TrainConfig, FinetuneConfig, DistillConfig, PretrainConfig)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Colour images of 16x24 in three classes, the first of them far too often."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for name, count in (("train", 32), ("val", 4), ("test", 4)):
        labels = np.minimum(np.arange(count) % 8, 2)[::-1] if name != "train" else _rare(count)
        images = rng.integers(0, 200, (count, 16, 24, 3))
        images[..., :12, 0] += 20 * labels[:, None, None]
        arrays |= {f"{name}_images": images.astype(np.uint8), f"{name}_labels": labels}
    path = tmp_path_factory.mktemp("photos") / "photos.npz"
    np.savez(path, **arrays)
    return str(path)


def _rare(count: int) -> np.ndarray:
    labels = np.zeros(count, int)
    labels[::5], labels[1::8] = 1, 2
    return labels


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed is not measured here."""
    monkeypatch.setattr(parallel, "matrix_rate", lambda *_, **__: 1e12)


@pytest.fixture(scope="module")
def learned(photos: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Train with options, once for each set of them."""
    known: dict[str, Path] = {}

    def learn(**changes: Any) -> Path:
        key = repr(sorted(changes.items()))
        if key not in known:
            known[key] = tmp_path_factory.mktemp("run")
            train(photos, replace(BASE, out=str(known[key]), **changes))
        return known[key]

    return learn


def value_at(folder: Path, path: str) -> Any:
    found: Any = plan_of(folder)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def test_no_option_is_forgotten() -> None:
    """A new option needs a row above, or a test that names it; one that is gone leaves nothing behind."""
    options = {each.name for kind in KINDS for each in fields(kind)}
    assert options == {option for option, *_ in CHANGES} | ELSEWHERE.keys()
    assert setup.FREE <= ELSEWHERE.keys()
    for option, where in ELSEWHERE.items():
        file, name = where.split("::")
        tree = ast.parse((Path(__file__).parents[1] / file).read_text())
        (test,) = (each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name)
        words = re.split(r"[^a-z_]+", ast.unparse(test).replace("-", "_"))
        assert {option, f"__{option}"} & set(words), f"{where} does not mention {option}"


@pytest.mark.parametrize(("option", "value", "path", "needs"), CHANGES, ids=lambda x: str(x)[:20])
def test_an_option_has_an_effect(
    option: str, value: Any, path: str, needs: dict[str, Any], learned: Any
) -> None:
    plain, changed = learned(**needs), learned(**{**needs, option: value})
    assert value_at(plain, path) != value_at(changed, path)
    ours, theirs = weights(changed), weights(plain)
    same = ours.keys() == theirs.keys() and all(
        ours[name].shape == each.shape and torch.equal(ours[name], each) for name, each in theirs.items()
    )
    assert not same, f"{option} has no effect"


def test_a_plan_is_written_down_and_sealed_in_full(learned: Any) -> None:
    folder = learned()
    plan = plan_of(folder).to_json()
    assert plan.keys() == NAMES and None not in (plan["seed"], plan["warmup"], plan["balance"])
    for name in ("best", "last"):
        sealed = checkpoint.read(folder / f"{name}.safetensors")
        assert sealed.about["recipe"].keys() == NAMES - set(UNSEALED)
        for key, value in sealed.about["recipe"].items():
            stored = value_at(folder, key)
            if key == "augment":
                assert value.keys() == vars(stored).keys()
            else:
                assert value == stored, key
        assert sealed.config == plan_of(folder).architecture
        assert sealed.preprocessing == plan_of(folder).preprocessing


@pytest.mark.parametrize(("option", "value"), [(option, value) for option, value, *_ in CHANGES], ids=str)
def test_an_option_changed_on_resume_is_refused_by_name(
    option: str, value: Any, photos: str, learned: Any
) -> None:
    with pytest.raises(ResumeError, match=rf"other options: {option} was .* and is now .*: repeat the old"):
        train(photos, replace(BASE, out=str(learned()), **{option: value}))


def test_what_is_free_on_resume_changes_nothing(data: str, tmp_path: Path, undisturbed: Result) -> None:
    """Parts, checkpoints and recomputation are how, not what: the same weights up to rounding."""
    result = run(data, tmp_path, checkpointing=True, keep=2, save_every=10)
    assert_same_weights(weights(tmp_path), weights(undisturbed.folder))
    kept = sorted(path.name for path in (tmp_path / "resume").glob("step-*"))
    assert kept == ["step-00000030", "step-00000036"]
    assert result.figures["test"] == undisturbed.figures["test"]


def test_how_it_is_computed_reaches_the_hardware(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    prepare = parallel.prepare

    def spy(module: Any, world: Any, **options: Any) -> Any:
        asked.update(options, device=str(world.device))
        return prepare(module, world, **{**options, "compile": "none", "shard": False})

    monkeypatch.setattr(parallel, "prepare", spy)
    run(data, tmp_path, epochs=1, compile="whole", shard=True, checkpointing=True, precision="bf16")
    assert asked == {
        **{"compile": "whole", "shard": True, "checkpointing": True},
        **{"precision": "bf16", "device": "cpu", "frozen": ()},
    }


@pytest.mark.parametrize(
    ("asked", "kind"), [("device", DeviceLoader), ("host", HostLoader), ("auto", HostLoader)]
)
def test_pixels_are_kept_where_they_are_asked_for(
    photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Any, kind: type
) -> None:
    """Of training, of validation and of both evaluations at the end; a CPU keeps them, unless asked."""
    made: list[Any] = []

    def spy(*arguments: Any, **options: Any) -> Any:
        made.append(make_loader(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(loaders, "make_loader", spy)
    train(photos, replace(BASE, out=str(tmp_path), epochs=1, pixels=asked))
    assert [type(loader) for loader in made] == [kind] * 4


def test_data_root_is_where_data_is_looked_for(photos: str, tmp_path: Path) -> None:
    path = Path(photos)
    with pytest.raises(DataError, match="no data at"):
        train(path.name, replace(BASE, out=str(tmp_path), epochs=1))
    train(path.name, replace(BASE, out=str(tmp_path), epochs=1, data_root=str(path.parent)))
    assert (tmp_path / "results.json").is_file()
