"""The command line: help at once, results on stdout, one line of error on stderr, exit 0, 1 or 2."""

import json
import subprocess
import sys

import pytest

from vitreous import cli


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vitreous", *arguments], capture_output=True, text=True, check=False
    )


def test_models_as_plain_lines() -> None:
    result = run("models", "ViT-B/16")
    header, row = result.stdout.splitlines()
    assert header.split()[:3] == ["name", "alias", "layers"]
    assert row.split()[:2] == ["vit_base_patch16_224", "ViT-B/16"]
    assert "86,567,656" in row
    assert (result.returncode, result.stderr) == (0, "")


def test_models_as_json_and_nothing_else() -> None:
    rows = json.loads(run("models", "vit_large_patch16*", "--json").stdout)
    assert [row["name"] for row in rows] == ["vit_large_patch16_224", "vit_large_patch16_384"]
    assert rows[0]["parameters"] == 304_326_632
    assert rows[0]["gflops"] == pytest.approx(61.6, abs=0.2)


def test_an_error_is_one_line() -> None:
    result = run("models", "vit_bse_patch16")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: unknown model 'vit_bse_patch16'; did you mean vit_base_patch16")


def test_a_traceback_only_with_debug() -> None:
    assert "Traceback" in run("models", "nonsense", "--debug").stderr


def test_wrong_usage_exits_2() -> None:
    for arguments in (["no-such-verb"], ["models", "--no-such-flag"]):
        result = run(*arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert "Traceback" not in result.stderr


def test_version_and_bare_call() -> None:
    assert run("--version").stdout.startswith("vitreous 0.")
    assert "models" in run().stdout


@pytest.mark.parametrize("verb", [None, *cli.VERBS])
def test_help_needs_no_torch(verb: str | None) -> None:
    """Torch takes seconds to import: leaving it out is what makes help answer at once."""
    program = (
        "import sys; from vitreous.cli import main; status = main(sys.argv[1:]);"
        "heavy = {'torch', 'torchvision', 'numpy', 'matplotlib', 'PIL', 'sklearn'} & set(sys.modules);"
        "sys.exit(status or (f'imported {heavy}' if heavy else 0))"
    )
    arguments = [verb, "--help"] if verb else ["--help"]
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "usage: vitreous" in result.stdout


def test_a_bug_is_named_as_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        """Break."""
        raise ZeroDivisionError("oh")

    monkeypatch.setitem(cli.VERBS, "broken", broken)
    assert cli.main(["broken"]) == 1
    assert (
        "unexpected ZeroDivisionError: oh (this is a bug; run again with --debug" in capsys.readouterr().err
    )
