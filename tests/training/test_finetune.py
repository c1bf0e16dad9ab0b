"""Fine-tuning: the paper's head, the recipes, what learns, another resolution, the same loop."""

import json
import shlex
import sys
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import timm
import torch
from safetensors.torch import save_file

import vitreous
from tests import ranks
from tests.conftest import randomize
from tests.training.runs import plan_of, weights
from vitreous import checkpoint, cli
from vitreous.config import EvaluateConfig, FinetuneConfig, Preprocessing, TrainConfig
from vitreous.data import open_data
from vitreous.data.augment import evaluation_transform
from vitreous.errors import DataError, LayoutError, ModelError, OptionError
from vitreous.evaluate import evaluate
from vitreous.export import export
from vitreous.models import adapt, zoo
from vitreous.models.architecture import ViTConfig
from vitreous.predict import Classifier
from vitreous.training import Caller, finetune, recipes, setup, suite, tuning
from vitreous.training.defaults import choose
from vitreous.training.facts import Facts, Pretrained
from vitreous.training.plan import Plan

FACTS = Facts(
    images=500, classes=3, multilabel=False, size=(8, 8), channels=1, device="cpu", bf16=False, cores=2
)
MODEL = Pretrained(
    architecture=ViTConfig(image_size=(8, 8), patch_size=(2, 2), width=192, heads=4, in_channels=1),
    preprocessing=Preprocessing(image_size=(8, 8), mean=(0.5,), std=(0.5,)),
)


def planned(images: int, **options: Any) -> Plan:
    """Return the plan of a fine-tuning on a CPU."""
    config = FinetuneConfig(device="cpu", **options)
    facts, model = replace(FACTS, images=images), replace(MODEL, tune=config.tune or "full")
    return choose(config, facts, model, recipes.for_finetuning(config, images, gpu=False))


def test_the_recipe_follows_the_data_and_gives_way_to_flags() -> None:
    few = planned(500)
    assert (few.optimizer, few.layer_decay, few.lr, few.epochs) == ("adamw", 0.75, 5e-4, 100)
    assert (few.schedule, few.clip, few.weight_decay, few.batch_size) == ("cosine", 1.0, 0.05, 64)
    assert planned(10_000).batch_size == 128 and planned(40).epochs == 100 and planned(19_999).epochs == 10
    many = planned(1_000_000)
    assert (many.lr, many.ema, many.schedule, many.layer_decay, many.epochs) == (0.01, 0.0, "cosine", 1.0, 5)
    for tune in ("head", "lora"):
        part = planned(500, tune=tune)
        assert (part.weight_decay, part.layer_decay) == (0.0, 1.0)
    assert planned(20_000).optimizer == "sgd" and planned(20_000, tune="last:1").optimizer == "adamw"
    assert (many.optimizer, many.weight_decay, many.clip, many.batch_size) == ("sgd", 0.0, 1.0, 512)
    assert planned(500, lr=0.5).lr == 0.5
    assert planned(500, tune="head").lr == 3e-3
    assert planned(500, tune="head", batch_size=256).lr == 6e-3
    assert planned(500, time_budget="1m").epochs is None
    assert planned(500, recipe="none") == choose(TrainConfig(), FACTS, MODEL)
    given: dict[str, Any] = {"optimizer": "adamw", "layer_decay": 1.0, "clip": 0.0, "ema": 0.9}
    for recipe in ("paper", "modern"):
        kept = planned(500, recipe=recipe, **given)
        assert (kept.optimizer, kept.layer_decay, kept.clip, kept.ema) == ("adamw", 1.0, 0.0, 0.9)


# -- its own options -----------------------------------------------------------------------------------------

MODULE = sys.modules["vitreous.training.finetune"]  # the package has the function under that name


