"""The loop under everything that can happen to a run; a run that was never disturbed is the measure."""

import errno
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from vitreous.defaults import Plan
from vitreous.outcome import Result
from vitreous.train import Accumulate, split, supervised, train

import vitreous
from tests import ranks
from vitreous import cli, journal, optim, parallel, session
from vitreous.config import TrainConfig
from vitreous.data import Batch, Dataset, make_loader, open_data
from vitreous.errors import DiskFullError, ResumeError, TrainingError
from vitreous.models import zoo
from vitreous.objectives import Objective

OPTIONS = TrainConfig(
    epochs=6, batch_size=16, patch_size=(4,), augment="light", ema=0.9, drop_path=0.1, device="cpu", lr=2e-3
)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three classes of stripes, so that a few steps are enough to learn something."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {"class_names": np.array(["rows", "columns", "flat"])}
    for name, count in (("train", 96), ("val", 30), ("test", 31)):
        labels = rng.integers(0, 3, count)
        images = rng.integers(0, 120, (count, 8, 8, 1))
        images[labels == 0, ::2] += 120
        images[labels == 1, :, ::2] += 120
        arrays |= {f"{name}_images": images.astype(np.uint8), f"{name}_labels": labels}
    path = tmp_path_factory.mktemp("data") / "stripes.npz"
    np.savez(path, **arrays)
    return str(path)


@pytest.fixture(scope="session")
def undisturbed(data: str, tmp_path_factory: pytest.TempPathFactory) -> Result:
    torch.set_num_threads(1)
    return run(data, tmp_path_factory.mktemp("undisturbed") / "run")


def run(data: str, out: Path, **changes: Any) -> Result:
    return train(data, replace(OPTIONS, out=str(out), **changes))


def weights(folder: Path, name: str = "last") -> dict[str, Tensor]:
    return load_file(folder / f"{name}.safetensors")


def assert_same_run(folder: Path, undisturbed: Result) -> None:
    """Weights, best weights, evaluations and figures are those of the run that nothing happened to."""
    for name in ("last", "best"):
        ours, theirs = weights(folder, name), weights(undisturbed.folder, name)
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert torch.equal(ours[key], value), f"{name}: {key}"
    evaluations = [
        [record for record in journal.read(where / "metrics.jsonl") if record["split"] != "train"]
        for where in (folder, undisturbed.folder)
    ]
    assert evaluations[0] == evaluations[1]
    figures = json.loads((folder / "results.json").read_text())
    assert figures["test"] == undisturbed.figures["test"]


def test_a_run_leaves_everything_behind(data: str, undisturbed: Result) -> None:
    folder, figures = undisturbed.folder, undisturbed.figures
    assert figures["test"]["accuracy"] > 0.8 and figures["test"]["count"] == 31
    names = {path.name for path in folder.iterdir()}
    files = {
        "config.json",
        "metrics.jsonl",
        "best.safetensors",
        "last.safetensors",
        "resume",
        "model_card.md",
    }
    assert files | {"results.json", "evaluation.json"} <= names
    classifier = vitreous.load(str(folder / "best.safetensors"))
    assert classifier.labels == ["rows", "columns", "flat"]
    split = open_data(data).splits["test"]
    found = classifier.predict([split.read(i, 1) for i in range(len(split))])
    right = [classifier.labels[target] == one.label for target, one in zip(split.targets, found, strict=True)]
    assert np.mean(right) == pytest.approx(figures["test"]["accuracy"], abs=1e-6)
    records = journal.read(folder / "metrics.jsonl")
    assert [r["step"] for r in records if r["split"] == "val"] == [6, 12, 18, 24, 30, 36]
    losses = [r["loss"] for r in records if r["split"] == "train"]
    assert losses[-1] < 0.8 * losses[0]
    assert all(r["images_per_second"] > 0 for r in records if r["split"] == "train")
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert sum(map(sum, evaluation["confusion"])) == 31
    assert sum(evaluation["confusion"][i][i] for i in range(3)) == round(31 * figures["test"]["accuracy"])
    assert "rows, columns, flat" in (folder / "model_card.md").read_text()
    assert figures["mfu"] > 0 and figures["peak_memory_bytes"] > 10**7


