"""README and docs: every Python snippet runs and prints what its comments promise; every command runs."""

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forks import FORKS
from vitreous import cli

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


def run(folder: Path, work: Callable[..., None], *arguments: Any) -> list[str]:
    """Do the work in a process and a folder of its own; return the lines that it prints."""
    (folder / "tests").symlink_to(ROOT / "tests")
    process = FORKS.Process(target=_enter, args=(folder, work, *arguments))
    process.start()
    process.join()
    assert process.exitcode == 0, (folder / "stderr").read_text()
    return (folder / "stdout").read_text().splitlines()


def _enter(folder: Path, work: Callable[..., None], *arguments: Any) -> None:
    os.chdir(folder)
    with Path("stdout").open("w") as out, Path("stderr").open("w") as error:
        os.dup2(out.fileno(), 1)
        os.dup2(error.fileno(), 2)
    work(*arguments)


def _python(source: str) -> None:
    exec(compile(source, "snippet", "exec"), {"__name__": "__main__"})


def _command(words: list[str]) -> None:
    assert words[0] == "vitreous"
    sys.exit(cli.main(words[1:]))


@pytest.mark.parametrize(
    ("name", "source"), blocks("python"), ids=lambda value: value if len(value) < 40 else ""
)
def test_python_snippets_run_and_print_what_they_say(name: str, source: str, tmp_path: Path) -> None:
    printed = run(tmp_path, _python, source)
    promised = [match[1].strip() for match in re.finditer(r"print\(.*\)  # (.*)", source)]
    assert printed == promised


@pytest.mark.parametrize(
    ("name", "source"), blocks("console"), ids=lambda value: value if len(value) < 40 else ""
)
def test_console_snippets_print_what_they_show(name: str, source: str, tmp_path: Path) -> None:
    command, _, expected = source.partition("\n")
    printed = run(tmp_path, _command, shlex.split(command.removeprefix("$ ")))
    assert [line.split() for line in printed] == [line.split() for line in expected.splitlines()]
