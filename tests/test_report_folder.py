"""The folder of `--out`: nothing of the user's is lost in it, and it never mixes what two commands wrote."""

import json
import shutil
from pathlib import Path

import pytest

import vitreous
from tests.conftest import digits_files
from vitreous import cli
from vitreous.errors import OptionError
from vitreous.report import folder as module
from vitreous.report.folder import KINDS, MARKER, Folder
from vitreous.report.numbers import HEADS_OF

COMMANDS = {
    "evaluate": ["evaluate", "no-model", "digits"],
    "search": ["search", "no-index.npz", "no-picture.jpg"],
    "clean": ["clean", "no-model", "digits"],
    "inspect": ["inspect", "no-model"],
    "bench": ["bench"],
}
OWN = "the user's own"


def content(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def write(folder: Folder, **texts: str) -> None:
    """Write files of these names and texts: `report_html="…"`."""
    with folder.draft() as draft:
        for name, text in texts.items():
            (draft / name.replace("_", ".")).write_text(text)


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.parametrize("other", [False, True])
def test_a_file_of_the_users_own_is_refused_before_the_work(
    verb: str, other: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under each name that the verb writes; files of other names are in nobody's way."""
    (tmp_path / "notes.txt").write_text(OWN)
    for name in sorted(KINDS[verb].names):
        (tmp_path / name).write_text(json.dumps(OWN) if other else OWN)
        before = content(tmp_path)
        assert cli.main([*COMMANDS[verb], "--out", str(tmp_path)]) == 1
        out, err = capsys.readouterr()
        assert err == (
            f"error: --out {tmp_path} has another {name}, which would be lost: move it away, or choose "
            "another folder\n"
        )
        assert not out and content(tmp_path) == before
        (tmp_path / name).unlink()
    Folder(tmp_path, verb)


def test_the_folder_that_inspect_takes_by_itself_is_no_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("inspection").mkdir()
    Path("inspection/filters.png").write_text(OWN)
    assert cli.main(["inspect", "no-model"]) == 1
    assert "--out inspection has another filters.png, which would be lost" in capsys.readouterr().err
    assert Path("inspection/filters.png").read_text() == OWN


def test_the_same_command_can_be_repeated(digits_file: Path, tmp_path: Path) -> None:
    options = {"batch_size": 500, "device": "cpu"}
    first = vitreous.evaluate(digits_file, "digits", out=tmp_path, **options)
    (tmp_path / "notes.txt").write_text(OWN)  # beside ours, where it is in nobody's way
    again = vitreous.evaluate(digits_file, "digits", out=tmp_path, split="val", **options)
    assert (first.split, again.split) == ("test", "val")
    assert json.loads((tmp_path / "evaluation.json").read_text())["split"] == "val"
    assert set(content(tmp_path)) == {"evaluation.json", "report.html", "notes.txt", MARKER}


def test_verbs_may_share_a_folder(
    digits_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have one name in common: the page is that of the last, which says whose it replaces."""
    vitreous.evaluate(digits_file, "digits", out=tmp_path, batch_size=500, device="cpu")
    capsys.readouterr()
    vitreous.inspect(digits_file, out=tmp_path)
    assert f"{tmp_path / 'report.html'}: replaces that of `vitreous evaluate`" in capsys.readouterr().err
    assert {"evaluation.json", "inspection.json", "filters.png", "report.html"} <= set(content(tmp_path))
    vitreous.evaluate(digits_file, "digits", out=tmp_path, batch_size=500, device="cpu")
    assert {"evaluation.json", "inspection.json", "filters.png", "report.html"} <= set(content(tmp_path))


@pytest.mark.parametrize("verb", ["evaluate", "clean"])
def test_the_data_is_no_place_for_results(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for label in ("a", "b"):
        digits_files(tmp_path / "photos" / label, count=2)
    (tmp_path / "link").symlink_to(tmp_path / "photos", target_is_directory=True)
    before = sorted(tmp_path.rglob("*"))
    for data, root, out in (
        (str(tmp_path / "photos"), [], tmp_path / "photos"),
        (str(tmp_path / "photos"), [], tmp_path / "photos" / "new"),
        (str(tmp_path / "photos"), [], tmp_path / "link" / "new"),
        ("photos", ["--data-root", str(tmp_path)], tmp_path / "photos" / "new"),
    ):
        assert cli.main([verb, "no-model", data, "--out", str(out), *root]) == 1
        assert f"error: --out {out} lies in the data" in capsys.readouterr().err
    assert cli.main(["inspect", "no-model", str(tmp_path / "photos"), "--out", str(out)]) == 1
    assert "lies in the data" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_what_was_changed_since_is_kept(tmp_path: Path) -> None:
    """Somebody who goes through a list of findings writes into it."""
    write(Folder(tmp_path, "clean"), clean_json="{}", suspicious_csv="a list", report_html="a page")
    (tmp_path / "suspicious.csv").write_text("a list, half of it done")
    with pytest.raises(OptionError, match=r"has another suspicious\.csv, which would be lost: move it away"):
        Folder(tmp_path, "clean")
    assert (tmp_path / "suspicious.csv").read_text() == "a list, half of it done"
    (tmp_path / "suspicious.csv").rename(tmp_path / "mine.csv")
    write(Folder(tmp_path, "clean"), clean_json="{}", suspicious_csv="a new list", report_html="a page")
    assert (tmp_path / "suspicious.csv").read_text() == "a new list"


def test_the_names_of_all_pictures_of_heads_are_known() -> None:
    assert f"heads-{HEADS_OF}.png" in KINDS["inspect"].names


def test_a_file_that_came_later_under_one_of_our_names_is_kept(tmp_path: Path) -> None:
    write(Folder(tmp_path, "inspect"), inspection_json="{}", filters_png="ours", report_html="a page")
    (tmp_path / "rollout.png").write_text(OWN)
    with pytest.raises(OptionError, match=r"has another rollout\.png"):
        Folder(tmp_path, "inspect")
    (tmp_path / "rollout.png").unlink()
    (tmp_path / "filters.png").unlink()
    (tmp_path / "filters.png").symlink_to(tmp_path / "report.html")
    with pytest.raises(OptionError, match=r"has another filters\.png"):
        Folder(tmp_path, "inspect")


def test_a_folder_never_mixes_two_models(digits_file: Path, tmp_path: Path) -> None:
    image, out = digits_files(tmp_path, count=1)[0], tmp_path / "out"
    vitreous.inspect(digits_file, image, out=out)
    assert {"rollout.png", "heads-1.png", "tokens.png"} <= set(content(out))
    (out / "holiday.png").write_text(OWN)
    found = vitreous.inspect("tests/fixtures/sealed_v1.safetensors", out=out)
    figures = {each["file"] for each in found["figures"]}
    assert "rollout.png" not in figures
    assert set(content(out)) == {*figures, "inspection.json", "report.html", MARKER, "holiday.png"}


def test_a_command_that_is_stopped_while_it_writes_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Folder(tmp_path, "clean"), clean_json="1", suspicious_csv="1", report_html="1")
    real = module.files.write_bytes

    def stopped(path: Path, data: bytes) -> None:
        if path.name == "report.html":
            raise KeyboardInterrupt
        real(path, data)

    monkeypatch.setattr(module.files, "write_bytes", stopped)
    with pytest.raises(KeyboardInterrupt):
        write(Folder(tmp_path, "clean"), clean_json="2", report_html="2")
    assert {name: text for name, text in content(tmp_path).items() if name != MARKER} == {
        "clean.json": b"2",
        "suspicious.csv": b"1",
        "report.html": b"1",
    }
    monkeypatch.undo()
    write(Folder(tmp_path, "clean"), clean_json="3", report_html="3")
    assert set(content(tmp_path)) == {"clean.json", "report.html", MARKER}


def test_a_failure_leaves_the_earlier_report(tmp_path: Path) -> None:
    write(Folder(tmp_path, "evaluate"), evaluation_json="{}", report_html="a page")
    before = content(tmp_path)
    with pytest.raises(RuntimeError), Folder(tmp_path, "evaluate").draft() as draft:
        (draft / "report.html").write_text("half of it")
        raise RuntimeError
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    "marker",
    [
        "no JSON",
        "[]",
        '{"verb": "clean"}',
        '{"files": {"clean.json": {"by": "other", "sha256": [""]}}}',
        '{"files": {"../own.txt": {"by": "clean", "sha256": [""]}}}',
        '{"files": {"a": "b"}}',
    ],
)
def test_another_programs_marker_means_nothing(tmp_path: Path, marker: str) -> None:
    (tmp_path / MARKER).write_text(marker)
    with pytest.raises(OptionError, match=r"has another \.vitreous\.json"):
        Folder(tmp_path, "clean")


def test_a_folder_of_an_earlier_version_is_taken_where_it_is_certain(
    digits_file: Path, tmp_path: Path
) -> None:
    out, images = tmp_path / "out", digits_files(tmp_path / "images", count=2)
    vitreous.inspect(digits_file, images[0], out=out)
    (out / MARKER).unlink()
    before = content(out)
    for name, text in (("report.html", "<html>"), ("inspection.json", "{}"), ("compare.png", OWN)):
        (out / name).write_text(text)  # what is in doubt is not taken
        with pytest.raises(OptionError, match="which would be lost"):
            Folder(out, "inspect")
        (out / name).unlink()
        if name in before:
            (out / name).write_bytes(before[name])
    assert content(out) == before
    vitreous.inspect(digits_file, out=out)
    assert "rollout.png" not in content(out) and MARKER in content(out)


def test_every_verbs_folder_is_known_without_its_marker(
    digits_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys that a document is recognised by are those that the verbs write."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    images = digits_files(tmp_path / "images" / "a", count=6)
    vitreous.embed(digits_file, tmp_path / "images", out=tmp_path / "x.npz")
    options = {"job": "predict", "image_size": 32, "batch_size": 1, "rounds": 1, "device": "cpu"}
    vitreous.search(tmp_path / "x.npz", images[0], out=tmp_path / "search")
    vitreous.clean(digits_file, tmp_path / "images", out=tmp_path / "clean")
    vitreous.evaluate(digits_file, "digits", out=tmp_path / "evaluate", device="cpu")
    vitreous.inspect(digits_file, out=tmp_path / "inspect")
    vitreous.bench(out=tmp_path / "bench", **options)
    for verb in KINDS:
        own = tmp_path / verb
        shutil.copytree(own, tmp_path / "copies" / verb, ignore=shutil.ignore_patterns(MARKER))
        found = Folder(tmp_path / "copies" / verb, verb).held
        assert found and set(found) == set(content(own)) - {MARKER}
        assert found == Folder(own, verb).held
