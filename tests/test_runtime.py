"""Runtimes: torch's answers by another library, proven before it is used, chosen by measurement."""

import io
import json
import os
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitreous
from tests.conftest import digits_files, randomize, train_digits
from vitreous import cli
from vitreous.data.augment import EvaluationTransform
from vitreous.errors import MissingDependencyError, OptionError, VitreousError
from vitreous.export import formats, proof
from vitreous.predict import Classifier, choice, engines, graphs
from vitreous.predict.output import fingerprint

pytestmark = pytest.mark.usefixtures("one_registry")
needs_openvino = pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
RUNTIMES = ["onnxruntime", pytest.param("openvino", marks=needs_openvino)]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Graphs are made once for this module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "graphs"


def images(count: int = 40) -> torch.Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def silent(_: str) -> None:
    """Say nothing."""


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_runtime_gives_torchs_logits(digits: Classifier, runtime: Any) -> None:
    other = choice.equip(digits, runtime, say=silent)
    assert other.engine is not None and other.engine.name.startswith(runtime)
    for batch in (images(1), images(5)):
        with torch.inference_mode():
            expected = digits.model(batch)
        torch.testing.assert_close(other.engine.logits(batch, None), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(other.probabilities(batch), digits.probabilities(batch), atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def wide() -> Classifier:
    """Wider than others: OpenVINO 2026.4 computes int8 of width 32 wrongly on processors with AMX."""
    return train_digits(80, width=64)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_int8_is_another_arithmetic_with_the_same_labels(wide: Classifier, runtime: Any) -> None:
    rough = choice.equip(wide, runtime, "int8", say=silent)
    exact, found = wide.probabilities(images()), rough.probabilities(images())
    assert 1e-5 < (exact - found).abs().max() < 0.3
    assert (exact.argmax(1) == found.argmax(1)).float().mean() > 0.9


def test_bf16_is_another_arithmetic_and_marks_its_rows(digits: Classifier) -> None:
    half = choice.equip(digits, "torch", "bf16", say=silent)
    difference = (half.probabilities(images()) - digits.probabilities(images())).abs().max()
    assert 1e-5 < difference < 0.1
    assert fingerprint(half) == f"{fingerprint(digits)}-bf16"


def test_torch_in_float32_is_the_classifier_itself(digits: Classifier) -> None:
    assert choice.equip(digits) is digits


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_padding_is_left_out_by_the_runtime_too(runtime: Any) -> None:
    from tests.conftest import train_digits

    plain = train_digits(steps=1)
    randomize(plain.model)
    settings = replace(plain.preprocess.preprocessing, resize="pad")
    source = Classifier(plain.model, EvaluationTransform(settings, plain.model.config.step), plain.labels)
    wide = np.random.default_rng(0).integers(0, 255, (3, 8), np.uint8)
    tall = np.random.default_rng(1).integers(0, 255, (8, 5), np.uint8)
    given = source.collate([source.prepare(wide), source.prepare(tall)])
    assert given.mask is not None and not given.mask.all()
    found = choice.equip(source, runtime, say=silent).probabilities(*given)
    torch.testing.assert_close(found, source.probabilities(*given), atol=1e-4, rtol=0)


def test_the_graph_is_made_once_and_again_where_it_is_damaged(digits: Classifier, fresh_cache: Path) -> None:
    said: list[str] = []
    choice.equip(digits, "onnxruntime", say=said.append)
    assert "preparing" in said[0] and "of the labels of 24 images" in said[1]
    choice.equip(digits, "onnxruntime", say=said.append)
    assert len(said) == 2  # from the cache, in silence
    (folder,) = fresh_cache.iterdir()
    path = folder / "model.onnx"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    again = choice.equip(digits, "onnxruntime", say=said.append)
    assert "is damaged" in said[2] and "preparing" in said[3]
    torch.testing.assert_close(
        again.probabilities(images()), digits.probabilities(images()), atol=1e-5, rtol=0
    )


def test_another_model_or_version_has_another_graph(
    digits: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = graphs.place(digits, "onnxruntime", "float32")
    hotter = replace(digits, about={**digits.about, "calibration": {"temperature": 3.0}})
    places = {
        here,
        graphs.place(hotter, "onnxruntime", "float32"),
        graphs.place(digits, "onnxruntime", "int8"),
    }
    monkeypatch.setattr(graphs, "version", lambda name: "0")
    assert len(places | {graphs.place(digits, "onnxruntime", "float32")}) == 4


def test_a_graph_is_not_run_from_where_others_can_write(digits: Classifier, fresh_cache: Path) -> None:
    choice.equip(digits, "onnxruntime", say=silent)
    (folder,) = fresh_cache.iterdir()
    folder.chmod(0o777)
    with pytest.raises(VitreousError, match="can be written by others, so no graph is run from it"):
        choice.equip(digits, "onnxruntime", say=silent)


def test_old_graphs_are_removed(tmp_path: Path) -> None:
    for number in range(graphs.KEPT + 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / graphs.RECORD).write_text("{}")
        os.utime(tmp_path / str(number) / graphs.RECORD, (number, number))
    graphs._forget_old(tmp_path)
    assert sorted(int(each.name) for each in tmp_path.iterdir()) == list(range(2, graphs.KEPT + 2))


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch, fresh_cache: Path) -> None:
    """Let onnxruntime give other answers than the model."""
    form = formats.FORMATS[".onnx"]

    def opened(path: Path, threads: int | None = None) -> formats.Opened:
        good = form.open(path, threads)

        def run(batch: Any) -> Any:
            found = good.run(batch)
            return found._replace(probabilities=found.probabilities[:, ::-1])

        return replace(good, run=run)

    monkeypatch.setitem(formats.FORMATS, ".onnx", replace(form, open=opened))


def test_a_runtime_that_disagrees_is_refused(digits: Classifier, wrong: None, fresh_cache: Path) -> None:
    with pytest.raises(proof.DisagreementError, match="onnxruntime in float32 is refused, as it is .* away"):
        choice.equip(digits, "onnxruntime", say=silent)
    assert list(fresh_cache.iterdir()) == []


def test_auto_falls_back_to_torch_and_says_so(
    digits: Classifier, wrong: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_installed", lambda: ["onnxruntime"])
    said: list[str] = []
    found = choice.equip(digits, "auto", say=said.append)
    assert found.engine is None
    assert any("onnxruntime in float32 is left out: " in line and "refused" in line for line in said)
    assert said[-1].startswith("runtime: torch in float32")


def test_auto_leaves_few_images_to_torch_without_looking(
    digits: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(choice, "seconds", never)
    monkeypatch.setattr(graphs, "engine", never)
    said: list[str] = []
    assert choice.equip(digits, "auto", "auto", images=choice.FEW - 1, say=said.append) is digits
    assert "too few" in said[0]


def test_auto_makes_no_graph_that_would_not_pay(digits: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_installed", lambda: ["onnxruntime"])
    monkeypatch.setattr(choice, "seconds", lambda *_, **__: 0.1)
    monkeypatch.setattr(graphs, "is_made", lambda *_: False)
    needed = choice.worth(digits, "onnxruntime", "float32", 0.1, 1)
    assert needed == round((3 + 20 + 48 * 0.1 + 2 * 4 * 0.1) / 0.02)  # to open, make, prove and time it
    assert choice.worth(digits, "torch", "bf16", 0.1, 32) == round(2 * 4 * 32 * 0.1 / 0.02)
    said: list[str] = []
    assert choice.equip(digits, "auto", images=needed - 1, say=said.append).engine is None
    assert f"pays from about {needed:,} images on" in said[0]


def test_auto_takes_what_is_measured_as_fastest(digits: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_installed", lambda: ["onnxruntime"])
    speeds = {None: 0.010, "float32": 0.008}

    def seconds(classifier: Classifier, batch: int, warm: bool = True) -> float:
        return speeds[classifier.engine and classifier.engine.precision]

    monkeypatch.setattr(choice, "seconds", seconds)
    said: list[str] = []
    assert isinstance(choice.equip(digits, "auto", say=said.append).engine, engines.Exported)
    assert said[-1] == (
        "runtime: onnxruntime in float32 (8 ms an image), measured beside torch in float32 (10 ms an image)"
    )
    speeds["float32"] = 0.0099  # no gain to speak of
    assert choice.equip(digits, "auto", say=said.append).engine is None


@pytest.mark.parametrize("found", [True, False])
def test_bf16_is_automatic_only_where_the_processor_has_it(
    digits: Classifier, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    monkeypatch.setattr(choice.parallel, "has_bf16", lambda _: found)
    pairs = choice.candidates("torch", "auto", digits)
    assert pairs == [("torch", "float32"), *([("torch", "bf16")] if found else [])]


def test_threads_are_torchs_own(digits: Classifier) -> None:
    engine = choice.equip(digits, "onnxruntime", say=silent).engine
    assert isinstance(engine, engines.Exported)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            engine.logits(images(), None)
    finally:
        torch.set_num_threads(before)
    assert sorted(engine.by_threads) == [1, 2]


@pytest.mark.parametrize(
    ("runtime", "precision", "message"),
    [
        ("torch", "int8", "torch has no int8 here: use --runtime openvino or onnxruntime"),
        ("onnxruntime", "bf16", "onnxruntime has no bf16 here: use --runtime torch or openvino"),
    ],
)
def test_what_a_runtime_lacks_is_refused(
    digits: Classifier, runtime: Any, precision: Any, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        choice.equip(digits, runtime, precision)


def test_a_missing_package_is_named(digits: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None if name == "openvino" else find_spec(name))
    with pytest.raises(MissingDependencyError, match=r"openvino: pip install 'vitreous\[openvino\]'"):
        choice.equip(digits, "openvino", say=silent)


def test_an_engine_does_not_move(digits: Classifier) -> None:
    other = choice.equip(digits, "onnxruntime", say=silent)
    assert other.to("cpu") is other
    with pytest.raises(OptionError):
        other.to("meta")


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Note what graphs are asked for."""
    asked: list[tuple[str, str]] = []
    engine: Callable[..., Any] = graphs.engine

    def spy(classifier: Classifier, runtime: str, precision: str, say: Any) -> Any:
        asked.append((runtime, precision))
        return engine(classifier, runtime, precision, say)

    monkeypatch.setattr(graphs, "engine", spy)
    return asked


def test_the_verb_python_and_load_take_the_options(
    digits: Classifier,
    digits_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = spied(monkeypatch)
    paths = [str(path) for path in digits_files(tmp_path, count=3)]
    options = ["--runtime", "onnxruntime", "--precision", "int8", "--device", "cpu"]
    assert cli.main(["predict", str(digits_file), *paths, "--json", *options]) == 0
    rows = json.loads(capsys.readouterr().out)
    exact = vitreous.predict(digits, paths)
    assert [row["label"] for row in rows] == [each.label for each in exact]
    assert rows[0]["probability"] != exact[0].to_dict()["probability"]
    vitreous.predict(digits, paths, runtime="onnxruntime")
    loaded = vitreous.load(digits_file, runtime="onnxruntime", precision="int8")
    assert asked == [("onnxruntime", "int8"), ("onnxruntime", "float32"), ("onnxruntime", "int8")]
    assert loaded.engine is not None and loaded.engine.precision == "int8"


def test_predict_counts_the_images_before_it_chooses(
    digits_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "digits"
    digits_files(folder, count=5)
    with redirect_stderr(io.StringIO()) as said:
        code = cli.main(
            ["predict", str(digits_file), str(folder), "--csv", "--runtime", "auto", "--device", "cpu"]
        )
    assert code == 0 and "5 images are too few" in said.getvalue()
    assert len(capsys.readouterr().out.splitlines()) == 6  # none was lost by counting


def test_the_server_computes_with_the_runtime_it_is_told(
    digits: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.serve_client import client, post, wait_until_ready

    asked = spied(monkeypatch)
    (path,) = digits_files(tmp_path, count=1)
    with client(digits, runtime="onnxruntime", precision="int8") as made:
        server = wait_until_ready(made)
        card = server.get("/model").json()
        (found,) = post(server, path.read_bytes()).json()["predictions"]
    assert asked == [("onnxruntime", "int8")]
    assert card["runtime"].startswith("onnxruntime") and card["precision"] == "int8"
    (rough,) = choice.equip(digits, "onnxruntime", "int8", say=silent).predict(path)
    assert found["probability"] == pytest.approx(rough.to_dict()["probability"], abs=1e-6)
    assert found["probability"] != digits.predict(path)[0].to_dict()["probability"]


def test_serve_takes_the_options_to_its_settings() -> None:
    from vitreous.serve import start

    made = start.settings(runtime="openvino", precision="bf16")
    assert (made.runtime, made.precision) == ("openvino", "bf16")
