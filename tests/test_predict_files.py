"""`vitreous predict`: files, folders and lists in; a row for each, in order, whatever happens in between."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitreous
from tests.conftest import digits_files
from vitreous import cli
from vitreous.data import pictures
from vitreous.errors import CheckpointError, ModelError, OptionError, VitreousError
from vitreous.predict import Classifier, inputs, stream


@pytest.fixture
def sealed(digits: Classifier, tmp_path: Path) -> str:
    return str(digits.save(tmp_path / "digits.safetensors"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve digits in two folders, one file that is no image, and one that is not looked at."""
    files = digits_files(tmp_path / "images", count=12)
    (tmp_path / "images" / "sub").mkdir()
    for path in files[8:]:
        path.rename(path.parent / "sub" / path.name)
    (tmp_path / "images" / "0002-broken.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    (tmp_path / "images" / "notes.txt").write_text("not an image")
    return tmp_path / "images"


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    capsys.readouterr()
    status = cli.main(["predict", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_folder_is_searched_and_a_bad_file_is_one_entry(
    digits: Classifier, sealed: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, rows = run_json(capsys, sealed, str(folder), "--batch-size", "3")
    files = [Path(row["file"]) for row in rows]
    assert status == 0 and len(rows) == 13
    assert files == [*sorted(folder.glob("*.png")), *sorted((folder / "sub").glob("*.png"))]
    bad = next(row for row in rows if "broken" in row["file"])
    assert (
        set(bad) == {"file", "error"} and "readable image" in bad["error"] and bad["file"] not in bad["error"]
    )
    good = [row for row in rows if "error" not in row]
    own = digits.predict([row["file"] for row in good])
    assert [row["label"] for row in good] == [each.label for each in own]
    assert [row["probability"] for row in good] == pytest.approx([each.probability for each in own], abs=1e-6)


def test_patterns_files_and_what_is_not_there(
    sealed: str, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, rows = run_json(
        capsys, sealed, str(folder / "**" / "000[01]*.png"), str(folder / "nothing*"), "none.jpg"
    )
    assert status == 0 and len(rows) == 4
    assert [row["error"] for row in rows[2:]] == ["no file matches this pattern", "No such file or directory"]
    (tmp_path / "empty").mkdir()
    status, rows = run_json(capsys, sealed, str(tmp_path / "empty"))
    assert status == 1 and rows[0]["error"].startswith("no image in this folder")


def test_a_pattern_is_sorted_whatever_the_disk_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = sorted(str(path) for path in folder.glob("*.png"))
    monkeypatch.setattr(inputs, "iglob", lambda pattern, recursive: iter(found[::-1]))
    assert [item.file for item in inputs.find([str(folder / "*.png")])] == found


def test_as_many_labels_are_shown_as_were_asked_for(
    digits: Classifier, sealed: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = map(str, folder.glob("0000*"))
    assert cli.main(["predict", sealed, file, "--top", "10"]) == 0
    _, row = capsys.readouterr().out.splitlines()
    label, *others = [name for name, _ in digits.predict(file, top=10)[0].top]
    assert len(others) == 9 and row.split()[1] == label
    assert [each.split()[0] for each in row.split(maxsplit=3)[3].split(", ")] == others


def test_without_images_it_says_what_is_missing(sealed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", sealed]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: no images: name files, folders or patterns") and said.out == ""


def test_what_is_passed_over_in_a_folder_is_said(
    sealed: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "._0001.png").write_bytes(b"x")
    status, rows = run_json(capsys, sealed, str(folder))
    assert status == 0 and len(rows) == 13
    assert cli.main(["predict", sealed, str(folder)]) == 0
    said = capsys.readouterr().err
    assert f"side files of macOS (._x): 1 ({folder}/._0001.png); files ending in .txt: 1" in said


@pytest.mark.parametrize("separator", ["\n", "\0", "\r\n"])
def test_standard_input_is_a_list_or_an_image(folder: Path, separator: str) -> None:
    names = [str(path) for path in sorted(folder.glob("000[013]*.png"))]
    listed = io.BytesIO(separator.join(names).encode())
    assert [item.file for item in inputs.find(["-"], listed)] == names
    image = Path(names[0]).read_bytes()
    assert list(inputs.find(["-"], io.BytesIO(image))) == [inputs.Item("-", data=image)]
    empty = list(inputs.find(["-"], io.BytesIO(b"")))
    assert len(empty) == 1 and "is empty" in str(empty[0].error)


def test_a_list_may_begin_as_a_picture_does() -> None:
    for first in ("BMW/1.jpg", "GIF8.png", "RIFFLE.jpg", "BM"):
        listed = io.BytesIO(f"{first}\nb.jpg\n".encode())
        assert [item.file for item in inputs.find(["-"], listed)] == [first, "b.jpg"]
    for kind in ("BMP", "GIF", "WEBP", "TIFF"):
        made = io.BytesIO()
        Image.new("RGB", (9, 9)).save(made, kind)
        assert [item.data for item in inputs.find(["-"], io.BytesIO(made.getvalue()))] == [made.getvalue()]


def test_a_list_by_a_windows_editor_names_its_first_file(tmp_path: Path) -> None:
    listed = "\ufeffa.jpg\r\nb.jpg\r\n".encode()
    assert [item.file for item in inputs.find(["-"], io.BytesIO(listed))] == ["a.jpg", "b.jpg"]
    own = tmp_path / "\ufeffa.jpg"
    own.touch()
    relative = io.BytesIO(f"{own}\n".encode())
    assert [item.file for item in inputs.find(["-"], relative)] == [str(own)]


def test_names_of_any_bytes_are_written(sealed: str, folder: Path, tmp_path: Path) -> None:
    name = os.fsencode(folder) + b"/caf\xe9.png"
    shutil.copy(next(folder.glob("0001*")), os.fsdecode(name))
    given = ["predict", sealed, os.fsdecode(name)]
    for form in ([], ["--json"], ["--csv"]):
        done = subprocess.run(
            [sys.executable, "-m", "vitreous", *given, *form],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        )
        assert done.returncode == 0, done.stderr
        if form == ["--json"]:
            assert os.fsencode(json.loads(done.stdout)[0]["file"]) == name
        if form == ["--csv"]:
            assert name in done.stdout


def test_weights_have_a_name_that_libraries_can_open(
    sealed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stray = str(tmp_path / os.fsdecode(b"caf\xe9"))
    shutil.copy(sealed, f"{stray}.safetensors")
    for words in (
        ["inspect", f"{stray}.safetensors"],
        ["export", sealed, f"{stray}.onnx"],
        ["convert", sealed, f"{stray}.pth", "--to", "timm"],
    ):
        capsys.readouterr()
        assert cli.main(words) == 1
        assert "the name of weights has to be UTF-8: choose another" in capsys.readouterr().err
    with pytest.raises(VitreousError, match="has to be UTF-8"):
        vitreous.load(sealed).save(stray)


def test_exit_status_says_how_it_went(sealed: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", sealed, str(folder)]) == 0
    assert "1 of 13 files could not be read" in capsys.readouterr().err
    assert cli.main(["predict", sealed, str(folder), "--strict"]) == 1
    said = capsys.readouterr()
    assert said.err.splitlines()[-1].startswith("error: 1 of 13 files") and "broken" in said.out
    assert cli.main(["predict", sealed, str(folder / "0002-broken.png")]) == 1
    assert cli.main(["predict", sealed, str(folder), "--json", "--csv"]) == 1
    assert "exclude each other" in capsys.readouterr().err
    assert cli.main(["predict", sealed, str(folder), "--device", "abacus"]) == 1
    assert "unknown device 'abacus'" in capsys.readouterr().err


def test_out_goes_on_where_a_kill_stopped_it(sealed: str, folder: Path, tmp_path: Path) -> None:
    """Cut the output at every byte of its last rows: the second run must end with the same file."""
    out = tmp_path / "out.csv"
    odd = folder / 'a "name", with\nall of it.png'
    for each in (
        odd,
        folder / "a\rreturn.png",
        folder / "\ufeffmark.png",
        folder / os.fsdecode(b"caf\xe9.png"),
    ):
        shutil.copy(next(folder.glob("0000*")), each)
    arguments = ["predict", sealed, str(folder), "--out", str(out)]
    assert cli.main(arguments) == 0
    whole = out.read_bytes()
    rows = list(csv.DictReader(io.StringIO(whole.decode(errors="surrogateescape"), newline="")))
    assert len(rows) == 17 and {row["file"] for row in rows} >= {str(odd), str(folder / "a\rreturn.png")}
    for cut in [0, 5, *range(len(whole) - 420, len(whole), 23)]:
        out.write_bytes(whole[:cut])
        if 0 < cut < 20:
            assert cli.main(arguments) == 1 and out.read_bytes() == whole[:cut]  # not known to be ours
            continue
        assert cli.main(arguments) == 0
        assert out.read_bytes() == whole


def test_out_keeps_what_follows_a_row_that_somebody_changed(
    sealed: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["predict", sealed, str(folder), "--out", str(tmp_path / "out.csv")]
    assert cli.main(arguments) == 0
    header, first, *rest = (tmp_path / "out.csv").read_text().splitlines(keepends=True)
    (tmp_path / "out.csv").write_text("".join([header, "\n", *rest]))
    capsys.readouterr()
    assert cli.main(arguments) == 0
    assert "(12 from an earlier run)" in capsys.readouterr().err
    assert (tmp_path / "out.csv").read_text() == "".join([header, "\n", *rest, first])
    for line in ("a remark\n", "a\rremark\n"):
        (tmp_path / "out.csv").write_text(changed := "".join([header, line, *rest]), newline="")
        assert cli.main(arguments) == 1
        assert "can't be continued" in capsys.readouterr().err
        assert (tmp_path / "out.csv").read_bytes().decode() == changed


def test_a_row_may_be_as_long_as_all_classes_are(digits: Classifier, folder: Path, tmp_path: Path) -> None:
    labels = [f"{number} {'long ' * 3000}" for number in range(10)]
    long = replace(digits, labels=labels).save(tmp_path / "long.safetensors")
    arguments = ["predict", str(long), str(folder), "--top", "10", "--out", str(tmp_path / "out.csv")]
    assert cli.main(arguments) == 0
    whole = (tmp_path / "out.csv").read_bytes()
    assert cli.main(arguments) == 0 and (tmp_path / "out.csv").read_bytes() == whole


def test_each_picture_on_standard_input_is_new(
    sealed: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in sorted(folder.glob("000[01]*")):
        with path.open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert cli.main(["predict", sealed, "-", "--out", str(tmp_path / "out.csv")]) == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 3


def test_out_refuses_other_files_and_other_models(
    digits: Classifier, sealed: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diary = tmp_path / "diary.csv"
    diary.write_text("dear,diary\n")
    assert cli.main(["predict", sealed, str(folder), "--out", str(diary)]) == 1
    assert diary.read_text() == "dear,diary\n"
    assert cli.main(["predict", sealed, str(folder), "--out", str(tmp_path / "out.csv")]) == 0
    other = Classifier(digits.model, digits.preprocess, digits.labels, {"abstain": 0.99})
    changed = str(other.save(tmp_path / "other.safetensors"))
    assert cli.main(["predict", changed, str(folder), "--out", str(tmp_path / "out.csv")]) == 1
    assert "made by another model" in capsys.readouterr().err
    assert cli.main(["predict", sealed, str(folder), "--out", str(tmp_path / "out.txt")]) == 1


def test_only_new_files_are_predicted_again(
    sealed: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["predict", sealed, str(folder), "--out", str(tmp_path / "out.csv")]
    assert cli.main(arguments) == 0
    before = (tmp_path / "out.csv").read_text()
    shutil.copy(next(folder.glob("0001*")), folder / "new.png")
    capsys.readouterr()
    assert cli.main(arguments) == 0
    assert "14 files" in capsys.readouterr().err
    after = (tmp_path / "out.csv").read_text()
    assert after.startswith(before) and after.count("\n") == before.count("\n") + 1
    assert cli.main([*arguments, "--strict"]) == 1  # the broken file of the first run still counts


def test_memory_does_not_grow_with_the_number_of_files(digits: Classifier) -> None:
    """Eight thousand files: of none of them may anything be kept."""
    image = io.BytesIO()
    Image.new("L", (8, 8)).save(image, "PNG")
    data, count = image.getvalue(), 8_000
    made = (inputs.Item(f"a/rather/long/name/of/a/file/{row:09d}.png", data=data) for row in range(count))
    index = early = 0
    tracemalloc.start()
    for index, _ in enumerate(stream.predict_all(digits, made, batch=64, workers=2)):
        if index == 1_000:
            tracemalloc.reset_peak()
            early = tracemalloc.get_traced_memory()[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert index == count - 1 and peak - early < 500_000


def test_a_batch_that_does_not_fit_is_halved(
    digits: Classifier, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    original = Classifier.probabilities

    def small_device(self: Classifier, images: torch.Tensor, mask: None) -> torch.Tensor:
        sizes.append(len(images))
        if len(images) > 3:
            raise torch.OutOfMemoryError("too much")
        return original(self, images, mask)

    files = sorted(folder.glob("*.png"))[:2] + sorted((folder / "sub").glob("*.png"))
    expected = digits.predict(files)
    monkeypatch.setattr(Classifier, "probabilities", small_device)
    found = list(stream.predict_all(digits, [inputs.Item(str(path)) for path in files], batch=6))
    assert [each.label for each in found] == [each.label for each in expected]  # type: ignore[union-attr]
    assert sizes == [6, 3, 3]


@pytest.mark.parametrize(("flag", "value"), [("--batch-size", 0), ("--batch-size", -4), ("--workers", -1)])
def test_numbers_that_can_not_be_done_are_refused(
    flag: str, value: int, sealed: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    assert cli.main(["predict", sealed, str(folder), flag, str(value), "--out", str(out)]) == 1
    assert f"{flag} {value} is out of range" in capsys.readouterr().err and not out.exists()
    with pytest.raises(OptionError, match=f"{flag} {value} is out of range"):
        vitreous.predict(sealed, folder, **{flag[2:].replace("-", "_"): value})
    index = str(tmp_path / "index.npz")
    vitreous.embed(sealed, folder, out=index)
    with pytest.raises(OptionError, match=f"{flag} {value} is out of range"):
        vitreous.search(index, folder, **{flag[2:].replace("-", "_"): value})


def test_numbers_that_a_model_can_not_have_are_refused(sealed: str) -> None:
    with pytest.raises(ModelError, match="in_channels 0 is too small"):
        vitreous.load(sealed, in_channels=0)
    with pytest.raises(ModelError, match=r"heads 7 is not what .* has: 4; leave it out"):
        vitreous.load(sealed, heads=7)
    assert vitreous.load(sealed, heads=4).model.config.heads == 4
    with pytest.raises(ModelError, match="image_size 0 is not a size: give one positive number"):
        vitreous.load(sealed, image_size=0)


def test_calibration_and_abstention_come_from_the_sealed_file(
    digits: Classifier, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = next(folder.glob("0001*"))
    about = {"calibration": {"temperature": 3.0}, "abstain": 0.999}
    cautious = Classifier(digits.model, digits.preprocess, digits.labels, about)
    sealed = str(cautious.save(tmp_path / "cautious.safetensors"))
    status, (row,) = run_json(capsys, sealed, str(file))
    logits = digits.model(digits.collate([digits.prepare(file)]).images).detach()
    assert status == 0 and row["label"] is None
    assert row["probability"] == pytest.approx(float((logits / 3).softmax(-1).max()), abs=1e-6)
    assert row["top"][0]["label"] == digits.predict(file)[0].label
    _, (row,) = run_json(capsys, sealed, str(file), "--abstain", "0")
    assert row["label"] == digits.predict(file)[0].label
    for about in ({"calibration": {"temperature": 0}}, {"abstain": 7}):
        wrong = Classifier(digits.model, digits.preprocess, digits.labels, about)
        with pytest.raises(CheckpointError, match="temperature 0 is not|threshold 7 is not"):
            wrong.predict(file)


def test_names_cannot_command_the_terminal(
    sealed: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = folder / "\x1b[31mred\x07.png"
    shutil.copy(next(folder.glob("0001*")), evil)
    assert cli.main(["predict", sealed, str(evil)]) == 0
    assert "\x1b" not in (said := capsys.readouterr().out) and "\\x1b[31mred\\x07.png" in said


def test_a_large_folder_is_not_held_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "SORTED_UP_TO", 3)
    found = [item.file for item in inputs.find([str(folder)])]
    assert len(found) == len(set(found)) == 13
