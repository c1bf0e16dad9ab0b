"""The model in the package: it is what its card says, works offline at once, and its figures hold."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import timm
import torch
from safetensors import safe_open
from sklearn.datasets import load_sample_images

import vitreous
from vitreous.models import zoo
from vitreous.predict import loading

FILE, CARD = loading.BUNDLED / "tiny.safetensors", loading.BUNDLED / "tiny.md"
FRUITS = "tests/fixtures/fruits"


def test_it_is_small_and_says_what_it_is() -> None:
    assert FILE.stat().st_size <= 12 * 2**20
    with safe_open(FILE, framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}
    clf = vitreous.load("tiny")
    assert len(clf.labels) == 1000 and clf.labels[207] == "golden retriever"
    assert {"name", "description", "licence", "results"} <= clf.about.keys()
    assert "research" in clf.about["licence"] and "research" in CARD.read_text()


def test_timm_computes_the_same() -> None:
    clf = vitreous.load("tiny")
    size = clf.model.config.image_size
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=size).eval()
    theirs.load_state_dict(clf.model.state_dict())
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(clf.model.eval()(images), theirs(images), atol=1e-5)


def test_it_knows_a_photograph() -> None:
    """Scikit-learn's two: a temple, and a flower whose class ImageNet has as a daisy or not at all."""
    temple = vitreous.load("tiny").predict(load_sample_images().images[0])[0]
    assert temple.label in ("palace", "monastery", "stupa", "boathouse", "bell cote")


def test_its_published_figures_hold() -> None:
    """The card's row for the fruits that come with the tests."""
    row = re.search(r"fixtures/fruits` \| 160 \| (\d+\.\d) % \|", CARD.read_text())
    assert row is not None
    found = vitreous.probe("tiny", FRUITS, method="linear").linear.accuracy
    assert 100 * found == pytest.approx(float(row[1]), abs=1.7)  # one picture of sixty


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vitreous.load("tiny", num_classes=3).save("tiny")
    assert vitreous.load("tiny").model.config.num_classes == 3


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(vitreous.VitreousError, match="tiny, which is bundled"):
        vitreous.load("tinny")
    with pytest.raises(vitreous.VitreousError, match=r'load\("tiny"'):
        zoo.create_model("ViT-Ti/16", pretrained=True)


@pytest.mark.slow
def test_an_installed_wheel_has_it(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), "."], check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = "import vitreous; c = vitreous.load('tiny'); print(vitreous.__file__); print(len(c.labels))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    where, classes = done.stdout.split()
    assert Path(where).is_relative_to(tmp_path) and classes == "1000"
