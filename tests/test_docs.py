"""README and docs: every Python snippet runs and prints what its comments promise; every command runs."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.forks import forget_vitreous, printed
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that has the tests' own files, as the root of the project has."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    return tmp_path


def _python(source: str) -> None:
    forget_vitreous()
    exec(compile(source, "snippet", "exec"), {"__name__": "__main__"})


def _command(words: list[str]) -> None:
    assert words[0] == "vitreous"
    sys.exit(cli.main(words[1:]))


@pytest.mark.parametrize(
    ("name", "source"), blocks("python"), ids=lambda value: value if len(value) < 40 else ""
)
def test_python_snippets_run_and_print_what_they_say(name: str, source: str, folder: Path) -> None:
    found = printed(folder, _python, source)
    promised = [match[1].strip() for match in re.finditer(r"print\(.*\)  # (.*)", source)]
    assert found == promised


@pytest.mark.parametrize(
    ("name", "source"), blocks("console"), ids=lambda value: value if len(value) < 40 else ""
)
def test_console_snippets_print_what_they_show(name: str, source: str, folder: Path) -> None:
    command, _, expected = source.partition("\n")
    found = printed(folder, _command, shlex.split(command.removeprefix("$ ")))
    assert [line.split() for line in found] == [line.split() for line in expected.splitlines()]
