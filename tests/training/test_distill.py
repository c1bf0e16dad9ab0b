"""Distillation: losses by the formulas, what a teacher sees, what it teaches, and that a run survives."""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.forks import FORKS
from tests.test_vit import tiny
from tests.training.runs import assert_same_weights, plan_of, records, run, weights
from vitreous import parallel
from vitreous.config import DistillConfig, Preprocessing
from vitreous.convert import convert
from vitreous.data import Batch, open_data
from vitreous.data.augment import EvaluationTransform
from vitreous.errors import CheckpointError, DataError, OptionError
from vitreous.export import export
from vitreous.models.architecture import ResNetConfig
from vitreous.models.resnet import ResNet
from vitreous.objectives.distill import Answers, Features, Teacher, class_columns
from vitreous.objectives.supervised import Supervised
from vitreous.predict import Classifier, load
from vitreous.training import Result, advice, distill
from vitreous.training.state import State

OPTIONS = DistillConfig(patch_size=(4,), batch_size=16, epochs=2, device="cpu", lr=2e-3)
HALF = Preprocessing(image_size=(16, 24))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed is not measured here."""
    monkeypatch.setattr(parallel, "matrix_rate", lambda *_, **__: 1e12)


@pytest.fixture(scope="module")
def teacher(data: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(run(data, tmp_path_factory.mktemp("teacher") / "run", epochs=4).folder)


def classifier(model: nn.Module | None = None, **changes: Any) -> Classifier:
    """Return an untrained teacher of five classes."""
    model = model or tiny(**changes)
    settings = Preprocessing(image_size=model.config.image_size, mean=(0.3, 0.4, 0.5), std=(0.2, 0.3, 0.4))
    return Classifier(model=model, preprocess=EvaluationTransform(settings), labels=list("abcde"))


def batch(size: tuple[int, int] = (16, 24), count: int = 6) -> Batch:
    images = torch.rand(count, 3, *size) * 2 - 1
    return Batch(images, torch.arange(count) % 5, torch.arange(count))


# -- what the teacher sees -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(32, 32), (16, 24), (48, 40)])
def test_a_teacher_sees_what_it_expects(size: tuple[int, int]) -> None:
    """Its own normalisation and size, whatever the student's: as if it had been given the picture itself."""
    model = tiny(image_size=(32, 32))
    found: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    own = classifier(model)
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    pixels = np.kron(pixels[::8, ::8], np.ones((8, 8, 1), np.uint8))  # no detail that filters could differ in
    student = EvaluationTransform(replace(HALF, image_size=size))(pixels)
    Teacher(own, replace(HALF, image_size=size)).logits(student[None])
    expected = EvaluationTransform(replace(own.preprocess.preprocessing, resize="exact"))(pixels)
    levels = (found[0][0] - expected).abs() * torch.tensor([0.2, 0.3, 0.4])[:, None, None] * 255
    assert levels.max() < 5 and levels.mean() < 0.2  # Pillow rounds and clips between rows and columns


def test_a_teacher_is_frozen_and_no_part_of_the_student() -> None:
    task = Features(tiny(), Teacher(classifier(width=64), HALF))
    loss, _ = task(batch())
    loss.backward()
    assert all(parameter.grad is None for parameter in task.teacher.model.parameters())
    assert not task.teacher.model.training
    assert {name.partition(".")[0] for name, _ in task.named_parameters()} == {
        "model",
        "to_vector",
        "to_places",
    }
    assert all(
        parameter.grad is not None for name, parameter in task.named_parameters() if "model.head" not in name
    )


def test_other_channels_are_refused() -> None:
    with pytest.raises(OptionError, match="the teacher sees 3 channels and the student 1"):
        Teacher(classifier(), Preprocessing(image_size=(32, 32), mean=(0.5,), std=(0.5,)))


# -- the losses ----------------------------------------------------------------------------------------------


def answers(student: Any, **options: Any) -> Answers:
    labels = Supervised(student, labels=list("abcde"))
    teacher = Teacher(classifier(), HALF)
    return Answers(labels, teacher, columns=[4, 3, 2, 1, 0], **options)


