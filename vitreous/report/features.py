"""What a model without classes has learned, in pictures: which images it finds alike, and which patches.

Letters: N images, D width, (h, w) grid.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous import plot
from vitreous.data import Split
from vitreous.errors import DataError
from vitreous.predict import Classifier
from vitreous.report.document import Picture

COMPARED = 1000
"""Images among which neighbours are searched."""
ASKED, NEAREST = 6, 6
"""Images that are shown, and how many neighbours of each."""
BATCH = 64


def pictures(classifier: Classifier, split: Split) -> list[Picture]:
    """Return the nearest neighbours of some images, and their patches coloured by what they are like."""
    channels = classifier.preprocess.preprocessing.channels
    prepared = []
    for index in split.sample(COMPARED):
        try:
            prepared.append(classifier.prepare(split.read(int(index), channels)))
        except DataError:
            continue  # the evaluation has reported it
    if len(prepared) <= NEAREST:
        return []
    asked = np.linspace(0, len(prepared) - 1, ASKED).round().astype(int)
    vectors, maps = [], []
    model = classifier.model
    for start in range(0, len(prepared), BATCH):
        images, mask = classifier.collate(prepared[start : start + BATCH])
        with torch.inference_mode():
            features = model.forward_features(images, mask)
            vectors.append(F.normalize(model.pool(features, mask).float(), dim=1).cpu())
            found = model.feature_maps(features).float().cpu()
        maps += [found[index - start] for index in asked if start <= index < start + BATCH]
    pixels = [prepared[index].pixels for index in asked]
    nearest = neighbours(torch.cat(vectors), asked)
    alike = {
        f"image {row + 1}": [prepared[int(index)].pixels for index in found]
        for row, found in enumerate(nearest)
    }
    similar = plot.sheet(alike)
    coloured = plot.sheet({"images": pixels, "their patches": components(torch.stack(maps), pixels)})
    return [
        Picture(
            title="Nearest neighbours",
            png=plot.png(similar, dpi=96),
            how=f"Each row is an image, then those of {len(prepared):,} that the model finds most like it.",
        ),
        Picture(
            title="What patches are like",
            png=plot.png(coloured, dpi=96),
            how="The first three principal components of all these patches' tokens as red, green and blue: "
            "patches of one colour are alike to the model.",
        ),
    ]


def neighbours(vectors: Tensor, asked: np.ndarray) -> Tensor:  # (N, D) → (asked, 1 + NEAREST)
    """Return, for each row in `asked`, that row itself and its nearest neighbours by cosine."""
    chosen = torch.from_numpy(asked)
    similarity = vectors[chosen] @ vectors.T
    similarity[torch.arange(len(chosen)), chosen] = 2.0  # itself first, before copies of it
    return similarity.topk(1 + NEAREST, dim=1).indices


def components(maps: Tensor, pixels: list[np.ndarray]) -> list[np.ndarray]:  # (N, D, h, w)
    """Return the patches' first three principal components as colours, uint8 in the images' sizes."""
    rows = maps.movedim(1, -1).reshape(-1, maps.shape[1]).double()
    rows = rows - rows.mean(0)
    _, _, directions = torch.linalg.svd(rows, full_matrices=False)
    found = rows @ directions[:3].T
    found = F.pad(found, (0, 3 - found.shape[1]))
    low, high = found.quantile(0.02, dim=0), found.quantile(0.98, dim=0)
    shares = ((found - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    colours = shares.float().unflatten(0, (len(maps), *maps.shape[2:])).permute(0, 3, 1, 2)
    sized = [F.interpolate(c[None], size=p.shape[:2])[0] for c, p in zip(colours, pixels, strict=True)]
    return [(each * 255).round().byte().permute(1, 2, 0).numpy() for each in sized]
