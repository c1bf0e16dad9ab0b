"""Runs without labels: they survive, ranks agree, a collapse is caught, and what they leave behind."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor

import vitreous
from tests import ranks
from tests.forks import FORKS
from tests.training.runs import assert_same_run, assert_same_weights, plan_of, records, weights
from vitreous import cli, parallel
from vitreous.config import Preprocessing, PretrainConfig
from vitreous.convert import convert
from vitreous.data import Batch
from vitreous.errors import DataError, OptionError, TrainingError
from vitreous.models import zoo
from vitreous.models.architecture import ViTConfig
from vitreous.objectives.dino import Dino
from vitreous.predict import load
from vitreous.training import Result, pretrain
from vitreous.training.gradients import Gradients
from vitreous.training.state import State

OPTIONS = PretrainConfig(
    image_size=(16,), patch_size=(4,), batch_size=16, epochs=2, device="cpu", lr=1e-3, crop_scale=(0.4, 1.0),
)  # fmt: skip
OBJECTIVES: dict[str, dict[str, Any]] = {
    "masked": {},
    "mae": {"decoder_width": 32},
    "dino": {"prototypes": 16, "local_crops": 2},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed is not measured here."""
    monkeypatch.setattr(parallel, "matrix_rate", lambda *_, **__: 1e12)


