"""`push_to_hub`: what is uploaded, with the hub's API in place of the hub."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch

from vitreous.errors import CheckpointError, LayoutError
from vitreous.predict import Classifier, load


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the hub was asked; a folder that is uploaded is kept as its files."""
    asked: list[Any] = []

    class Api:
        def __init__(self, token: str | None = None) -> None:
            asked.append(token)

        def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> Any:
            asked.append((name, private, exist_ok))
            whole = name if "/" in name else f"me/{name}"
            return type("Url", (str,), {"repo_id": whole})(f"https://huggingface.co/{whole}")

        def upload_folder(self, *, folder_path: Path, repo_id: str, commit_message: str) -> None:
            asked.append((repo_id, {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}))

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "secret")
    return asked


def test_the_sealed_file_and_a_card_are_uploaded(hub: list[Any], digits: Classifier, tmp_path: Path) -> None:
    digits.about = {
        "results": {"test": {"accuracy": 0.9744, "count": 359}},
        "recipe": {"lr": 0.003},
        "data": "ab",
    }
    try:
        assert digits.push_to_hub("me/digits", private=True) == "https://huggingface.co/me/digits"
    finally:
        digits.about = {}
    token, made, (repository, uploaded) = hub
    assert (token, made, repository) == (None, ("me/digits", True, True), "me/digits")
    assert uploaded.keys() == {"model.safetensors", "README.md"}
    (tmp_path / "model.safetensors").write_bytes(uploaded["model.safetensors"])
    assert load(tmp_path).labels == digits.labels  # as hf://me/digits brings it back
    card = uploaded["README.md"].decode()
    assert card.startswith('---\nlibrary_name: "vitreous"\npipeline_tag: "image-classification"\n')
    for part in (
        "| test | 97.44% | 359 |",
        "- lr: 0.003",
        'vitreous.load("hf://me/digits")',
        "0, 1, 2, 3",
        "`ab`",
    ):
        assert part in card


def test_a_layout_of_another_library_is_what_that_library_reads(
    hub: list[Any], digits: Classifier, tmp_path: Path
) -> None:
    assert digits.push_to_hub("digits", layout="timm", token="mine") == "https://huggingface.co/me/digits"
    assert hub[0] == "mine"
    for name, content in hub[2][1].items():
        (tmp_path / name).write_bytes(content)
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(theirs(images), digits.model(images), rtol=0, atol=1e-5)
    card = (tmp_path / "README.md").read_text()
    assert 'library_name: "timm"' in card and 'create_model("hf-hub:me/digits"' in card


def test_a_card_of_ones_own(hub: list[Any], digits: Classifier) -> None:
    digits.push_to_hub("me/digits", card="# Mine\n")
    assert hub[2][1]["README.md"] == b"# Mine\n"


def test_a_card_tells_that_its_results_are_from_before_the_thresholds(
    hub: list[Any], digits: Classifier
) -> None:
    about = {"multilabel": True, "results": {"test": {"accuracy": 0.5}}}
    for fitted in ({}, {"thresholds": [0.25] * 10}):
        replace(digits, about={**about, **fitted}).push_to_hub("me/digits")
        said = "Measured before the thresholds" in hub[-1][1]["README.md"].decode()
        assert said == bool(fitted)


def test_what_can_not_be_pushed_is_one_line(
    hub: list[Any], digits: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match="'a/b/c' is not a repository: write owner/name"):
        digits.push_to_hub("a/b/c")
    with pytest.raises(
        CheckpointError, match="layout 'google' can't go on the hub: expected vitreous, timm, hf"
    ):
        digits.push_to_hub("me/digits", layout="google")
    with pytest.raises(LayoutError, match="the hf layout has no place for"):
        odd = Classifier(digits.model, digits.preprocess, digits.labels)
        odd.model = type(digits.model)(
            type(digits.model.config)(**{**vars(digits.model.config), "pooling": "gap"})
        )
        odd.push_to_hub("me/digits", layout="hf")
    assert hub == []

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("403 Forbidden\nRequest ID: 1")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
    with pytest.raises(CheckpointError, match="me/digits could not be pushed: 403 Forbidden$"):
        digits.push_to_hub("me/digits")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(
        CheckpointError, match="asks for a token to write with: run `hf auth login`, set HF_TOKEN"
    ):
        digits.push_to_hub("me/digits")
