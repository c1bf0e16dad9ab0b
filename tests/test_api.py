"""The verbs as functions: the figures of the command line, as results to compute with."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitreous
from tests.conftest import digits_files
from vitreous import cli
from vitreous.api import Predictions
from vitreous.errors import OptionError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> vitreous.Run:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    return vitreous.train(
        "digits", out=folder, epochs=1, patch_size=4, batch_size=128, device="cpu", compile="none"
    )


def test_a_run_has_its_figures_folder_and_report(run: vitreous.Run) -> None:
    written = json.loads((run.folder / "results.json").read_text())
    assert run.to_dict() == written
    assert run.test.accuracy == written["test"]["accuracy"] and run.val.loss == written["val"]["loss"]
    assert run.report == run.folder / "report.html" and "<html" in run.report.read_text()
    assert str(run.report) in run._repr_html_() and "test.accuracy" in run._repr_html_()
    assert json.loads((run.folder / "config.json").read_text())["options"]["patch_size"] == [4]


def test_a_run_gives_its_best_classifier(run: vitreous.Run) -> None:
    assert run.classifier.labels == [str(digit) for digit in range(10)]
    assert run.classifier is run.classifier
    found = vitreous.evaluate(run.folder, "digits")
    assert found.accuracy == pytest.approx(run.test.accuracy)


def test_finetune_trains_on(digits_file: Path, tmp_path: Path) -> None:
    options = {"epochs": 1, "tune": "head", "device": "cpu", "compile": "none", "train_limit": 200}
    run = vitreous.finetune(digits_file, "digits", out=tmp_path / "run", **options)
    assert isinstance(run, vitreous.Run) and run.folder == tmp_path / "run"
    assert run.report is not None and 0 < run.test.accuracy <= 1


def test_evaluate_gives_the_figures_of_the_command_line(
    digits_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = vitreous.evaluate(digits_file, "digits", out=tmp_path / "page", batch_size=100)
    assert cli.main(["evaluate", str(digits_file), "digits", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert found.to_dict() == document
    for name in ("accuracy", "top5", "loss", "ece", "per_class", "confusion", "count"):
        assert found[name] is not None and getattr(found, name) == found[name]
    assert json.loads((tmp_path / "page" / "evaluation.json").read_text()) == document
    command = f"vitreous evaluate {digits_file} digits --batch-size 100 --out {tmp_path / 'page'}"
    assert found.report is not None and command in found.report.read_text()


def test_probe_gives_a_result_for_each_method(digits_file: Path, tmp_path: Path) -> None:
    found = vitreous.probe(digits_file, "digits", method="knn", cache=tmp_path)
    assert list(found) == ["knn"] and found.knn.accuracy > 0.8 and found.knn.features.width == 32


def test_predict_takes_everything_that_is_an_image(digits_file: Path, tmp_path: Path) -> None:
    paths = digits_files(tmp_path / "digits", count=4)
    (tmp_path / "broken.png").write_bytes(b"no image")
    truth = [path.stem.split("-")[1] for path in paths]
    pixels = Image.open(paths[1])
    mixed = [
        paths[0],
        pixels,
        np.asarray(pixels),
        paths[1].read_bytes(),
        str(tmp_path / "broken.png"),
        paths[2],
    ]
    found = vitreous.predict(digits_file, mixed, top=2)
    assert len(found) == 6 and "error" in found[4].to_dict()
    assert [found[i].label for i in (0, 1, 2, 3, 5)] == [truth[0], truth[1], truth[1], truth[1], truth[2]]
    assert len(found[0].top) == 2
    clf = vitreous.load(digits_file)
    assert [each.label for each in vitreous.predict(clf, tmp_path / "digits")] == truth
    assert vitreous.predict(clf, paths[0], abstain=1.0)[0].label is None and clf.abstain == 0
    with pytest.raises(OptionError, match="top=0 is out of range: use 1 or more"):
        vitreous.predict(clf, paths[0], top=0)


def test_predictions_are_a_table_in_a_notebook(digits_file: Path, tmp_path: Path) -> None:
    digits_files(tmp_path, count=1)[0].rename(tmp_path / "<b>.png")
    found = vitreous.predict(digits_file, [tmp_path / "<b>.png", tmp_path / "missing.png"])
    assert isinstance(found, Predictions)
    html = found._repr_html_()
    assert "&lt;b&gt;.png" in html and "<b>" not in html and "%" in html
    assert found[1].to_dict()["error"] in html


def test_inspect_gives_the_numbers_and_their_folder(digits_file: Path, tmp_path: Path) -> None:
    image = digits_files(tmp_path, count=1)[0]
    found = vitreous.inspect(digits_file, image, out=tmp_path / "inside")
    assert found.to_dict() == json.loads((tmp_path / "inside" / "inspection.json").read_text())
    assert found.folder == tmp_path / "inside" and found.count == 1
    command = shlex.join(["vitreous", "inspect", str(digits_file), str(image), "--out", str(found.folder)])
    assert found.report is not None and command in found.report.read_text()


def test_export_and_convert_say_what_was_written(digits_file: Path, tmp_path: Path) -> None:
    exported = vitreous.export(digits_file, tmp_path / "a.pt2")
    assert exported.path == tmp_path / "a.pt2" and exported.path.is_file() and exported.label_agreement == 1
    converted = vitreous.convert(digits_file, tmp_path / "b.safetensors", "vitreous", image_size=16)
    assert vitreous.load(converted.path).model.config.image_size == (16, 16)
    assert converted.to_dict()["path"] == str(tmp_path / "b.safetensors")


def test_check_gives_the_document_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "digits", "--json"]) == 0
    assert vitreous.check("digits").to_dict() == json.loads(capsys.readouterr().out)


def test_results_that_could_not_be_written_are_not_computed(
    digits_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("vitreous.data.open_data", None)  # nothing is read
    for verb in (vitreous.evaluate, vitreous.inspect):
        with pytest.raises(NotADirectoryError):
            verb(digits_file, "digits", out=tmp_path / "file" / "x")
    assert (tmp_path / "file").read_bytes() == b""


def test_the_report_of_a_run_is_not_replaced(digits_file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").touch()
    with pytest.raises(OptionError, match="run is the folder of a run, whose report would be lost"):
        vitreous.evaluate(digits_file, "digits", out=str(run))
    with pytest.raises(OptionError, match="is the folder of a run"):
        vitreous.inspect(digits_file, out=str(run))
    assert [each.name for each in run.iterdir()] == ["metrics.jsonl"]