def options(objective: str, out: Path, **changes: Any) -> PretrainConfig:
    given: dict[str, Any] = {**OBJECTIVES[objective], **changes, "out": str(out)}
    return replace(OPTIONS, objective=objective, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def runs(data: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """A run of each task, from its start to its end."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("pretrained")
    return {name: pretrain(data, options(name, root / name)) for name in OBJECTIVES}


def _killed(data: str, objective: str, out: Path) -> None:
    torch.set_num_threads(1)
    update, count = State.update, 0

    def dying(self: State, refused: Tensor | None = None) -> None:
        nonlocal count
        count += 1
        if count == 8:
            signal.raise_signal(signal.SIGKILL)
        update(self, refused)

    State.update = dying  # type: ignore[method-assign]
    pretrain(data, options(objective, out, save_every=3))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_killed_run_goes_on(objective: str, runs: dict[str, Result], data: str, tmp_path: Path) -> None:
    """To the same weights, bit for bit: of the teacher too, and of its centre."""
    child = FORKS.Process(target=_killed, args=(data, objective, tmp_path / "run"))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL and (tmp_path / "run" / "resume").exists()
    again = pretrain(data, options(objective, tmp_path / "run", save_every=3))
    assert_same_weights(weights(again.folder), weights(runs[objective].folder))
    assert again.figures["val"] == runs[objective].figures["val"]


def _train_here(data: str, root: Path) -> None:
    for name in OBJECTIVES:
        pretrain(data, options(name, root / name, batch_size=15, micro_batch=4, epochs=1))


def test_two_ranks_are_as_one(data: str, tmp_path: Path) -> None:
    """Batches of 15 over two ranks, in parts of four: what is hidden, and the centre, are of all images."""
    ranks.run(2, _train_here, data, tmp_path / "two")
    for name in OBJECTIVES:
        alone = pretrain(data, options(name, tmp_path / "one" / name, batch_size=15, epochs=1))
        found = json.loads((tmp_path / "two" / name / "results.json").read_text())
        assert found["ranks"] == 2
        assert found["test"] == pytest.approx(alone.figures["test"], abs=2e-3), name
        traces = [
            [row["loss"] for row in records(folder, "train")]
            for folder in (tmp_path / "two" / name, alone.folder)
        ]
        assert traces[0] == pytest.approx(traces[1], abs=1e-4), name


def _centre_here(counts: list[int], out: Path | None) -> None:
    """Take the gradients of a rank's images of a batch, two at a time, and keep the centre that follows."""
    with parallel.join("cpu") as world:
        torch.manual_seed(0)
        shape = {"width": 16, "depth": 1, "heads": 2, "mlp_width": 32, "num_classes": 0}
        model = zoo.build(ViTConfig(image_size=(8, 8), patch_size=(4, 4), **shape))
        settings = Preprocessing(image_size=(8, 8))
        task = Dino(model, settings, prototypes=20).train()
        rng, total = torch.Generator().manual_seed(1), sum(counts)
        images = (
            torch.randn(2, total, 3, 8, 8, generator=rng) * torch.arange(1, total + 1)[:, None, None, None]
        )
        start = sum(counts[: world.rank])
        own = slice(start, start + counts[world.rank] if world.size > 1 else total)
        numbers = torch.arange(total)[own]
        batch = Batch(images[:, own].flatten(0, 1), numbers * 0, numbers, views=2)
        about = {"images": total, "micro_batch": 2, "precision": "float32", "seed": 0, "note": print}
        Gradients(task, task, world, **about)(batch, 0)
        task.after_update(0, None)
        if world.is_main and out is not None:
            torch.save(task.center, out)


@pytest.mark.parametrize("counts", [[3, 2], [5, 4], [1, 0]], ids=str)
def test_the_centre_is_of_every_image_once(counts: list[int], tmp_path: Path) -> None:
    """Also where one rank has a part less, and works on one again to keep step with the other."""
    ranks.run(2, _centre_here, counts, tmp_path / "two.pt")
    _centre_here(counts, tmp_path / "one.pt")
    found, expected = (torch.load(tmp_path / name) for name in ("two.pt", "one.pt"))
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected)


def test_labels_only_watch(runs: dict[str, Result], data: str, tmp_path: Path) -> None:
    """Other labels: the same weights, and another share of neighbours that agree."""
    with np.load(data) as arrays:
        changed = dict(arrays)
    changed["train_labels"] = np.roll(changed["train_labels"], 1)
    changed["val_labels"] = np.roll(changed["val_labels"], 1)
    np.savez(tmp_path / "other.npz", **changed)
    other = pretrain(str(tmp_path / "other.npz"), options("mae", tmp_path / "run"))
    assert_same_weights(weights(other.folder), weights(runs["mae"].folder))
    ours, theirs = (records(run.folder, "val") for run in (other, runs["mae"]))
    assert [row["loss"] for row in ours] == [row["loss"] for row in theirs]
    assert [row["knn"] for row in ours] != [row["knn"] for row in theirs]


def test_pictures_without_classes_are_enough(pictures: str, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(sorted(Path(pictures).glob("train/*/*.png"))):
        shutil.copy(path, flat / f"{number}.png")
    run = vitreous.pretrain(flat, **{**_given("dino"), "out": tmp_path / "run", "epochs": 1})
    assert "knn" not in run.val and run.val.effective_rank > 1
    page = (run.folder / "report.html").read_text()
    assert "Nearest neighbours" in page and "What patches are like" in page and "teacher" in page
    assert not (run.folder / "preview.png").exists()


def test_a_folder_without_pictures_is_not_asked_for_classes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no images found below it$"):
        pretrain(str(tmp_path), options("mae", tmp_path / "run"))


@pytest.mark.parametrize("objective", ["mae", "dino"])
def test_what_one_image_can_not_tell_is_not_told(
    objective: str, pictures: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of twelve pictures one is held out for val and one for test: it has a rank of 1 and no cosine."""
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(sorted(Path(pictures).glob("train/*/*.png"))[:12]):
        shutil.copy(path, flat / f"{number}.png")
    words = ["--objective", objective, "--image-size", "16", "--patch-size", "4", "--epochs", "1"]
    words += ["--device", "cpu", "--batch-size", "4", "--out", str(tmp_path / "run")]
    assert cli.main(["pretrain", str(flat), *words]) == 0
    printed = capsys.readouterr()
    assert "cosine" not in printed.out and "rank" not in printed.out and "collapsed" not in printed.err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    for split in ("val", "test"):
        assert 0 < results[split]["count"] < 8
        assert not {"effective_rank", "mean_cosine"} & results[split].keys()


def _given(objective: str) -> dict[str, Any]:
    values = vars(options(objective, Path("nowhere")))
    return {name: value for name, value in values.items() if value is not None and name != "out"}


def test_what_is_painted_is_shown(data: str, tmp_path: Path) -> None:
    given = {**_given("mae"), "objective": "mae", "out": tmp_path / "run", "preview": True}
    run = vitreous.pretrain(data, **given)
    drawn = sorted((run.folder / "preview").iterdir())
    assert [path.name for path in drawn] == ["step-00000006.png", "step-00000012.png"]
    with Image.open(drawn[0]) as first, Image.open(run.folder / "preview.png") as last:
        assert first.size == last.size
    page = (run.folder / "report.html").read_text()
    assert "What is seen, and what the model makes of it" in page and "Effective rank" in page
    assert "trained without labels" in (run.folder / "model_card.md").read_text()


def test_it_is_fine_tuned_probed_and_converted(runs: dict[str, Result], data: str, tmp_path: Path) -> None:
    for name in OBJECTIVES:
        best = runs[name].folder / "best.safetensors"
        model = load(best).model
        assert not load(best).labels and model.config.num_classes == 0
        result = convert(str(best), tmp_path / name, "timm")
        assert result.largest_difference is not None and result.largest_difference < 1e-4
    run = vitreous.finetune(
        runs["mae"].folder, data, epochs=4, batch_size=16, device="cpu", out=tmp_path / "tuned", recipe="none"
    )
    assert run.test.accuracy > 0.5


def test_the_teacher_is_what_is_kept(runs: dict[str, Result], data: str, tmp_path: Path) -> None:
    """A teacher that never moves is the model as it was made; the student learned."""
    from vitreous.objectives import dino

    with pytest.MonkeyPatch.context() as still:
        still.setattr(dino, "MOMENTUM", (1.0, 1.0))
        run = pretrain(data, options("dino", tmp_path / "run"))
    torch.manual_seed(plan_of(run.folder).seed)
    from vitreous.models import zoo

    fresh = zoo.build(plan_of(run.folder).architecture, plan_of(run.folder).initialization)
    assert_same_weights(weights(run.folder), dict(fresh.state_dict()))
    assert not torch.equal(
        weights(runs["dino"].folder)["patch_embed.proj.weight"], fresh.state_dict()["patch_embed.proj.weight"]
    )


def test_a_run_goes_on_from_a_published_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=7, img_size=32)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    pixels = np.random.default_rng(0).integers(0, 255, (40, 32, 32, 3)).astype(np.uint8)
    np.savez(tmp_path / "data.npz", train_images=pixels, train_labels=np.zeros(40, int))
    start = PretrainConfig(
        objective="mae", init=str(tmp_path / "theirs.pth"), epochs=1, lr=1e-9, weight_decay=0.0, device="cpu",
        out=str(tmp_path / "run"), batch_size=8, precision="float32",
    )  # fmt: skip
    run = pretrain(str(tmp_path / "data.npz"), start)
    found = weights(run.folder)
    for name, value in theirs.state_dict().items():
        if not name.startswith("head."):
            torch.testing.assert_close(found[name], value, atol=1e-5, rtol=0)
    assert plan_of(run.folder).init == str(tmp_path / "theirs.pth")
    assert "--init" in json.loads((run.folder / "config.json").read_text())["command"]


def test_a_collapse_is_caught(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a centre, and with a teacher that follows at once, all images become one prototype's."""
    from vitreous.objectives import dino

    monkeypatch.setattr(dino, "MOMENTUM", (0.5, 0.5))
    monkeypatch.setattr(dino, "CENTER_MOMENTUM", 1.0)
    monkeypatch.setattr(Dino, "targets", lambda self, scores: (scores.float() / 0.005).softmax(-1))
    failing = options("dino", tmp_path / "run", epochs=40, lr=4e-2, on_collapse="stop", weight_decay=0.0)
    with pytest.raises(TrainingError, match=r"stopped at step [\d,]+: the teacher gives all images .*--lr"):
        pretrain(data, failing)
    last = records(tmp_path / "run", "val")[-1]
    assert last["prototypes_used"] < 1.5
    assert (tmp_path / "run" / "resume" / f"step-{last['step']:08d}").exists()


def test_a_collapse_is_said_and_the_run_goes_on(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vitreous.evals.health.ALIKE", -1.0)
    run = pretrain(data, options("masked", tmp_path / "run"))
    said = capsys.readouterr().err
    assert "step 6: the features have collapsed" in said and "step 12: the features" in said
    assert run.figures["steps"] == 12


def test_options_change_what_is_learned(data: str, tmp_path: Path) -> None:
    changes: dict[str, list[dict[str, Any]]] = {
        "masked": [{"target": "small"}, {"target": "pixels"}],
        "mae": [{"mask_ratio": 0.5}, {"decoder_width": 64}, {"decoder_depth": 1}],
        "dino": [{"prototypes": 24}, {"local_crops": 1}, {"local_scale": (0.6, 0.7)}],
    }
    name = "patch_embed.proj.weight"
    for objective, several in changes.items():
        plain = weights(pretrain(data, options(objective, tmp_path / objective, epochs=1)).folder)
        for change in several:
            ((option, value),) = change.items()
            out = tmp_path / f"{objective}-{option}-{value}"
            run = pretrain(data, options(objective, out, epochs=1, **change))
            found = plan_of(run.folder).settings[option]
            assert (tuple(found) if isinstance(value, tuple) else found) == value
            assert not torch.equal(weights(run.folder)[name], plain[name]), option


def test_weight_decay_grows_along_a_cosine(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As AdamW would decay, at each step by its own; here with no gradient."""
    monkeypatch.setattr(State, "update", lambda self, refused=None: self.decay.apply(refused))
    monkeypatch.setattr(Dino, "after_update", lambda *_: None)
    seen: list[tuple[float, Tensor]] = []
    from vitreous import optim

    original = optim.ScheduledDecay.set

    def noted(self: Any, lr: float, progress: float) -> None:
        original(self, lr, progress)
        expected = 0.4 + (0.04 - 0.4) * (1 + np.cos(np.pi * progress)) / 2
        seen.append((lr * expected, self.taken.clone()))

    monkeypatch.setattr(optim.ScheduledDecay, "set", noted)
    pretrain(data, options("dino", tmp_path / "run"))
    assert len(seen) == 12 and plan_of(tmp_path / "run").final_weight_decay == 0.4
    for expected, taken in seen:
        assert taken.item() == pytest.approx(expected, rel=1e-4)


def _stopped_at_the_last_evaluation(data: str, out: Path) -> None:
    torch.set_num_threads(1)
    evaluate, count = Dino.evaluate, 0

    def interrupted(self: Dino, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            signal.raise_signal(signal.SIGTERM)
        return evaluate(self, *arguments)

    Dino.evaluate = interrupted  # type: ignore[method-assign]
    pretrain(data, options("dino", out))


def test_an_evaluation_that_is_made_up_for_asks_the_same_teacher(
    runs: dict[str, Result], data: str, tmp_path: Path
) -> None:
    """Its temperature follows from the step: right after a start it is that of the first one."""
    child = FORKS.Process(target=_stopped_at_the_last_evaluation, args=(data, tmp_path / "run"))
    child.start()
    child.join(60)
    assert child.exitcode == 143
    assert_same_run(pretrain(data, options("dino", tmp_path / "run")).folder, runs["dino"])


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"mask_ratio": 1.0}, "--mask-ratio 1.0 is out of range"),
        ({"mask_ratio": 0.01}, "hides none of the 16 patches"),
        ({"decoder_width": 30}, "--decoder-width 30 is not a multiple of 4"),
        ({"decoder_depth": 0}, "--decoder-depth 0 is out of range"),
        ({"objective": "dino", "local_scale": (0.5, 0.2)}, "--local-scale 0.5 0.2 is out of range"),
        ({"fit": "pad", "crop_scale": None}, "--fit pad leaves patches that show nothing"),
        ({"mixup": 0.8}, "--mixup 0.8 mixes images"),
        ({"augment": "mix"}, "--mixup 0.8 mixes images"),
        ({"label_smoothing": 0.1}, "--label-smoothing has no effect in pre-training"),
        ({"loss": "sigmoid"}, "--loss has no effect in pre-training"),
        ({"balance": "loss"}, "--balance loss weighs the loss of labels"),
        ({"local_crops": 4}, "--local-crops has no effect with --objective mae: leave it out"),
        ({"target": "pixels"}, "--target has no effect with --objective mae"),
        ({"objective": "masked", "mask_ratio": 0.5}, "--mask-ratio has no effect with --objective masked"),
        ({"objective": "dino", "decoder_depth": 1}, "--decoder-depth has no effect with --objective dino"),
        ({"mix_probability": 0.5}, "--mix-probability has no effect where no image is mixed"),
        ({"objective": "dino", "shard": True}, "--shard splits models that are trained with labels"),
        ({"shard": True}, "--shard splits models that are trained with labels"),
        ({"objective": "dino", "preview": True}, "--preview shows what masked or mae paint"),
        ({"objective": "dino", "crop_scale": (0.0, 0.0)}, "give a --crop-scale"),
        ({"model": "R50+ViT-B/16", "image_size": None, "patch_size": None}, "a plain ViT"),
        ({"init": "tiny", "model": "ViT-Ti/16"}, "--model is for training from scratch"),
    ],
)
def test_wrong_options_are_one_line(data: str, tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises((OptionError, vitreous.errors.VitreousError), match=line):
        pretrain(data, options(**{"objective": "mae", "out": tmp_path / "run", **changes}))
    assert not (tmp_path / "run" / "config.json").exists()


def _never(*_: Any) -> None:
    raise AssertionError("written before it was refused")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"mask_ratio": 0.99}, "--mask-ratio 0.99 leaves none of the 16 patches to see"),
        ({"mask_ratio": 0.01}, "--mask-ratio 0.01 hides none of the 16 patches"),
        ({"patch_size": (16,)}, "mae needs 2 patches or more"),
        ({"image_size": (8,), "patch_size": (1,)}, "one gray pixel has none"),
        ({"objective": "masked", "patch_size": (16,)}, "masked needs 2 patches or more"),
        ({"objective": "masked", "model": "R50+ViT-B/16", "patch_size": None, "image_size": None}, "a plain"),
    ],
)
def test_what_cannot_be_hidden_is_refused_before_anything_is_written(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], line: str
) -> None:
    monkeypatch.setattr("vitreous.training.setup.files.write_json", _never)
    with pytest.raises(OptionError, match=line):
        pretrain(data, options(**{"objective": "mae", "out": tmp_path / "run", **changes}))
    assert not (tmp_path / "run").exists()


def test_colours_of_many_channels_are_too_many(tmp_path: Path) -> None:
    """3 bits of each of seven channels are two million colours; their pixels can still be predicted."""
    pixels = np.random.default_rng(0).integers(0, 255, (40, 8, 8, 7)).astype(np.uint8)
    np.savez(tmp_path / "data.npz", train_images=pixels, train_labels=np.arange(40) % 2)
    given = options("masked", tmp_path / "run", epochs=1, image_size=(8,))
    with pytest.raises(OptionError, match=r"tells 2,097,152 colours of 7 channels apart.*--target pixels"):
        pretrain(str(tmp_path / "data.npz"), given)
    run = pretrain(str(tmp_path / "data.npz"), replace(given, target="pixels"))
    assert np.isfinite(run.figures["val"]["loss"])


def test_figures_of_what_is_thrown_away_are_those_of_the_best_step(data: str, tmp_path: Path) -> None:
    """The sealed encoder is the best average; the decoder that is left is the last one, and not averaged."""
    found = pretrain(data, options("mae", tmp_path / "run", epochs=8, ema=0.9))
    best = next(row for row in records(found.folder, "val") if row["step"] == found.figures["step"])
    assert found.figures["val"]["loss"] == pytest.approx(best["loss"], abs=1e-6)
    assert found.figures["val"]["effective_rank"] == pytest.approx(best["effective_rank"], abs=1e-3)
    assert "loss" not in found.figures["test"] and found.figures["test"]["count"] == 31
    document = json.loads((found.folder / "evaluation.json").read_text())
    assert "loss" not in document and "effective_rank" in document
