"""A run from its start to its end: what it leaves behind, its arithmetic, the command line."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import vitreous
from tests.training.runs import OPTIONS, plan_of, records, run, watched
from vitreous import cli
from vitreous.data import Batch, Dataset, open_data
from vitreous.models import zoo
from vitreous.models.weights import Model
from vitreous.objectives import Build, Objective
from vitreous.training import Result, train
from vitreous.training.plan import Plan


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
    assert [r["step"] for r in records(folder, "val")] == [6, 12, 18, 24, 30, 36]
    losses = [r["loss"] for r in records(folder, "train")]
    assert losses[-1] < 0.8 * losses[0]
    assert all(r["images_per_second"] > 0 for r in records(folder, "train"))
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


def in_double(seen: list[Batch]) -> Build:
    """Return what builds the usual task with weights of double precision; it keeps what it learns from."""

    def make(model: Model, plan: Plan, dataset: Dataset) -> Objective:
        model.double().register_forward_pre_hook(lambda _, arguments: (arguments[0].double(), *arguments[1:]))
        return watched(seen)(model, plan, dataset)

    return make


def test_five_steps_by_hand(data: str, tmp_path: Path) -> None:
    """The loop's losses and weights are those of AdamW (arXiv 1711.05101) written out, step by step.

    Both in double precision: Adam divides a gradient by its size, and so makes the rounding of one that is
    almost zero as large as a step. Logits alone are rounded to float32, for the loss: about 1e-7 of their
    gradient, and 2e-7 was the largest difference in any weight. A step is 2e-3.
    """
    options = replace(
        OPTIONS, ema=0.0, drop_path=0.0, epochs=1, clip=0.5, weight_decay=0.3, label_smoothing=0.1
    )
    seen: list[Batch] = []
    saving = replace(options, out=str(tmp_path), save_every=5, keep=9)
    result = train(data, saving, make_objective=in_double(seen))

    torch.manual_seed(0)
    plan = plan_of(tmp_path)
    model = zoo.build(plan.architecture, plan.initialization).double()
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in model.named_parameters()}
    losses = []
    for t, batch in enumerate(seen, start=1):
        logits = model(batch.images.double())
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
                torch.testing.assert_close(
                    saved[f"weights.model.{name}"], p.detach(), rtol=0, atol=5e-7, msg=name
                )
    record = records(result.folder, "train")[0]
    assert record["loss"] == pytest.approx(np.mean(losses), abs=6e-7)  # the journal has six places
    assert losses[0] != pytest.approx(losses[4], abs=1e-3)


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