def test_hard_targets_are_deits() -> None:
    """Half the cross entropy of the class token with labels, half of the other with the teacher's class."""
    student, given = tiny(distilled=True), batch()
    task = answers(student, hard=True, share=0.5)
    with torch.no_grad():
        loss, metrics = task(given)
        features = student.forward_features(given.images)
        own, other = student.head(features[:, 0]), student.head_dist(features[:, 1])
        said = task.teacher.model(task.teacher.see(given.images)).flip(1).argmax(1)
    expected = (F.cross_entropy(own, given.targets) + F.cross_entropy(other, said)) / 2
    torch.testing.assert_close(loss, expected)
    averaged = ((own + other) / 2).argmax(1)
    assert metrics["accuracy"] == (averaged == given.targets).float().mean()
    assert metrics["agreement"] == (averaged == said).float().mean()
    torch.testing.assert_close(student(given.images), (own + other) / 2)  # prediction averages both heads


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 1.0), (3.0, 0.1)])
def test_soft_targets_are_hintons(temperature: float, share: float) -> None:
    """(1 - s) CE(student, labels) + s T² KL(teacher at T, student at T), DeiT's equation 2."""
    student, given = tiny(), batch()
    task = answers(student, hard=False, temperature=temperature, share=share)
    with torch.no_grad():
        loss, _ = task(given)
        ours = student(given.images)
        theirs = task.teacher.model(task.teacher.see(given.images)).flip(1)
    p, q = (torch.softmax(each / temperature, 1).double() for each in (theirs, ours))
    divergence = (p * (p.log() - q.log())).sum(1).mean() * temperature**2
    expected = (1 - share) * F.cross_entropy(ours, given.targets) + share * divergence
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_features_are_matched_by_place(kind: str) -> None:
    """Mean of one minus the cosine, for the pooled vector and for each of the student's places."""
    other = tiny(width=64, patch_size=(4, 4))
    if kind == "resnet":
        other = ResNet(ResNetConfig(layers=(1, 1), image_size=(32, 48), num_classes=5, stem_width=32)).eval()
    student, given = tiny(num_classes=0), batch()
    task = Features(student, Teacher(classifier(other), HALF)).eval()
    with torch.no_grad():
        loss, metrics = task(given)
        seen = task.teacher.see(given.images)
        features = student.forward_features(given.images)
        vector = F.cosine_similarity(
            task.to_vector(student.pool(features)), other.pool(other.forward_features(seen)), dim=1
        )
        maps = other.feature_maps(other.forward_features(seen))
        maps = F.interpolate(maps, size=(2, 3), mode="bilinear", antialias=True).flatten(2).mT
        places = F.cosine_similarity(task.to_places(features[:, 1:]), maps, dim=2)
    torch.testing.assert_close(metrics["image_distance"], 1 - vector.mean())
    torch.testing.assert_close(metrics["places_distance"], 1 - places.mean())
    torch.testing.assert_close(loss, 1 - (vector.mean() + places.mean()) / 2)


def test_smooth_l1_is_from_the_normalised_target() -> None:
    task = Features(tiny(num_classes=0), Teacher(classifier(), HALF), distance="smooth_l1")
    ours, theirs = torch.randn(3, 8), torch.randn(3, 8) * 5 + 2
    target = (theirs - theirs.mean(1, keepdim=True)) / (
        theirs.var(1, unbiased=False, keepdim=True) + 1e-5
    ).sqrt()
    torch.testing.assert_close(
        task.apart(ours, theirs), F.smooth_l1_loss(ours, target, reduction="none").mean(1)
    )


def test_classes_are_found_by_name() -> None:
    assert class_columns(["cat", "dog", "cow"], ["cow", "cat"]) == [2, 0]
    with pytest.raises(
        OptionError, match="does not know 1 of the data's 2 classes, such as 'owl': fine-tune"
    ):
        class_columns(["cat", "dog"], ["cat", "owl"])


# -- runs ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taught(data: str, teacher: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return distill(teacher, data, replace(OPTIONS, out=str(tmp_path_factory.mktemp("taught") / "run")))


