"""`vitreous inspect`: any checkpoint and some images in, figures, numbers and a page out."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from vitreous import console, files, plot
from vitreous.data.decode import decode
from vitreous.data.pictures import why_not
from vitreous.errors import DataError, OptionError
from vitreous.plot.inside import Line, Pictured
from vitreous.predict import Classifier, load
from vitreous.report.batches import NamedImage
from vitreous.report.document import Gallery, Picture, Report, environment
from vitreous.report.numbers import HEADS_OF, numbers
from vitreous.report.observe import CNN, Findings, ImageFindings, InspectOptions, findings
from vitreous.report.page import write
from vitreous.written import as_json

MOST = 24
"""Images of a folder that are used, at most: each gets a row of pictures."""

FLAGS = {
    "--class": "class_name",
    "--patch": "patch",
    "--head-fusion": "fusion",
    "--discard-ratio": "discard",
    "--own-aspect": "own_aspect",
}
GIVEN = " They began as sines and cosines; with --initialization paper a model has to find them."
OF_ATTENTION = ("--patch", "--head-fusion", "--discard-ratio")


class Drawing(NamedTuple):
    """A figure, the name of its file, and one sentence on how to read it."""

    name: str
    title: str
    figure: Figure
    how: str


def inspect(
    source: str | Path,
    images: Sequence[str | Path],
    out: Path,
    options: InspectOptions | None = None,
    *,
    compare: str | Path | None = None,
    image_size: tuple[int, int] | None = None,
    device: str = "cpu",
    command: str = "",
) -> dict[str, Any]:
    """Look inside any checkpoint: write figures, `inspection.json` and `report.html`; return the numbers."""
    options = options or InspectOptions()
    classifier = load(source, image_size=image_size, device=device)
    other = load(compare, device=device) if compare is not None else None
    decoded = read(images, classifier)
    if compare is not None and not decoded:
        raise DataError("two checkpoints are compared through images: give at least one")
    _refuse_what_shows_nothing(options, bool(decoded), classifier.model.config.has_attention)
    found = findings(classifier, decoded, options, other)
    drawings = list(draw(found, str(source), str(compare or "")))
    for drawing in drawings:
        files.write_bytes(out / f"{drawing.name}.png", plot.png(drawing.figure))
    figures = [{"file": f"{each.name}.png", "title": each.title} for each in drawings]
    document = {"checkpoint": str(source), "figures": figures, **numbers(found, str(compare or ""))}
    files.write_text(out / "inspection.json", as_json(document) + "\n")
    write(out / "report.html", _report(found, drawings, classifier, str(source), command))
    return document


def _refuse_what_shows_nothing(options: InspectOptions, images: bool, attention: bool) -> None:
    """Refuse options whose figures there will not be: without images, or for a CNN."""
    plain = InspectOptions()
    given = {flag: getattr(options, name) != getattr(plain, name) for flag, name in FLAGS.items()}
    if not images and any(given.values()):
        named = ", ".join(flag for flag, is_given in given.items() if is_given)
        raise OptionError(f"{named} changes what is shown of images: give at least one image")
    if not attention and (named := ", ".join(flag for flag in OF_ATTENTION if given[flag])):
        raise OptionError(f"{named} is about attention, and a CNN has none: leave it out")


def read(images: Sequence[str | Path], classifier: Classifier) -> list[NamedImage]:
    """Decode the images, those of a folder too; a bad one is reported and left out."""
    channels = classifier.preprocess.preprocessing.channels
    paths: list[Path] = []
    for each in map(Path, images):
        found = _inside(each) if each.is_dir() else [each]
        if not found:
            console.warn(f"{each}: no image in this folder")
        paths += found
    decoded = []
    for path in paths:
        try:
            image = decode(path, channels)
            classifier.preprocess.scaled_size(image.height, image.width)
            decoded.append(NamedImage(str(path), image))
        except DataError as error:
            console.warn(str(error))
    if images and not decoded:
        what = f"none of the {len(paths)} images could be read" if paths else "there is no image"
        raise DataError(f"{what}: give JPEG, PNG or WebP files")
    return decoded


def _inside(folder: Path) -> list[Path]:
    """Return the images in a folder and its subfolders; of many, some, evenly spread."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and why_not(path.name) is None)
    if len(found) <= MOST:
        return found
    console.note(f"{folder}: {MOST} of its {len(found):,} images are used, evenly spread")
    return [found[number * len(found) // MOST] for number in range(MOST)]


def draw(found: Findings, name: str = "", other: str = "") -> Iterator[Drawing]:
    """Yield every figure that the findings have something for."""
    yield from _of_weights(found)
    yield from _of_heads(found)
    yield from _of_images(found)
    yield from _of_layers(found, name, other)
    if found.map_scores is not None:
        yield Drawing(
            "deletion",
            "Are the maps right?",
            plot.deletion(
                found.map_scores.removed,
                found.map_scores.curves,
                found.map_scores.random,
                found.map_scores.about,
            ),
            f"The answer as patches are removed, mean of {_images(found.map_scores.images)}: a map that "
            "falls no faster than random order (upper plot) marks patches that don't matter.",
        )


def _of_weights(found: Findings) -> Iterator[Drawing]:
    if found.filters is not None:
        yield Drawing(
            "filters",
            "Filters",
            plot.filters(found.filters.tiles, found.filters.about),
            "The directions along which the first filters differ most: smooth waves and colours are learned, "
            "noise is not (figure 7, left, of the paper).",
        )
    if found.positions is not None:
        yield Drawing(
            "positions",
            "Position similarity",
            plot.positions(found.positions.values, found.positions.about),
            "Each tile is one patch and shows which positions resemble its own: bright spots at the tile's "
            "own place, rows and columns mean that the model knows the grid (figure 7, centre)."
            + (GIVEN if found.positions_given else ""),
        )


def _of_heads(found: Findings) -> Iterator[Drawing]:
    if found.distance is not None:
        yield Drawing(
            "distance",
            "Attention distance",
            plot.by_layer(found.distance, "mean attention distance (pixels)", _lines(found)),
            "How far each head looks: low dots in early layers are local heads, much like convolutions; "
            "the dashed line is what a CNN of the same relative depth could reach (figure 7, right).",
        )
    if found.entropy is not None:
        yield Drawing(
            "entropy",
            "Attention entropy",
            plot.by_layer(found.entropy, "entropy (1: all tokens alike)", top=1.02),
            "Near 1 a head averages over everything, near 0 it picks single tokens.",
        )


def _of_layers(found: Findings, name: str, other: str) -> Iterator[Drawing]:
    if found.cka is not None:
        yield Drawing(
            "layers",
            "Layers compared",
            plot.layer_similarity(found.cka),
            "Bright blocks are runs of layers with much the same features (linear CKA over patches).",
        )
    if found.compared is not None:
        yield Drawing(
            "compare",
            "Checkpoints compared",
            plot.layer_similarity(found.compared, Path(name).stem, Path(other).stem),
            "A bright cell: these two layers of the two checkpoints represent the images alike (linear CKA).",
        )


def _of_images(found: Findings) -> Iterator[Drawing]:
    if found.images and found.images[0].maps:
        rows = [Pictured(_title(each), each.pixels, each.maps) for each in found.images]
        yield Drawing(
            "rollout",
            "What it looks at",
            plot.gallery(rows),
            f"Bright is what reaches the {found.start or 'answer'} through all layers (figure 6); the maps "
            "for a class count only what supports it.",
        )
    for number, each in enumerate(found.images[:HEADS_OF], 1):
        if each.heads is not None:
            yield Drawing(
                f"heads-{number}",
                f"Every head, {plot.label(Path(each.name).name)}",
                plot.attention_heads(each.heads, found.start),
                "One tile per head, each with its own scale: what it attends to in this image.",
            )
    if found.norms is not None and found.similarity is not None:
        yield Drawing(
            "tokens",
            "Tokens by layer",
            plot.token_norms(found.norms, found.prefix_norms, found.similarity),
            "A longest patch far above the rest is an artefact token, which registers remove; similarity "
            "near 1 means that all patches have become alike.",
        )


def _images(count: int) -> str:
    return f"{count} image" + "s" * (count != 1)


def _lines(found: Findings) -> list[Line]:
    assert found.cnn is not None
    ends = np.array([0.0, 1.0])
    return [
        Line(f"receptive field of {CNN}", *found.cnn),
        Line("looking everywhere alike", ends, np.full(2, found.uniform_distance)),
    ]


def pictures(found: Findings, drawings: Sequence[Drawing] | None = None) -> list[Picture]:
    """Return the figures for a page; the gallery of images is HTML there."""
    chosen = drawings if drawings is not None else list(draw(found))
    left = {"rollout", *(f"heads-{number}" for number in range(2, HEADS_OF + 1))}
    return [
        Picture(title=each.title, svg=plot.svg(each.figure, each.name), how=each.how)
        for each in chosen
        if each.name not in left
    ]


def _report(
    found: Findings, drawings: Sequence[Drawing], classifier: Classifier, source: str, command: str
) -> Report:
    config = classifier.model.config
    size = "x".join(map(str, config.image_size))
    summary = {
        "parameters": f"{sum(p.numel() for p in classifier.model.parameters()):,}",
        "image size": size,
        "images looked at": f"{found.count:,}",
        "classes": f"{len(classifier.labels):,}" if classifier.labels else "none",
    }
    if config.kind == "vit":
        grid = "x".join(map(str, config.grid))
        summary |= {
            "layers x heads": f"{config.depth} x {config.heads}",
            "patches": f"{grid} of {config.step[0]}x{config.step[1]} px",
        }
    return Report(
        title=f"Inside {Path(source).name}",
        subtitle="" if Path(source).name == source else source,
        command=command,
        environment=environment(),
        summary=summary,
        pictures=pictures(found, drawings),
        galleries=[_gallery(each) for each in found.images],
        notes=found.notes,
    )


def _gallery(found: ImageFindings) -> Gallery:
    best = found.prediction.top[:3] if found.prediction else []
    top = ", ".join(f"{label} {probability:.1%}" for label, probability in best)
    maps = [
        (
            f"{name}: {found.target}" if name != "rollout" and found.target else name,
            plot.overlay(found.pixels, each),
        )
        for name, each in found.maps.items()
    ]
    artefacts = f"{len(found.artefacts)} artefact tokens" if found.artefacts else ""
    text = " · ".join(part for part in (top, artefacts) if part)
    return Gallery(title=Path(found.name).name, text=text, images=[("image", found.pixels), *maps])


def _title(found: ImageFindings) -> str:
    """Return the model's answer, as predict would; for a model without classes, the file name."""
    if found.prediction is None:
        return Path(found.name).name
    labels = found.prediction.labels
    if labels:
        return ", ".join(labels)
    best, probability = found.prediction.top[0]
    return (
        f"{best} ({probability:.0%})"
        if found.prediction.label
        else f"no label (best: {best}, {probability:.0%})"
    )
