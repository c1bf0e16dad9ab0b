"""A classifier on the Hugging Face hub: its files and a card, in one upload. Nothing is read from there."""

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous import files
from vitreous.errors import CheckpointError, MissingDependencyError
from vitreous.models import cost

if TYPE_CHECKING:
    from vitreous.predict.classifier import Classifier

LIBRARIES = {"vitreous": "vitreous", "timm": "timm", "hf": "transformers"}
USE = {
    "vitreous": 'import vitreous\n\nclassifier = vitreous.load("hf://{repo}")\nclassifier.predict("a.jpg")',
    "timm": 'import timm\n\nmodel = timm.create_model("hf-hub:{repo}", pretrained=True)',
    "hf": 'from transformers import pipeline\n\npipeline("image-classification", "{repo}")("a.jpg")',
}
NAMED = 50
"""Classes that a card lists."""


def push(
    classifier: "Classifier",
    repository: str,
    *,
    layout: str = "vitreous",
    private: bool = False,
    token: str | None = None,
    card: str | None = None,
) -> str:
    """Upload the classifier and its card to `owner/name`, which is created if it does not exist.

    Return the address. `card` is Markdown in place of the one that is written from what the classifier knows.
    """
    if layout not in LIBRARIES:
        raise CheckpointError(f"layout {layout!r} can't go on the hub: expected {', '.join(LIBRARIES)}")
    if re.fullmatch(r"(\w[\w.-]*/)?\w[\w.-]*", repository) is None:
        raise CheckpointError(f"{repository!r} is not a repository: write owner/name")
    try:
        from huggingface_hub import HfApi, get_token
    except ImportError:
        raise MissingDependencyError(
            "push_to_hub needs huggingface-hub: pip install huggingface-hub"
        ) from None
    if token is None and get_token() is None:
        raise CheckpointError(
            "the hub asks for a token to write with: run `hf auth login`, set HF_TOKEN, or give token="
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        classifier.save(folder, layout)  # before anything is created on the hub: it may be refused
        try:
            api: Any = HfApi(token=token)
            whole = str(api.create_repo(repository, private=private, exist_ok=True).repo_id)
            text = describe(classifier, whole, layout) if card is None else card
            files.write_text(folder / "README.md", text)
            api.upload_folder(folder_path=folder, repo_id=whole, commit_message="Upload with vitreous")
        except Exception as error:  # the hub raises a dozen kinds; its first line says which
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise CheckpointError(f"{repository} could not be pushed: {reason}") from error
    return f"https://huggingface.co/{whole}"


def describe(classifier: "Classifier", repository: str, layout: str) -> str:
    """Return the card: what the hub sorts by, how to use it, and what its file knows of the model."""
    about, preprocessing = classifier.about, classifier.preprocess.preprocessing
    tags = {
        "library_name": LIBRARIES[layout],
        "pipeline_tag": "image-classification" if classifier.labels else "image-feature-extraction",
        "tags": ["image-classification", "vision-transformer", "vitreous"],
        **({"license": about["license"]} if isinstance(about.get("license"), str) else {}),
    }
    head = "\n".join(f"{name}: {json.dumps(value)}" for name, value in tags.items())  # JSON is YAML
    size = "x".join(map(str, preprocessing.image_size))
    names = ", ".join(classifier.labels[:NAMED])
    rest = len(classifier.labels) - NAMED
    several = f" and {rest:,} more" if rest > 0 else ""
    parameters = cost.parameters(classifier.model.config)
    parts = [
        f"---\n{head}\n---",
        f"# {repository.rpartition('/')[2]}",
        f"An image classifier of {parameters:,} parameters for images of {size}."
        + (f" Its {len(classifier.labels):,} classes: {names}{several}." if classifier.labels else ""),
        f"```python\n{USE[layout].format(repo=repository)}\n```",
    ]
    if table := _results(about.get("results")):
        parts += ["## Results", table]
        if about.get("thresholds"):  # a temperature changes no answer, so no accuracy
            parts.append("Measured before the thresholds of its labels were fitted.")
    if recipe := about.get("recipe"):
        lines = [f"- {name}: {json.dumps(value)}" for name, value in recipe.items()]
        parts += ["## Recipe", "\n".join(lines)]
    if fingerprint := about.get("data"):
        parts.append(f"Trained on data of the fingerprint `{fingerprint}`.")
    return "\n\n".join(parts) + "\n"


def _results(found: Any) -> str:
    rows = []
    for split, figures in found.items() if isinstance(found, dict) else ():
        if isinstance(figures, dict) and (accuracy := figures.get("accuracy")) is not None:
            rows.append(f"| {split} | {accuracy:.2%} | {figures.get('count', 0):,.0f} |")
    return "\n".join(["| split | accuracy | images |", "|---|---|---|", *rows]) if rows else ""