def test_a_student_with_a_token(taught: Result, data: str, teacher: str, tmp_path: Path) -> None:
    plan = plan_of(taught.folder)
    assert plan.objective == "distill" and plan.architecture.distilled
    assert (plan.settings["match"], plan.settings["hard"], plan.settings["share"]) == ("token", True, 0.5)
    assert {"accuracy", "agreement"} <= records(taught.folder, "train")[-1].keys()
    stored = json.loads((taught.folder / "config.json").read_text())
    assert stored["command"].startswith(f"vitreous distill {teacher} {data} --out ")
    sealed = load(taught.folder)
    assert sealed.about["recipe"]["settings"]["teacher"] == teacher
    assert sealed.labels == open_data(data).labels
    assert convert(str(taught.folder), tmp_path / "timm.safetensors", "timm").largest_difference < 1e-5
    assert convert(str(taught.folder), tmp_path / "hf", "hf").largest_difference < 1e-5
    pictures = [tmp_path / "a.png"]
    open_data(data).splits["test"].read(0, 1).save(pictures[0])
    assert export(sealed, tmp_path / "a.onnx", images=pictures).label_agreement == 1.0


def test_features_need_no_labels(data: str, teacher: str, tmp_path: Path) -> None:
    result = distill(teacher, data, replace(OPTIONS, match="features", out=str(tmp_path / "run")))
    rows = records(tmp_path / "run", "train")
    assert rows[-1]["loss"] < rows[0]["loss"] and "places_distance" in rows[-1]
    sealed = load(tmp_path / "run")
    assert sealed.labels == [] and sealed.model.config.num_classes == 0
    assert not any(name.startswith("to_") for name in weights(tmp_path / "run"))
    assert "accuracy" not in result.figures["val"] and result.figures["val"]["loss"] < 1
    assert result.figures["test"] == {
        "count": 31
    }  # the layers that its loss needs are those of the last step


def test_pictures_may_lie_anywhere(pictures: str, tmp_path: Path) -> None:
    """Without labels a folder needs no class folders; with them it does."""
    teacher = str(run(pictures, tmp_path / "teacher", epochs=1, workers=0).folder)
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(sorted(Path(pictures).rglob("*.png"))[:60]):
        folder = flat / "deep" / "er" if number % 3 == 0 else flat
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(path.read_bytes())
    options = replace(OPTIONS, match="features", epochs=1, workers=0, out=str(tmp_path / "run"))
    result = distill(teacher, str(flat), options)
    assert sum(map(len, result.dataset.splits.values())) == 60 and load(tmp_path / "run").labels == []
    with pytest.raises(DataError, match="all images are of one class"):
        distill(teacher, str(flat), replace(options, match="logits", out=str(tmp_path / "other")))


def test_a_teacher_alone_can_teach(data: str, teacher: str, tmp_path: Path) -> None:
    """Without a true label: those of the data are shuffled, and the student still agrees with its teacher."""
    with np.load(data) as arrays:
        shuffled = dict(arrays)
    shuffled["train_labels"] = np.random.default_rng(0).permutation(shuffled["train_labels"])
    np.savez(tmp_path / "shuffled.npz", **shuffled)
    options = replace(OPTIONS, match="logits", epochs=6, augment="none", out=str(tmp_path / "run"))
    result = distill(teacher, str(tmp_path / "shuffled.npz"), options)
    assert plan_of(tmp_path / "run").settings["share"] == 1.0
    assert records(tmp_path / "run", "train")[-1]["agreement"] > 0.8
    assert result.figures["test"]["accuracy"] > 0.6


def _killed(data: str, teacher: str, out: Path) -> None:
    torch.set_num_threads(1)
    update, count = State.update, 0

    def dying(self: State, refused: Tensor | None = None) -> None:
        nonlocal count
        count += 1
        if count == 8:
            signal.raise_signal(signal.SIGKILL)
        update(self, refused)

    State.update = dying  # type: ignore[method-assign]
    distill(teacher, data, replace(OPTIONS, out=str(out), save_every=3))