def test_the_same_command_on_a_finished_run_changes_nothing(data: str, undisturbed: Result) -> None:
    before = {path: path.stat().st_mtime_ns for path in undisturbed.folder.rglob("step-*")}
    again = run(data, undisturbed.folder)
    assert again.figures == undisturbed.figures
    assert {path: path.stat().st_mtime_ns for path in undisturbed.folder.rglob("step-*")} == before


def test_five_steps_by_hand(data: str, tmp_path: Path) -> None:
    """The loop's losses and weights are those of AdamW (arXiv 1711.05101) written out, step by step."""
    options = replace(
        OPTIONS, ema=0.0, drop_path=0.0, epochs=1, clip=0.5, weight_decay=0.3, label_smoothing=0.1
    )
    result = train(data, replace(options, out=str(tmp_path), save_every=5, keep=9))
    plan = Plan.from_json(json.loads((tmp_path / "config.json").read_text())["plan"])

    torch.manual_seed(options.seed)
    model = zoo.build(plan.architecture)
    loader = make_loader(
        open_data(data).splits["train"], preprocessing=plan.preprocessing, augment="light", batch_size=16
    )
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in model.named_parameters()}
    losses = []
    for t, batch in enumerate(loader.epoch(0), start=1):
        logits = model(batch.images)
        smooth = nn.functional.one_hot(batch.targets, 3) * 0.9 + 0.1 / 3
        loss = -(smooth * logits.log_softmax(1)).sum(1).mean()
        names, parameters = zip(*model.named_parameters(), strict=True)
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.sqrt(sum((g * g).sum() for g in gradients))  # type: ignore[arg-type]
        lr = 2e-3 if t == 1 else 2e-3 * 0.5 * (1 + math.cos(math.pi * (t - 2) / 5))  # one step of warm-up
        with torch.no_grad():
            for name, p, g in zip(names, parameters, gradients, strict=True):
                g = g * min(1.0, 0.5 / (norm.item() + 1e-6))
                m, v = moments[name]
                m.mul_(0.9).add_(g, alpha=0.1)
                v.mul_(0.999).add_(g * g, alpha=0.001)
                if p.ndim > 1 and name != "pos_embed":
                    p.mul_(1 - lr * 0.3)
                p.sub_(lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8))
        losses.append(loss.item())
        if t == 5:
            saved = load_file(next((tmp_path / "resume" / "step-00000005").glob("*.safetensors")))
            for name, p in model.named_parameters():
                ours, theirs = saved[f"weights.model.{name}"], p.detach()
                if name.endswith(
                    "qkv.bias"
                ):  # the keys' bias has no gradient but rounding, which Adam scales up
                    ours, theirs = (torch.cat([b[:64], b[128:]]) for b in (ours, theirs))
                torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)
    record = next(r for r in journal.read(result.folder / "metrics.jsonl") if r["split"] == "train")
    assert record["loss"] == pytest.approx(np.mean(losses), abs=2e-6)
    assert losses[0] != pytest.approx(losses[4], abs=1e-3)


# -- kills ---------------------------------------------------------------------------------------------------

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "vitreous.train", "sklearn.datasets"])


def _dying(data: str, out: Path, how: str, when: int, changes: dict[str, Any]) -> None:
    """Train, and die by SIGKILL at an update, or at a call of the operating system inside a save."""
    torch.set_num_threads(1)
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal count
            count += 1
            if count == when:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **keywords)

        return call

    if how == "step":
        session.State.update = counted(session.State.update)  # type: ignore[method-assign]
    else:
        for name in ("fsync", "rename", "replace", "unlink", "mkdir"):
            setattr(os, name, counted(getattr(os, name)))
    run(data, out, **changes)