@pytest.fixture(scope="module")
def source() -> Classifier:
    """A model with a random head, which knows two of the three classes of stripes, in another order."""
    config = ViTConfig(
        **{"image_size": (8, 8), "patch_size": (4, 4), "in_channels": 1},
        **{"width": 24, "depth": 1, "heads": 2, "mlp_width": 32, "num_classes": 3},
    )
    settings = Preprocessing(image_size=(8, 8), mean=(0.5,), std=(0.5,))
    model = randomize(zoo.build(config))
    return Classifier(model, evaluation_transform(settings, 4), ["flat", "else", "rows"], {})  # type: ignore[arg-type]


def tuned(source: Path, data: str, out: Path, **changes: Any) -> Path:
    """Fine-tune for one step, which moves next to nothing."""
    options = FinetuneConfig(tune="head", recipe="none", epochs=1, batch_size=96, lr=1e-9, device="cpu")
    return finetune(str(source), data, replace(options, out=str(out), **changes)).folder


def test_keep_head_keeps_the_rows_of_classes_that_both_know(
    data: str, source: Classifier, tmp_path: Path
) -> None:
    file, head = source.save(tmp_path / "source.safetensors"), source.model.state_dict()["head.weight"]
    zero = torch.zeros_like(head)
    for keep, expected in ((False, zero), (True, torch.stack([head[2], zero[0], head[0]]))):
        found = weights(tuned(file, data, tmp_path / str(keep), keep_head=keep))["head.weight"]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


def test_heads_are_those_of_bare_weights(data: str, source: Classifier, tmp_path: Path) -> None:
    """A shape that nobody published does not say how many it has; another number is another model."""
    file = tmp_path / "bare.safetensors"
    save_file(dict(source.model.state_dict()), file)
    with pytest.raises(LayoutError, match="--heads N"):
        tuned(file, data, tmp_path / "none")
    losses = {}
    for heads in (2, 4):
        folder = tuned(file, data, tmp_path / str(heads), heads=heads, lr=0.1)
        assert plan_of(folder).architecture.heads == heads  # type: ignore[union-attr]
        losses[heads] = json.loads((folder / "results.json").read_text())["test"]["loss"]
    assert losses[2] != losses[4]


def test_train_limit_is_how_many_images_take_part(data: str, source: Classifier, tmp_path: Path) -> None:
    file = source.save(tmp_path / "source.safetensors")
    for limit, counts in ((None, "96 train, 30 val"), (20, "16 train, 4 val")):  # a fifth to choose with
        folder = tuned(file, data, tmp_path / str(limit), train_limit=limit)
        assert counts in (folder / "model_card.md").read_text()