def test_a_killed_run_goes_on(taught: Result, data: str, teacher: str, tmp_path: Path) -> None:
    child = FORKS.Process(target=_killed, args=(data, teacher, tmp_path / "run"))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL and (tmp_path / "run" / "resume").exists()
    distill(teacher, data, replace(OPTIONS, out=str(tmp_path / "run"), save_every=3))
    assert_same_weights(weights(tmp_path / "run"), weights(taught.folder))


def test_another_teacher_is_refused(taught: Result, data: str, teacher: str, tmp_path: Path) -> None:
    other = run(data, tmp_path / "other", epochs=1).folder
    with pytest.raises(
        Exception, match=r"options: teacher was .* and is now .*; the teacher has other weights now: repeat"
    ):
        distill(str(other), data, replace(OPTIONS, out=str(taught.folder)))
    settings = replace(
        plan_of(taught.folder), settings={**plan_of(taught.folder).settings, "teacher": str(other)}
    )
    from vitreous.objectives.distill import build

    with pytest.raises(CheckpointError, match="is not the one that the run began with"):
        build(tiny(), settings, open_data(data))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"teacher_share": 0.0}, "--teacher-share 0.0 is out of range"),
        ({"teacher_share": 1.1}, "--teacher-share 1.1 is out of range"),
        ({"temperature": 0.0}, "--temperature 0.0 is out of range"),
        ({"fit": "pad"}, "--fit pad hides patches"),
        ({"distance": "smooth_l1"}, "--distance has no effect with --match token"),
        ({"temperature": 2.0}, "--temperature has no effect on hard targets"),
        ({"match": "features", "teacher_share": 0.5}, "--teacher-share has no effect with --match features"),
        ({"match": "features", "loss": "sigmoid"}, "--loss has no effect with --match features"),
        ({"match": "logits", "label_smoothing": 0.2}, "--label-smoothing has no effect with --match logits"),
        ({"match": "logits", "balance": "loss"}, "--balance loss has no effect with --match logits"),
        ({"match": "features", "balance": "loss"}, "--balance loss has no effect with --match features"),
        ({"shard": True}, "--shard can't split a student with --match token"),
        ({"match": "features", "shard": True}, "--shard can't split a student with --match features"),
        ({"unmixed": 0.5, "mixup": 0.0}, "--unmixed has no effect where no image is mixed"),
    ],
)
def test_what_no_teacher_can_do(
    changes: dict[str, Any], line: str, data: str, teacher: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=line):
        distill(teacher, data, replace(OPTIONS, out=str(tmp_path / "run"), **changes))
    assert not (tmp_path / "run").exists()


def test_settings_are_the_options(
    data: str, teacher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(
        sys.modules["vitreous.training.distill"], "train", lambda *_, task, **__: found.append(task)
    )
    for changes in ({"targets": "soft", "temperature": 3.0, "teacher_share": 0.1}, {"match": "logits"}):
        distill(teacher, data, replace(OPTIONS, **changes))
    soft, logits = found
    assert [soft.settings[name] for name in ("hard", "temperature", "share")] == [False, 3.0, 0.1]
    assert [logits.settings[name] for name in ("hard", "temperature", "share")] == [False, 1.0, 1.0]
    assert logits.shape == {} and soft.shape["distilled"]
    distill(teacher, data, replace(OPTIONS, match="features", distance="smooth_l1"))
    assert found[2].settings["distance"] == "smooth_l1" and found[2].shape == {
        "num_classes": 0,
        "patch_drop": 0.0,
    }


def test_a_student_is_not_told_of_options_that_distillation_refuses(
    data: str, teacher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(advice, "advise", lambda *told: given.append(told) or [])
    distill(teacher, data, replace(OPTIONS, epochs=1, out=str(tmp_path / "student")))
    _, document, plan, headline, _, options = given[0]
    monkeypatch.undo()
    figures = {"train": {"accuracy": 0.99}, "test": {"accuracy": 0.5}}
    (line,) = advice.advise(figures, document | {"per_class": []}, plan, headline, options=options)
    assert line.startswith("overfitting") and "--init" not in line