def _kill_often(data: str, out: Path, how: str, most: int, **changes: Any) -> int:
    """Start again and again, each time killed at another random moment, until the run ends; count them."""
    chance = random.Random(f"{how} {changes}")
    kills = 0
    while kills < 100:
        child = FORKS.Process(target=_dying, args=(data, out, how, chance.randint(1, most), changes))
        child.start()
        child.join(120)
        assert child.exitcode in (0, -signal.SIGKILL)
        if child.exitcode == 0:
            return kills
        kills += 1
    raise AssertionError("the run never ends")


@pytest.mark.slow
def test_killed_at_random_steps(data: str, tmp_path: Path, undisturbed: Result) -> None:
    kills = _kill_often(data, tmp_path / "run", "step", 5, save_every=2)
    assert kills >= 10
    assert_same_run(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_killed_inside_saves(data: str, tmp_path: Path, undisturbed: Result) -> None:
    kills = _kill_often(data, tmp_path / "run", "save", 40, save_every=1)
    assert kills >= 10
    assert_same_run(tmp_path / "run", undisturbed)


def test_killed_with_muon_and_micro_batches(data: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"optimizer": "muon", "micro_batch": 5, "schedule": "rsqrt", "epochs": 2}
    whole = run(data, tmp_path / "whole", **changes)
    assert _kill_often(data, tmp_path / "run", "step", 9, save_every=1, **changes) >= 1
    assert_same_run(tmp_path / "run", whole)


FLAGS = ["--epochs", "6", "--batch-size", "16", "--patch-size", "4", "--augment", "light", "--ema", "0.9"]
FLAGS += ["--drop-path", "0.1", "--device", "cpu", "--lr", "2e-3"]


def _slow(data: str, out: Path, ready: Any, seconds: float, *more: str) -> None:
    """Train through the command line with slow steps, telling when the first is under way."""
    torch.set_num_threads(1)
    os.setsid()  # a group of its own, as a shell gives every command
    update = session.State.update

    def slowly(self: session.State, step: int) -> None:
        if step == 3:
            ready.set()
        time.sleep(seconds if step >= 3 else 0.0)
        update(self, step)

    session.State.update = slowly  # type: ignore[method-assign]
    os._exit(cli.main(["train", data, *FLAGS, "--out", str(out), *more]))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_stop_with_a_checkpoint(
    data: str, tmp_path: Path, undisturbed: Result, number: signal.Signals, status: int
) -> None:
    ready = FORKS.Event()
    child = FORKS.Process(target=_slow, args=(data, tmp_path / "run", ready, 0.2))
    child.start()
    assert ready.wait(60) and child.pid
    os.kill(child.pid, number)
    asked = time.monotonic()
    child.join(30)
    assert child.exitcode == status and time.monotonic() - asked < 30
    latest = (tmp_path / "run" / "resume" / ".latest").read_text()
    assert latest in ("step-00000004\n", "step-00000005\n")  # the step under way was finished
    run(data, tmp_path / "run")
    assert_same_run(tmp_path / "run", undisturbed)


@pytest.fixture(scope="session")
def pictures(data: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same images as files, which loader workers read."""
    root = tmp_path_factory.mktemp("pictures")
    with np.load(data) as arrays:
        for name in ("train", "val", "test"):
            for i, (pixels, label) in enumerate(
                zip(arrays[f"{name}_images"], arrays[f"{name}_labels"], strict=True)
            ):
                path = root / name / str(arrays["class_names"][label]) / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels[..., 0]).save(path)
    return str(root)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_to_the_workers_too(
    pictures: str, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """A terminal and a batch system signal every process of the run, also those that read images."""
    ready = FORKS.Event()
    child = FORKS.Process(target=_slow, args=(pictures, tmp_path / "run", ready, 0.3, "--workers", "2"))
    child.daemon = False
    child.start()
    assert ready.wait(60) and child.pid
    os.killpg(child.pid, number)
    child.join(30)
    assert child.exitcode == status
    run(pictures, tmp_path / "run", workers=0)
    run(pictures, tmp_path / "whole", workers=1)
    for key, value in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path / "run")[key], value), key


def test_a_second_signal_ends_at_once(data: str, tmp_path: Path) -> None:
    ready = FORKS.Event()
    child = FORKS.Process(target=_slow, args=(data, tmp_path / "run", ready, 60.0))
    child.start()
    assert ready.wait(60) and child.pid
    os.kill(child.pid, signal.SIGTERM)
    time.sleep(0.3)
    assert child.is_alive()
    os.kill(child.pid, signal.SIGTERM)
    child.join(5)
    assert child.exitcode == 143


# -- what is not finite --------------------------------------------------------------------------------------


class Poisoned(Objective):
    """Gives no number whenever one of these images is in the batch."""

    def __init__(self, inner: Any, images: set[int]) -> None:
        super().__init__()
        self.model, self.images, self.inner = inner.model, images, [inner]  # in a list: not a second owner

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = self.inner[0](batch)
        bad = self.training and bool(self.images & set(batch.indices.tolist()))
        return (loss * float("nan") if bad else loss), metrics


def poison(*images: int) -> Callable[[nn.Module, Plan, TrainConfig, Dataset], Objective]:
    def make(model: nn.Module, plan: Plan, options: TrainConfig, dataset: Dataset) -> Objective:
        return Poisoned(supervised(model, plan, options, dataset), set(images))

    return make


def test_what_is_not_finite_stops_the_run_before_harm(data: str, tmp_path: Path) -> None:
    options = replace(OPTIONS, out=str(tmp_path), epochs=2)
    with pytest.raises(TrainingError) as caught:
        train(data, options, make_objective=poison(40))
    message = str(caught.value)
    report = json.loads(next(tmp_path.glob("nonfinite-*.json")).read_text())
    step = report["step"]
    assert f"not finite at step {step}, learning rate {report['learning_rate']:.3g}, files " in message
    assert "--on-nan rollback" in message
    assert "train_images#40" in report["files"] and len(report["files"]) == 16
    kept = tmp_path / "resume" / f"step-{step:08}"
    tensors = load_file(next(kept.glob("*.safetensors")))
    assert all(torch.isfinite(value).all() for value in tensors.values())
    counts = {value.item() for name, value in tensors.items() if name.endswith(".step")}
    assert counts == ({float(step)} if step else set())  # as many updates as there were steps before it
    with pytest.raises(TrainingError, match=f"not finite at step {step}"):
        train(data, options, make_objective=poison(40))


def test_rollback_leaves_the_batch_out(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = replace(OPTIONS, out=str(tmp_path), epochs=2, on_nan="rollback", save_every=2)
    result = train(data, options, make_objective=poison(40))  # once in each epoch
    said = capsys.readouterr().err
    assert said.count("rolled back to step") == 2
    last = load_file(next((tmp_path / "resume" / "step-00000012").glob("*.safetensors")))
    assert {value.item() for name, value in last.items() if name.endswith(".step")} == {10.0}
    assert all(torch.isfinite(value).all() for value in weights(result.folder).values())


def test_after_three_rollbacks_it_stops(data: str, tmp_path: Path) -> None:
    options = replace(OPTIONS, out=str(tmp_path), on_nan="rollback")
    with pytest.raises(TrainingError, match="after 3 rollbacks"):
        train(data, options, make_objective=poison(40))
    assert len(list(tmp_path.glob("nonfinite-*.json"))) == 4


# -- memory and time -----------------------------------------------------------------------------------------


def scarce(most: int) -> Callable[[nn.Module, Plan, TrainConfig, Dataset], Objective]:
    """An objective that has memory for so many images only."""

    def make(model: nn.Module, plan: Plan, options: TrainConfig, dataset: Dataset) -> Objective:
        inner = supervised(model, plan, options, dataset)

        def guard(module: nn.Module, arguments: tuple[Batch, ...], _: object) -> None:
            if (
                module.training and len(arguments[0]) > most
            ):  # after the forward pass, which has drawn numbers
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

        inner.register_forward_hook(guard)
        return inner

    return make


def test_out_of_memory_takes_smaller_parts(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = replace(OPTIONS, epochs=1)
    train(data, replace(options, out=str(tmp_path / "scarce")), make_objective=scarce(5))
    said = capsys.readouterr().err
    assert "out of memory: computing 8 images at a time; the batch stays 16" in said
    assert "computing 4 images at a time" in said and said.count("out of memory") == 2
    told = run(data, tmp_path / "told", epochs=1, micro_batch=4)
    for key, value in weights(told.folder).items():
        assert torch.equal(weights(tmp_path / "scarce")[key], value), key


def test_no_memory_for_one_image_is_said(data: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="out of memory with a single image: .*--checkpointing"):
        train(data, replace(OPTIONS, out=str(tmp_path)), make_objective=scarce(0))


def test_a_batch_is_cut_into_parts() -> None:
    batch = Batch(
        torch.arange(7.0)[:, None], torch.arange(7), torch.arange(7), torch.ones(7, 2, dtype=torch.bool)
    )
    parts = split(batch, 3)
    assert [len(part) for part in parts] == [3, 3, 1]
    assert torch.equal(torch.cat([part.images for part in parts]), batch.images)
    assert all(part.mask is not None and len(part.mask) == len(part) for part in parts)


def test_a_time_budget_is_kept(data: str, tmp_path: Path) -> None:
    started = time.monotonic()
    result = run(data, tmp_path / "run", epochs=None, time_budget="6s")
    spent = time.monotonic() - started
    assert 3.0 < result.figures["seconds"] < 7.0 and spent < 8.0  # it made use of the time, and kept to it
    assert result.figures["steps"] > 10
    records = [r for r in journal.read(result.folder / "metrics.jsonl") if r["split"] == "train"]
    assert records[-1]["lr"] < 0.05 * max(r["lr"] for r in records)  # and the schedule came to its end


# -- several ranks -------------------------------------------------------------------------------------------


def _train_here(data: str, folder: Path, runs: dict[str, dict[str, Any]]) -> None:
    for name, changes in runs.items():
        run(data, folder / name, **changes)


@pytest.mark.slow
def test_ranks_train_as_one(data: str, tmp_path: Path) -> None:
    """Batches of 15 over 2 ranks: shares of unequal size; 30 and 31 images to judge: a tail for one rank."""
    changes: dict[str, Any] = {"batch_size": 15, "drop_path": 0.0, "epochs": 2, "save_every": 1, "keep": 99}
    changes["lr"] = 5e-4  # what AdamW makes of a gradient that is rounding alone grows with it
    sgd = {**changes, "optimizer": "sgd", "lr": 0.05}
    alone = {
        "adamw": run(data, tmp_path / "alone", **changes),
        "sgd": run(data, tmp_path / "alone-sgd", **sgd),
    }
    runs = {
        "adamw-ddp": changes,
        "adamw-fsdp": {**changes, "shard": True},
        "sgd-ddp-parts": {**sgd, "micro_batch": 3},
        "sgd-fsdp": {**sgd, "shard": True},
    }
    ranks.run(2, _train_here, data, tmp_path, runs)
    for name in runs:
        reference = alone[name.partition("-")[0]]
        figures = json.loads((tmp_path / name / "results.json").read_text())
        assert figures["ranks"] == 2 and figures["test"]["count"] == 31
        for part in ("val", "test"):
            assert figures[part] == pytest.approx(reference.figures[part], abs=1e-5), name
        traces = [
            [
                (r["step"], r["loss"], r["gradient_norm"])
                for r in journal.read(f / "metrics.jsonl")
                if "lr" in r
            ]
            for f in (tmp_path / name, reference.folder)
        ]
        assert len(traces[0]) > 1
        for ours, theirs in zip(*traces, strict=True):
            assert ours[:2] == pytest.approx(theirs[:2], abs=1e-5), name
            assert ours[2] == pytest.approx(theirs[2], rel=1e-4), name
        if name.startswith("sgd"):  # AdamW divides by the gradient's size, even where that is rounding alone
            for key, value in weights(reference.folder).items():
                torch.testing.assert_close(weights(tmp_path / name)[key], value, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_torchrun_goes_on_after_a_killed_rank(data: str, tmp_path: Path) -> None:
    """With the settings of docs/distributed.md: one rank is killed, both start again, nothing is lost."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "-m", "vitreous", "train", data]
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    started = subprocess.Popen(
        [*command, *FLAGS, "--save-every", "2", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 90
        while not (out / "resume" / "step-00000004").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        ranks_alive = [int(pid) for pid in _children(started.pid)]
        assert len(ranks_alive) == 2
        os.kill(ranks_alive[1], signal.SIGKILL)
        said, _ = started.communicate(timeout=150)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, said
    assert "going on from step" in said and "this is a bug" not in said
    ranks.run(2, _train_here, data, tmp_path, {"whole": {}})
    for key, value in weights(tmp_path / "whole").items():
        assert torch.equal(weights(out)[key], value), key


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _poisoned_here(data: str, folder: Path) -> None:
    options = replace(OPTIONS, out=str(folder), epochs=1, save_every=1)
    with pytest.raises(TrainingError, match="not finite"):
        train(data, options, make_objective=poison(40))


@pytest.mark.slow
def test_one_ranks_nan_is_everyones(data: str, tmp_path: Path) -> None:
    """One rank alone has the bad image: no rank updates, and only its files are named."""
    ranks.run(2, _poisoned_here, data, tmp_path)
    report = json.loads(next(tmp_path.glob("nonfinite-*.json")).read_text())
    assert len(report["files"]) == 8 and "train_images#40" in report["files"]
    kept = tmp_path / "resume" / f"step-{report['step']:08}"
    shards = [load_file(file) for file in kept.glob("*.safetensors")]
    tensors = {name: value for shard in shards for name, value in shard.items()}
    assert all(torch.isfinite(value).all() for value in tensors.values())


def _scarce_here(data: str, folder: Path) -> None:
    train(data, replace(OPTIONS, out=str(folder), epochs=1), make_objective=scarce(3))


@pytest.mark.slow
def test_ranks_agree_on_smaller_parts(data: str, tmp_path: Path) -> None:
    ranks.run(2, _scarce_here, data, tmp_path / "run")
    assert (tmp_path / "run" / "results.json").exists()


# -- the run folder ------------------------------------------------------------------------------------------


def test_changed_options_are_refused(data: str, undisturbed: Result, tmp_path: Path) -> None:
    with pytest.raises(
        ResumeError, match="batch_size was 16 and is now 8; lr was 0.002 and is now 0.1: repeat"
    ):
        run(data, undisturbed.folder, batch_size=8, lr=0.1)
    with np.load(data) as arrays:
        changed = {**arrays}
    changed["train_images"][0] += 1
    np.savez(tmp_path / "stripes.npz", **changed)
    with pytest.raises(ResumeError, match="data was .* and is now"):
        run(str(tmp_path / "stripes.npz"), undisturbed.folder)
    free = {"workers": 1, "keep": 2, "save_every": 7, "on_nan": "rollback", "micro_batch": 4}
    assert run(data, undisturbed.folder, **free).figures == undisturbed.figures


def test_a_second_process_is_refused(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready = FORKS.Event()
    child = FORKS.Process(target=_slow, args=(data, tmp_path / "run", ready, 60.0))
    child.start()
    assert ready.wait(60)
    assert cli.main(["train", data, "--out", str(tmp_path / "run")]) == 1
    assert f"error: {tmp_path / 'run'} is in use by process {child.pid}" in capsys.readouterr().err
    child.kill()
    child.join()


class _Os:
    """The module `os` as one other module sees it, with some functions replaced."""

    def __init__(self, **replaced: Any) -> None:
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def test_a_full_disk_ends_the_run_with_its_last_checkpoint(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Result
) -> None:
    real, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("torch.distributed.checkpoint.filesystem.os", _Os(fsync=full))
        with pytest.raises(
            DiskFullError, match=r"no space for the checkpoint of step 12 .* step-00000008 stays"
        ):
            run(data, tmp_path, save_every=4)
    kept = sorted(path.name for path in (tmp_path / "resume").glob("step-*"))
    assert kept == ["step-00000000", "step-00000004", "step-00000008"]
    run(data, tmp_path, save_every=4)  # room again
    assert_same_run(tmp_path, undisturbed)


def test_a_damaged_checkpoint_is_passed_over(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], undisturbed: Result
) -> None:
    child = FORKS.Process(target=_dying, args=(data, tmp_path / "run", "step", 20, {"save_every": 3}))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    newest = max(path for path in (tmp_path / "run" / "resume").glob("step-*") if not path.suffix)
    shard = next(newest.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    run(data, tmp_path / "run", save_every=3)
    assert f"checkpoint {newest} is damaged and passed over" in capsys.readouterr().err
    assert_same_run(tmp_path / "run", undisturbed)


def test_wrong_values_end_with_one_line(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "run")]
    for flags, text in (
        (["--epochs", "3", "--time-budget", "1m"], "--epochs and --time-budget both say when to end"),
        (["--time-budget", "soon"], "time 'soon' is not understood"),
        (["--image-size", "9", "--patch-size", "4"], "image size 9x9 is not a multiple"),
        (["--device", "gpu"], "unknown device 'gpu'"),
        (["--model", "vit_tinny"], "unknown model 'vit_tinny'; did you mean"),
        (["--layer-decay", "2"], "layer decay 2.0 is out of range"),
    ):
        assert cli.main(["train", data, *flags, *out]) == 1
        said = capsys.readouterr().err
        assert text in said.splitlines()[-1] and said.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in said
    assert cli.main(["train", str(tmp_path / "nothing"), *out]) == 1
    assert "no data at" in capsys.readouterr().err
    assert cli.main(["train", data, "--epoch", "3"]) == 2


def test_the_command_line_trains_and_reports(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--epochs", "2", "--batch-size", "16", "--patch-size", "4", "--device", "cpu"]
    assert cli.main(["train", data, *flags, "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    assert "test accuracy" in shown.out and "images/s" in shown.out and "MFU" in shown.out
    assert "lr: " in shown.err and "because" not in shown.err
    assert f"report: {tmp_path / 'run' / 'report.html'}" in shown.err
    assert "<html" in (tmp_path / "run" / "report.html").read_text()


def test_a_broken_picture_is_named_and_left_out(
    pictures: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "pictures"
    shutil.copytree(pictures, broken)
    first = next(iter(sorted((broken / "train" / "rows").iterdir())))
    first.write_bytes(first.read_bytes()[:40])
    result = run(str(broken), tmp_path / "run", epochs=2, workers=0)
    said = capsys.readouterr().err
    assert said.count("warning: left out: ") == 1 and first.name in said
    assert result.figures["test"]["count"] == 31


def test_gradients_do_not_depend_on_parts() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    plan = Plan.__new__(Plan)
    object.__setattr__(plan, "precision", "float32")
    batch = Batch(torch.randn(7, 4), torch.randint(0, 3, (7,)), torch.arange(7))
    found = []
    for micro in (7, 3, 1):
        objective = _plain(model)
        world = parallel.World(device=torch.device("cpu"))
        figures = Accumulate(objective, objective, 7, plan, 0, world, micro, print)(batch, 0)
        found.append([figures["loss"].item(), optim.gradient_norm(model.parameters()).item()])
        model.zero_grad()
    assert found[1] == pytest.approx(found[0], abs=1e-6)
    assert found[2] == pytest.approx(found[0], abs=1e-6)


def _plain(model: nn.Module) -> Objective:
    from vitreous.objectives.supervised import Supervised

    return Supervised(model)
