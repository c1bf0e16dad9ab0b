"""The command line: help at once, results on stdout, one line of error on stderr, exit 0, 1 or 2."""

import errno
import json
import re
import shlex
import subprocess
import sys
import time
from dataclasses import fields, make_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import pytest
import tyro

from tests.conftest import digits_files
from vitreous import api, cli
from vitreous.cli import flags, learning, values
from vitreous.config import (
    BenchConfig,
    CleanConfig,
    EmbedConfig,
    EvaluateConfig,
    FinetuneConfig,
    PredictConfig,
    ProbeConfig,
    SearchConfig,
    TrainConfig,
)
from vitreous.options import descriptions, flag_name, from_keywords, unused


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


def test_a_mistyped_verb_or_flag_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    assert capsys.readouterr().err == (
        "error: unknown verb 'trian'; did you mean train? (vitreous --help explains them)\n"
    )
    assert cli.main(["zzzzzz"]) == 2
    assert "the verbs are models, check, train" in capsys.readouterr().err
    assert cli.main(["train", "--epoch", "3"]) == 2
    assert "--epochs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("predict", "CKPT is missing: vitreous predict CKPT PATH… [OPTIONS] (see vitreous predict --help)"),
        (
            "finetune tiny",
            "DATA is missing: vitreous finetune CKPT DATA [OPTIONS] (see vitreous finetune --help)",
        ),
        ("evaluate --json", "CKPT and DATA are missing: vitreous evaluate CKPT DATA [OPTIONS] (see "),
        ("convert", "SRC, DST and --to are missing: vitreous convert SRC DST --to … [OPTIONS] (see "),
        (
            "convert a b",
            "--to is missing: vitreous convert SRC DST --to … [OPTIONS] (see vitreous convert --help)",
        ),
        (
            "train --epoch 3",
            "train has no option --epoch; did you mean --epochs? (see vitreous train --help)",
        ),
        ("finetune tiny --epoch 3", "finetune has no option --epoch; did you mean --epochs? (see "),
        ("models --jso", "models has no option --jso; did you mean --json? (see vitreous models --help)"),
        ("train --json", "train has no option --json (see vitreous train --help)"),
        ("train -e 3", "train has no option -e"),
        (
            "train a b c",
            "'b' and 'c' can't be placed: vitreous train [DATA] [OPTIONS] (see vitreous train --help)",
        ),
        ("evaluate a b -- --c", "'--c' can't be placed: vitreous evaluate CKPT DATA [OPTIONS] (see "),
        (
            "train --batch-size",
            "--batch-size has no value: expected a whole number or auto (see vitreous train",
        ),
        ("train --lr --epochs 3", "--lr has no value: expected a number or auto (see vitreous train --help)"),
        (
            "train --image-size 24 photos",
            "--image-size takes the words that follow: put 'photos' in front of",
        ),
        ("train --batch_size ten", "--batch-size ten is not allowed: expected a whole number or auto"),
        ("serve tiny --port http", "--port http is not allowed: expected a whole number"),
        ("convert a b --to hff", "--to hff is not allowed: expected vitreous or timm or hf or"),
    ],
)
def test_a_command_that_can_not_be_is_one_line(
    command: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command.split()) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {line}") and said.err.count("\n") == 1 and said.out == ""


