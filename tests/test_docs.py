"""README and docs: every Python snippet runs and prints what its comments promise; every command runs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, match in enumerate(
            re.finditer(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)
        ):
            found.append((f"{page.name} {number + 1}", match[1]))
    return found


def run(command: list[str], folder: Path) -> str:
    (folder / "tests").symlink_to(ROOT / "tests")
    this_tree = {**os.environ, "PYTHONPATH": str(ROOT)}  # not another one that happens to be installed
    result = subprocess.run(command, cwd=folder, env=this_tree, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("name", "source"), blocks("python"), ids=lambda value: value if len(value) < 40 else ""
)
def test_python_snippets_run_and_print_what_they_say(name: str, source: str, tmp_path: Path) -> None:
    printed = run([sys.executable, "-c", source], tmp_path).splitlines()
    promised = [match[1].strip() for match in re.finditer(r"print\(.*\)  # (.*)", source)]
    assert printed == promised


@pytest.mark.parametrize(
    ("name", "source"), blocks("console"), ids=lambda value: value if len(value) < 40 else ""
)
def test_console_snippets_print_what_they_show(name: str, source: str, tmp_path: Path) -> None:
    command, _, expected = source.partition("\n")
    words = shlex.split(command.removeprefix("$ "))
    assert words[0] == "vitreous"
    printed = run([sys.executable, "-m", "vitreous", *words[1:]], tmp_path)
    assert [line.split() for line in printed.splitlines()] == [line.split() for line in expected.splitlines()]
