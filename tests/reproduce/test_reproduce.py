"""`vitreous reproduce`: what is left is run, what has ended is read; it leaves table, plots and verdict."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import vitreous
from vitreous import cli, training
from vitreous.config import DistillConfig, FinetuneConfig, PretrainConfig, ReproduceConfig, TrainConfig
from vitreous.data import open_data
from vitreous.errors import OptionError, ResumeError
from vitreous.models import zoo
from vitreous.options import from_keywords
from vitreous.reproduce import points as runs
from vitreous.reproduce.catalogue import EXPERIMENTS
from vitreous.reproduce.experiment import Point
from vitreous.training import Caller

pytestmark = pytest.mark.usefixtures("blank_figures")


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Some of the digits, so that an epoch is two steps."""
    digits, arrays = open_data("digits"), {}
    for split, count in (("train", 128), ("test", 64)):
        part = digits.splits[split]
        arrays[f"x_{split}"] = np.stack([np.asarray(part.read(i, 1)) for i in range(count)])
        arrays[f"y_{split}"] = part.targets[:count]
    path = tmp_path_factory.mktemp("small") / "small.npz"
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    return str(path)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of runs that were trained, as they were."""
    found: list[str] = []
    work = training.train

    def train(data: Any, options: Any, **about: Any) -> Any:
        found.append(Path(options.out).name)
        return work(data, options, **about)

    monkeypatch.setattr(training, "train", train)
    return found


VERBS: dict[str, type[Any]] = {
    "train": TrainConfig,
    "finetune": FinetuneConfig,
    "pretrain": PretrainConfig,
    "distill": DistillConfig,
}
POSITIONS = ["none-seed0", "1D-seed0", "2D-seed0", "relative-seed0"]


def test_an_experiment_leaves_a_table_plots_and_a_verdict_and_is_not_run_twice(
    small: str, tmp_path: Path, calls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "positions", "--data", small, "--epochs", "1", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    assert calls == POSITIONS
    first = capsys.readouterr().out
    found = json.loads((tmp_path / "result.json").read_bytes())
    assert found["sentence"] in first and "with 1 seed (± is of the test images alone" in found["sentence"]
    assert found["verdict"] in ("held", "not held", "not decided") and found["test_images"] == [64]
    for row in found["rows"]:  # every figure is the run's own
        run = tmp_path / "points" / f"{row['point']}-seed0"
        results = json.loads((run / "results.json").read_bytes())
        assert (row["accuracy"], row["seconds"]) == (results["test"]["accuracy"], results["seconds"])
        assert json.loads((run / "config.json").read_bytes())["options"]["epochs"] == 1
    shapes = [json.loads((tmp_path / "points" / each / "config.json").read_bytes()) for each in POSITIONS]
    kinds = [each["plan"]["architecture"]["positions"] for each in shapes]
    assert kinds == ["none", "learned", "learned2d", "relative"]
    table = (tmp_path / "table.md").read_text()
    assert table.count("\n| ") == 5 and found["claim"] in table and found["sentence"] in table
    assert ElementTree.fromstring((tmp_path / "plot.svg").read_text()).tag.endswith("svg")
    with Image.open(tmp_path / "plot.png") as picture:
        assert picture.size[0] > 0

    assert cli.main(words) == 0
    assert calls == POSITIONS and capsys.readouterr().out == first, "the same again, and nothing was trained"
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == found["rows"]


def test_a_stopped_experiment_goes_on_where_it_was(
    small: str, tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = training.train

    def stopped(data: Any, options: Any, **about: Any) -> Any:
        if len(calls) == 2:
            about["caller"] = Caller(on_step=_interrupt)  # in the middle of the third run
        return counted(data, options, **about)

    options = {"data": small, "epochs": 1, "out": tmp_path}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training, "train", stopped)
        vitreous.reproduce("positions", **options)
    assert calls == POSITIONS[:3]
    half = tmp_path / "points" / "2D-seed0"
    assert (half / "config.json").exists() and not (half / "results.json").exists()
    assert not (tmp_path / "result.json").exists()
    found = vitreous.reproduce("positions", **options)
    assert calls == [*POSITIONS[:3], *POSITIONS[2:]]
    assert found.folder == tmp_path and len(found.rows) == 4


def test_an_experiment_is_not_written_among_other_files(
    small: str, tmp_path: Path, calls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("table.md", "settings.json"):
        (tmp_path / name).write_text("{}")
        assert cli.main(["reproduce", "positions", "--data", small, "--out", str(tmp_path)]) == 1
        assert "holds other files" in capsys.readouterr().err and not calls
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {
        "table.md": "{}",
        "settings.json": "{}",
    }


def _interrupt(_: dict[str, Any]) -> None:
    raise KeyboardInterrupt


def test_seeds_are_added_and_other_settings_refused(small: str, tmp_path: Path, calls: list[str]) -> None:
    options: dict[str, Any] = {"data": small, "epochs": 1, "out": tmp_path, "device": "cpu"}
    vitreous.reproduce("resolution", **options)
    assert calls == ["pretrained-seed0", "scratch-seed0"]  # the others are fine-tuned
    with pytest.raises(ResumeError, match=r"with other runs \(pretrained, .*give another --out"):
        vitreous.reproduce("resolution", **{**options, "epochs": 2})
    with pytest.raises(ResumeError, match="holds this experiment on .*small.npz"):
        vitreous.reproduce("resolution", **{**options, "data": "digits"})
    found = vitreous.reproduce("resolution", **options, seeds=2)
    assert calls == ["pretrained-seed0", "scratch-seed0", "pretrained-seed1", "scratch-seed1"]
    assert [row["seed"] for row in found.rows] == [0] * 4 + [1] * 4
    assert "with 2 seeds" in found.sentence
    sizes = {row["point"]: row["image_size"] for row in found.rows}
    assert sizes == {"pretrained": 4, "same": 4, "higher": 8, "scratch": 8}


def test_the_list_says_what_there_is_and_what_has_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done, begun = (tmp_path / "runs" / "reproduce" / name for name in ("scaling-quick", "course-quick"))
    for folder in (done, begun):
        folder.mkdir(parents=True)
        (folder / "settings.json").write_text("{}")
    (done / "result.json").write_text('{"verdict": "not held"}')
    listed = vitreous.reproduce().to_dict()
    assert list(listed) == list(EXPERIMENTS)
    assert [listed[name]["result"] for name in ("scaling", "course", "positions")] == [
        "not held",
        "stopped",
        None,
    ]
    assert cli.main(["reproduce", "--scale", "gpu"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n{name} " in shown for name in EXPERIMENTS) and "not yet measured" in " ".join(
        shown.split()
    )
    assert "not held" not in shown, "of another scale"


def test_wrong_names_and_scales_are_answered_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reproduce", "postions"]) == 1
    assert capsys.readouterr().err == (
        "error: unknown experiment 'postions'; did you mean positions? (`vitreous reproduce` lists them)\n"
    )
    with pytest.raises(OptionError, match="scale='qick' is not allowed: expected quick or gpu or paper"):
        vitreous.reproduce("positions", scale="qick")
    with pytest.raises(OptionError, match="give 1 or more"):
        vitreous.reproduce("positions", seeds=0)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_papers_scale_says_what_it_needs_and_every_scale_can_be_planned(name: str) -> None:
    experiment = EXPERIMENTS[name]
    if experiment.scales["paper"].data is None:
        with pytest.raises(OptionError, match=f"{name} --scale paper needs .*: name it with --data"):
            vitreous.reproduce(name, scale="paper")
    own, named = (experiment.points(experiment.setting("quick", data)) for data in (None, "digits"))
    assert own == named, "its own data may be named"
    for scale in experiment.scales:
        planned = experiment.points(experiment.setting(scale, "folder"))
        names = [point.name for point in planned]
        for point in planned:
            options = vars(from_keywords(VERBS[point.verb], point.options, point.verb))
            if point.verb != "finetune":
                sizes = {name: options[name] for name in ("image_size", "patch_size") if options[name]}
                assert zoo.get_config(options["model"], **{**sizes, **point.shape}).width > 0
        assert all(point.source in names[: names.index(point.name)] for point in planned if point.source)


def two_of(planned: list[Point]) -> list[Point]:
    """The first and the last point of an experiment, one of each other verb, and what they start from."""
    last = {point.verb: point for point in planned}
    chosen = {point.name for point in (planned[0], planned[-1], *last.values())}
    sources = {point.source for point in planned if point.name in chosen}
    return [point for point in planned if point.name in chosen | sources]


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in ("positions", "resolution")])
def test_the_points_of_a_quick_experiment_train_and_give_rows(name: str, small: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    planned = experiment.points(experiment.setting("quick", small))
    options = ReproduceConfig(device="cpu")
    for point in two_of(planned):
        short = Point(**{**vars(point), "options": {**point.options, "epochs": 1}})
        runs.execute(short, tmp_path, small, 0, options)
        assert runs.is_done(short, runs.folder_of(tmp_path, short.name, 0))
        row = runs.row_of(short, tmp_path, small, 0)
        assert row["parameters"] > 1_000 and row.items() >= dict(point.columns).items()
        assert (row["accuracy"] is None) == (point.verb == "pretrain")
        if name == "attention":
            assert np.array(row["distance"]).shape == (6, 4) and row["locality"] is not None
            assert experiment.draw([row]).keys() == {"plot", "positions", "filters", "rollout"}


def test_the_course_takes_mnist_where_it_is_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--data-root` has an effect: the lecture's own data, in the lecture's own setting."""
    for split, count in (("train", 3), ("t10k", 2)):
        images = np.random.default_rng(0).integers(0, 255, (count, 28, 28), dtype=np.uint8)
        head = np.array([2051, count, 28, 28], ">i4").tobytes()
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        labels = np.arange(count, dtype=np.uint8).tobytes()
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(
            np.array([2049, count], ">i4").tobytes() + labels
        )
    seen: list[tuple[Any, ...]] = []

    def execute(point: Point, folder: Path, data: str, seed: int, options: ReproduceConfig) -> None:
        given = point.options
        seen.append((data, given["batch_size"], given["patch_size"], options.data_root, options.device))
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "execute", execute)
    for root in (str(tmp_path), None):
        with pytest.raises(KeyboardInterrupt):
            out = str(tmp_path / f"out-{root is None}")
            vitreous.reproduce("course", data_root=root, out=out, device="cpu")
    assert seen == [("mnist", 256, (4,), str(tmp_path), "cpu"), ("digits", 64, (2,), None, "cpu")]