def test_the_recipe_is_asked_for_by_the_number_of_images(
    data: str, source: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    choose_recipe = recipes.for_finetuning

    def spy(options: FinetuneConfig, images: int, gpu: bool) -> recipes.Recipe:
        asked.append(images)
        return choose_recipe(options, images, gpu)

    monkeypatch.setattr(recipes, "for_finetuning", spy)
    file = source.save(tmp_path / "source.safetensors")
    folder = tuned(file, data, tmp_path / "run")
    assert asked == [96]
    words = shlex.split(json.loads((folder / "config.json").read_text())["command"])
    assert words[:4] == ["vitreous", "finetune", str(file), data]


def test_a_budget_begins_with_the_command_and_ends_with_it(
    data: str, source: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the model is part of it, and so is what the caller does at the end."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(MODULE, "train", lambda *_, **options: given.append(options))
    file, options = source.save(tmp_path / "source.safetensors"), FinetuneConfig(device="cpu")
    caller = Caller(started=5.0, afterwards=7.0)
    finetune(str(file), data, options, caller=caller)
    before = time.monotonic()
    finetune(str(file), data, options)
    assert given[0]["caller"] is caller
    assert before <= given[1]["caller"].started <= time.monotonic()


def test_each_task_of_a_suite_has_its_folder_limit_and_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    figures = {"accuracy": 0.5, "mean_average_precision": 0.25, "mean_per_class_accuracy": 0.75}

    def stub(source: str, data: str, options: FinetuneConfig, dataset: Any) -> Any:
        assert options.out is not None
        Path(options.out).mkdir(parents=True)
        asked.append((source, data, options.out, options.train_limit))
        return SimpleNamespace(figures={"test": figures})

    monkeypatch.setattr(MODULE, "finetune", stub)
    opened = {"one": SimpleNamespace(multilabel=False), "two": SimpleNamespace(multilabel=True)}
    monkeypatch.setattr(MODULE.suites, "open_task", lambda task, *_: opened[task.name])
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('[one]\ndata = "a"\n[two]\ndata = "b"\n')
    Path("own.toml").write_text('[one]\ndata = "a"\nmetric = "mean_per_class_accuracy"\n')
    results: list[Any] = []
    found = suite("model", "mine.toml", FinetuneConfig(), results.append)
    assert asked == [("model", "a", "runs/mine/one", 1000), ("model", "b", "runs/mine/two", 1000)]
    assert len(results) == 2 and json.loads(Path("runs/mine/suite.json").read_text()) == found
    one, two = found["tasks"]
    assert one["accuracy"] == 0.5 and "accuracy" not in two and two["mean_average_precision"] == 0.25
    found = suite("model", "own.toml", FinetuneConfig(out="here", train_limit=7), results.append)
    assert asked[2:] == [("model", "a", "here/one", 7)] and found["train_images"] == 7
    assert found["tasks"][0]["mean_per_class_accuracy"] == 0.75


# -- the paper's procedure -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["full", "head", "lora:2", "last:1"])
def test_each_way_to_tune_learns_and_seals_an_ordinary_model(
    tune: str, digits_file: Path, tmp_path: Path
) -> None:
    before = checkpoint.read(digits_file)
    options = FinetuneConfig(out=str(tmp_path / "run"), tune=tune, epochs=3, lr=3e-3, device="cpu", workers=0)
    result = finetune(str(digits_file), "digits", options)
    after = checkpoint.read(tmp_path / "run" / "best.safetensors")
    assert after.tensors.keys() == before.tensors.keys()
    assert after.preprocessing == before.preprocessing
    moved = {name for name in before.tensors if not torch.equal(before.tensors[name], after.tensors[name])}
    assert ("blocks.0.attn.qkv.weight" in moved) == (tune in ("full", "lora:2"))
    assert ("blocks.1.attn.qkv.weight" in moved) == (tune != "head")
    assert ("patch_embed.proj.weight" in moved) == (tune == "full")
    assert result.figures["test"]["accuracy"] > 0.6  # the head started at zero: features were kept
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows
    again = vitreous.load(tmp_path / "run")
    assert again.predict(np.zeros((8, 8, 1), np.uint8))[0].label in again.labels


def test_another_resolution_starts_from_timms_logits_at_that_resolution() -> None:
    shape = {"depth": 2, "num_classes": 3}
    source = vitreous.create_model("vit_tiny_patch16_224", **shape)
    with torch.no_grad():
        source.head.weight.normal_()
    peer = timm.create_model("vit_tiny_patch16_224", img_size=(256, 384), **shape).eval()
    state = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    peer.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(state, peer), strict=True)
    adapt.set_sizes(source.eval(), (256, 384), None)
    images = torch.randn(1, 3, 256, 384)
    with torch.no_grad():
        torch.testing.assert_close(source(images), peer(images), rtol=0, atol=1e-5)


def test_an_export_of_low_rank_updates_is_what_was_trained(digits: Classifier, tmp_path: Path) -> None:
    model = deepcopy(digits.model)
    tuning.apply(model, "lora:4")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_b" in name:
                parameter.normal_(std=0.05, generator=generator)
    test = open_data("digits").splits["test"]
    images = torch.stack([digits.preprocess(test.read(row, 1)) for row in range(len(test))])
    with torch.no_grad():
        unmerged = model.eval()(images)
        assert (unmerged - digits.model(images)).abs().max() > 0.1  # the updates do something
    plain = deepcopy(digits.model)
    plain.load_state_dict(tuning.merged(model.state_dict()))
    path = tmp_path / "lora.onnx"
    export(replace(digits, model=plain), path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": images.numpy()})
    np.testing.assert_allclose(logits, unmerged.numpy(), rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_another_size_that_is_not_square(digits_file: Path, tmp_path: Path) -> None:
    arguments = ["finetune", str(digits_file), "digits", "--image-size", "8", "12", "--epochs", "1"]
    assert cli.main([*arguments, "--tune", "head", "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    classifier = vitreous.load(tmp_path / "run")
    assert classifier.model.config.grid == (4, 6)
    assert classifier.preprocess.preprocessing.image_size == (8, 12)


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_a_suite_is_one_table_and_goes_on_where_it_stopped(
    digits_file: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(
        f'[one]\ndata = "digits"\nmetric = "mean_per_class_accuracy"\n[two]\ndata = "{pairs}"\n'
        '[three]\ndata = "nowhere"\n'
    )
    out = tmp_path / "runs"
    arguments = ["finetune", str(digits_file), str(tmp_path / "mine.toml"), "--out", str(out)]
    arguments += ["--epochs", "2", "--device", "cpu", "--train-limit", "200", "--lr", "3e-3"]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    found = json.loads((out / "suite.json").read_text())
    one, two, three = found["tasks"]
    assert one["mean_per_class_accuracy"] > 0.5 and 0 < two["mean_average_precision"] < 1
    assert "no data at" in three["error"] and "nowhere" in printed
    assert (out / "one" / "report.html").is_file() and (out / "two" / "model_card.md").is_file()
    assert json.loads((out / "one" / "config.json").read_text())["options"]["train_limit"] == 200
    before = (out / "one" / "best.safetensors").stat().st_mtime_ns
    assert cli.main(arguments) == 0
    assert (out / "one" / "best.safetensors").stat().st_mtime_ns == before
    assert json.loads((out / "suite.json").read_text()) == found


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_several_labels_from_training_to_prediction(
    digits_file: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ["finetune", str(digits_file), str(pairs), "--out", str(out), "--epochs", "30"]
    arguments += ["--lr", "6e-3", "--recipe", "none", "--augment", "none", "--device", "cpu"]
    assert cli.main(arguments) == 0
    results = json.loads((out / "results.json").read_text())
    assert results["test"]["mean_average_precision"] > 0.6
    assert "mean average precision" in (out / "model_card.md").read_text()
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert not any("accuracy" in row for row in rows if row.get("split") not in ("val", "test"))
    assert "mean average precision" in (out / "report.html").read_text()
    best = str(out / "best.safetensors")
    before = evaluate(best, str(pairs), EvaluateConfig())
    assert before["mean_average_precision"] == pytest.approx(
        results["test"]["mean_average_precision"], abs=1e-6
    )
    assert before["accuracy"] == pytest.approx(results["test"]["accuracy"], abs=1e-6)
    classifier = vitreous.load(best)
    with torch.no_grad():  # every second label is given too often, so there is something to calibrate
        classifier.model.head.bias[::2] += 3.0
    classifier.save(Path(best))
    before = evaluate(best, str(pairs), EvaluateConfig())
    after = evaluate(best, str(pairs), EvaluateConfig(calibrate=True, out=str(tmp_path / "page")))
    assert after["f1"] > before["f1"]
    assert cli.main(["evaluate", best, str(pairs), "--out", str(tmp_path / "page"), "--compare", best]) == 0
    with pytest.raises(DataError, match="need one label per image"):
        evaluate(best, str(pairs), EvaluateConfig(corruptions=True))
    assert (tmp_path / "page" / "report.html").is_file()

    classifier, split = vitreous.load(best), open_data(pairs).splits["test"]
    limits = np.array(classifier.thresholds)
    assert classifier.multilabel and len(set(limits)) > 1
    hits = 0
    for row in range(50):
        found = classifier.predict(np.asarray(split.images.pixels[row]))[0]  # type: ignore[union-attr]
        logits = classifier.model(classifier.preprocess(split.images.pixels[row])[None])[0]  # type: ignore[union-attr]
        given = {classifier.labels[k] for k in np.flatnonzero(logits.sigmoid().detach().numpy() >= limits)}
        assert set(found.labels or ()) == given
        hits += given == {classifier.labels[k] for k in np.flatnonzero(split.targets[row])}
    assert hits > 5  # all labels of an image, by chance one in hundreds

    picture = tmp_path / "a.png"
    split.read(0, 1).save(picture)
    capsys.readouterr()
    assert cli.main(["predict", best, str(picture), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["labels"] == classifier.predict(picture)[0].labels
    assert cli.main(["predict", best, str(picture), "--csv"]) == 0
    assert "|".join(told["labels"]) in capsys.readouterr().out
    path = tmp_path / "several.onnx"
    export(classifier, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    shares = session.run(
        ["probabilities"], {"images": classifier.collate([classifier.prepare(picture)]).images.numpy()}
    )[0][0]
    probabilities = dict(zip(classifier.labels, shares.tolist(), strict=True))
    assert all(
        probabilities[each["label"]] == pytest.approx(each["probability"], abs=1e-5) for each in told["top"]
    )
    from tests.serve_client import client, wait_until_ready

    with client(classifier) as server:
        answered = wait_until_ready(server).post("/predict", content=picture.read_bytes())
    assert answered.json()["predictions"][0]["labels"] == told["labels"]


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_a_run_goes_on_with_its_own_checkpoint_only(
    digits: Classifier, digits_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "digits",
        "--tune",
        "head",
        "--epochs",
        "1",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "run"),
    ]
    assert cli.main(["finetune", str(digits_file), *arguments]) == 0
    other = deepcopy(digits)
    with torch.no_grad():
        other.model.patch_embed.proj.weight.mul_(1.01)  # type: ignore[union-attr, operator]
    source = other.save(tmp_path / "other.safetensors")
    assert cli.main(["finetune", str(source), *arguments]) == 1
    assert "the model to start from has other weights now" in capsys.readouterr().err


def test_a_head_is_kept_or_fitted_not_both(digits_file: Path, tmp_path: Path) -> None:
    both = FinetuneConfig(keep_head=True, fit_head="yes", out=str(tmp_path / "run"), device="cpu")
    with pytest.raises(OptionError, match="--fit-head yes makes a new head and --keep-head keeps the old"):
        finetune(str(digits_file), "digits", both)
    assert not (tmp_path / "run").exists()
    fitted = [setup.fits_head(FinetuneConfig(keep_head=keep), MODEL.architecture) for keep in (False, True)]
    assert fitted == [True, False]  # where time decides


def _finetune_here(source: str, out: str) -> None:
    options = FinetuneConfig(out=out, tune="head", epochs=1, batch_size=512, device="cpu")
    finetune(source, "digits", options)


@pytest.mark.slow
def test_two_ranks_say_everything_once(digits_file: Path, tmp_path: Path) -> None:
    said = ranks.run(2, _finetune_here, str(digits_file), str(tmp_path / "run")).splitlines()
    notes = ("recipe: modern", "  head", "learning: ", "weight_decay: ")
    counts = {note: sum(line.startswith(note) for line in said) for note in notes}
    assert counts == dict.fromkeys(notes, 1), said


def test_wrong_words_cost_nothing(digits_file: Path, tmp_path: Path) -> None:
    options = FinetuneConfig(out=str(tmp_path / "run"), tune="some", epochs=1, device="cpu")
    with pytest.raises(ModelError, match="expected full, head, lora"):
        finetune(str(digits_file), "digits", options)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ModelError, match="expected full, head, lora"):  # before anything is read
        finetune("nothing.safetensors", "digits", options)
    assert cli.main(["finetune", "nothing.safetensors", "digits", "--out", str(tmp_path / "x")]) == 1


@pytest.mark.parametrize("tune", ["last:99", "last:0", "some"])
def test_what_can_not_learn_is_refused_before_anything_is_written(tune: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="blocks|unknown way"):
        vitreous.finetune("tests/fixtures/sealed_v1.safetensors", "digits", tune=tune, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