def test_what_only_the_parser_can_tell_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def count(number: Annotated[int, tyro.conf.Positional]) -> None:
        """Count."""

    monkeypatch.setitem(cli.VERBS, "count", count)
    assert cli.main(["count", "ten"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "'ten'" in said and "vitreous count --help" in said
    assert not set("╭│─╰") & set(said)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_names_what_it_misses(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    shown = re.sub(r"\[[^\]]*\]+", "", capsys.readouterr().out.splitlines()[0])
    if needed := [word for word in shown.split()[3:] if word.isupper() and word.isalpha()]:
        assert cli.main([verb]) == 2
        missing, _, command = capsys.readouterr().err.partition(" missing: ")
        assert all(word in missing and word in command for word in needed)


def test_version_and_bare_call() -> None:
    assert run("--version").stdout.startswith("vitreous 0.")
    assert run().stdout == run("--help").stdout


def test_the_overview_has_a_line_for_each_verb_and_general_option() -> None:
    lines = cli.overview(80).splitlines()
    assert max(map(len, lines)) <= 80
    for name in [*cli.VERBS, "-h, --help", "--version", "--debug"]:
        assert [line for line in lines if line.startswith(f"  {name} ")], name
    assert len([line for line in lines if line.startswith("  ")]) == len(cli.VERBS) + 3  # one line each


@pytest.fixture(params=[80, 120])
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_fits_the_terminal_and_shows_no_python(
    verb: str, terminal: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    usage, *lines = shown.splitlines()
    assert max(map(len, lines)) <= terminal
    assert usage.startswith(f"usage: vitreous {verb} ")
    for odd in ("None", "options options", "(default: )", "(default: False)", "INT", "STR", "FLOAT"):
        assert odd not in shown


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_opens_with_two_examples_that_parse(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = cli.description(verb).partition("Examples:\n")[2].splitlines()
    assert len(lines) == 2
    called = []
    stub = wraps(cli.VERBS[verb])(lambda *arguments, **options: called.append(options))
    monkeypatch.setitem(cli.VERBS, verb, stub)
    for line in lines:
        program, name, *arguments = shlex.split(line)
        assert (program, name, cli.main([name, *arguments])) == ("vitreous", verb, 0), capsys.readouterr().err
    assert len(called) == 2


@pytest.mark.parametrize(
    "config", [TrainConfig, FinetuneConfig, EvaluateConfig, ProbeConfig, BenchConfig, CleanConfig]
)
def test_every_field_of_a_large_config_has_a_group_and_a_description(config: type[Any]) -> None:
    groups = flags.grouped(config)
    placed = [name for names in groups.values() for name in names]
    assert sorted(placed) == sorted(field.name for field in fields(config) if unused(field) is None)
    assert flags.OTHERS not in groups, f"add to config.GROUPS: {groups.get(flags.OTHERS)}"
    assert next(iter(groups)) == "main"
    described = descriptions(config)
    assert [name for name in placed if name not in described] == []


def test_a_field_without_a_group_is_still_a_flag() -> None:
    names = [f"new_{number}" for number in range(flags.SMALL + 1)]
    config = make_dataclass("Config", [(name, int, 0) for name in [*names, "epochs"]])
    assert flags.grouped(config) == {"main": ["epochs"], flags.OTHERS: names}


def test_options_stand_in_their_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    order = ["main options", "--epochs N", "model options", "--drop-path X", "data and augmentation options"]
    order += ["--augment {auto,none", "optimisation options", "--optimizer {auto,adamw", "hardware options"]
    order += ["--workers N", "logging and file options", "--save-every N"]
    places = [shown.index(each) for each in order]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "config",
    [
        *(TrainConfig, FinetuneConfig, EvaluateConfig, ProbeConfig, PredictConfig, BenchConfig),
        *(EmbedConfig, SearchConfig, CleanConfig),
    ],
)
def test_the_command_line_has_the_defaults_of_the_config(
    config: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[str, Any]] = []

    def verb(*, options: Any) -> None:
        """Keep the options."""
        found.append(options)

    verb.__annotations__["options"] = Annotated[dict[str, Any], flags.of(config)]
    monkeypatch.setitem(cli.VERBS, "verb", verb)
    assert cli.main(["verb"]) == 0
    assert from_keywords(config, found[0], "verb") == config()


def test_auto_can_be_written() -> None:
    found: list[TrainConfig] = []

    def train(data: str, **options: Any) -> None:
        found.append(from_keywords(TrainConfig, options, "train"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "train", train)
        patch.setattr(learning, "_show_run", lambda run: None)
        words = ["train", "--lr", "auto", "--image-size", "auto", "--model", "auto", "--optimizer", "auto"]
        assert cli.main([*words, "--patch-size", "4", "--epochs", "2"]) == 0
    assert found == [TrainConfig(patch_size=(4,), epochs=2)]


WRITERS = {
    "train": ["train", "digits", "--epochs", "1", "--out", "OUT"],
    "finetune": ["finetune", "CKPT", "digits", "--epochs", "1", "--out", "OUT"],
    "evaluate": ["evaluate", "CKPT", "digits", "--out", "OUT"],
    "probe": ["probe", "CKPT", "digits", "--method", "knn", "--cache", "OUT"],
    "predict": ["predict", "CKPT", "IMAGE", "--out", "OUT/labels.csv"],
    "embed": ["embed", "CKPT", "digits", "--out", "OUT/digits.npz"],
    "search": ["search", "digits.npz", "IMAGE", "--out", "OUT"],
    "clean": ["clean", "CKPT", "digits", "--out", "OUT"],
    "inspect": ["inspect", "CKPT", "--out", "OUT"],
    "export": ["export", "CKPT", "OUT/a.pt2"],
    "convert": ["convert", "CKPT", "OUT/a.safetensors", "--to", "vitreous"],
    "bench": ["bench", "--out", "OUT"],
    "reproduce": ["reproduce", "positions", "--epochs", "1", "--out", "OUT"],
    "check pack": ["check", "digits", "--pack", "OUT"],
    "check grid": ["check", "digits", "--grid", "OUT/grid.png"],
}


@pytest.mark.parametrize("place", ["FILE", "FILE/below", "/proc/no/folder"])
@pytest.mark.parametrize("verb", WRITERS)
def test_a_place_that_cannot_be_written_is_the_users_error(
    verb: str, place: str, digits_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, file = digits_files(tmp_path, count=1)[0], tmp_path / "file"
    file.write_text("kept")
    names = {"CKPT": str(digits_file), "IMAGE": str(image), "OUT": place.replace("FILE", str(file))}
    words = WRITERS[verb]
    for name, value in names.items():
        words = [word.replace(name, value) for word in words]
    assert cli.main(words) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and "bug" not in error
    assert str(file) in error or "/proc/no" in error
    assert ".draft" not in error
    assert file.read_text() == "kept" and sorted(tmp_path.iterdir()) == sorted([image, file])


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "a/b"),
            "can't use a/b: permission denied: choose",
        ),
        (OSError(errno.ENOSPC, "No space left on device", "a/.b.12.part"), "can't use a: no space left on"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "can't write the output: no space left on device: make room",
        ),
        (
            IsADirectoryError(errno.EISDIR, "Is a directory", b"a"),
            "can't use a: is a directory: give the name",
        ),
        (OSError("odd"), "unexpected OSError: odd (this is a bug; run again with --debug to see where)"),
        (
            ValueError("odd"),
            "unexpected ValueError: odd (this is a bug; run again with --debug to see where)",
        ),
    ],
)
def test_what_the_system_says_of_a_path_is_no_bug(error: Exception, line: str) -> None:
    assert cli.explain(error).startswith(line)


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


def test_a_commands_time_counts_from_the_start_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget is the user's time, imports included; a program that calls us may be hours old."""
    started: list[float] = []
    monkeypatch.setitem(cli.VERBS, "models", lambda: started.append(api._now()))
    monkeypatch.setattr(cli, "_age", lambda: 3600.0)
    monkeypatch.setattr(sys, "argv", ["vitreous", "models"])
    assert cli.main() == 0 and cli.main(["models"]) == 0
    now = time.monotonic()
    assert started[0] < now - 3599 and now - 60 < started[1] < now
    assert api._now() >= now  # the next call in Python begins when it is made


def test_the_age_of_a_process_is_what_the_system_says() -> None:
    code = "import time; time.sleep(0.5); from vitreous import cli; print(cli._age())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0.5 <= float(done.stdout) < 300 or not Path("/proc/self/stat").exists()


@pytest.mark.slow
def test_a_prediction_waits_for_no_library_that_it_does_not_need(digits_file: Path, tmp_path: Path) -> None:
    """Most of a prediction's time is the import of torch: what else is imported would double it."""
    (image,) = digits_files(tmp_path / "images", count=1)
    program = f"""
import sys
from vitreous.cli import main
assert main(["predict", {str(digits_file)!r}, {str(image)!r}]) == 0
others = {{name.partition(".")[0] for name in sys.modules}}
print(*sorted(others & {{"scipy", "sklearn", "torchvision", "matplotlib", "huggingface_hub"}}))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "", found.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--epochs", "ten"], "--epochs ten is not allowed: expected a whole number or auto"),
        (["--lr=fast"], "--lr fast is not allowed: expected a number or auto"),
        (["--augment", "strongg"], "or auto; did you mean strong?"),
        (
            ["--image-size", "8by8"],
            "--image-size 8by8 is not allowed: expected one or more of: ",
        ),
        (["--crop-scale", "0.1"], "--crop-scale 0.1 is not allowed: expected 2 of: a number"),
        (["--workers", "-1"], "--workers -1 is out of range: give 0 or more"),
        (["--model", "BiT-R50x1", "--drop-path", "0.1"], "--drop-path is for ViTs, which this model is not"),
    ],
)
def test_a_wrong_value_is_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "digits", *words, "--out", "/nonexistent/run"]) in (1, 2)
    said = capsys.readouterr()
    assert said.err.strip().count("\n") == 0 and line in said.err and said.out == ""


def test_sizes_are_read_as_they_are_printed() -> None:
    words = ["photos/", "--image-size", "224x320", "--patch-size", "16", "--out", "8x8", "--seed", "3x3"]
    assert values.split_sizes(words) == [*words[:2], "224", "320", *words[3:]]


def test_right_values_pass(tmp_path: Path) -> None:
    """Words, numbers, several of them, what is chosen, and what belongs to the command."""
    for words in (
        ["--epochs", "auto", "--lr", "1e-3", "--crop-scale", "0.1", "1", "--augment", "none", "--find-lr"],
        ["--image-size", "24", "photos/"],
        ["--time-budget", "60", "--out", "2026", "--extend", "5", "--data-root", "1"],  # text, of digits
        ["--find-lr", "photos/", "--tensorboard", "7"],  # a flag, and the data
        ["--time-budget", "None"],
        ["--time-budget", "10m", "--out", str(tmp_path), "--pixels=host", "--extend", "5"],
    ):
        values.refuse_wrong_values(TrainConfig, words)


def test_what_the_parser_takes_is_not_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """tyro's own word on every option of `train`."""

    def parse(*, options: Annotated[dict[str, Any], flags.of(TrainConfig)]) -> None: ...

    config, taken = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes), 0
    for field in fields(TrainConfig):
        for words in (["5"], ["text"], ["auto"], ["None"], ["1", "2"]):
            arguments = [f"--{flag_name(field)}", *words]
            try:
                tyro.cli(parse, args=arguments, config=config)
            except SystemExit:
                continue
            values.refuse_wrong_values(TrainConfig, arguments)
            taken += 1
    assert taken > 80 and capsys.readouterr().out == ""
