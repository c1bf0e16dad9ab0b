"""How `tiny`, the model in the wheel, was made: a ViT-Ti/16 that learned from two teachers, without labels.

    python examples/tiny.py photos.npz --vit TEACHER.safetensors --resnet resnet50.pt --out runs/tiny \
        --time-budget 20m

It is also an example of a task of your own in the one training loop: a module with a `forward`, and a
function that builds it. The teachers see the student's very crops. One is a ViT-S/14, whose vector for the
image and whose features at every place the student's are compared with; the other a ResNet-50 with ImageNet's
1,000 classes, of which it learns the pooled vector and the probabilities. The 1,000 classes are the student's
own head; the other three layers between the widths are thrown away.

photos.npz: `x_train` uint8 (N, H, W, 3) and `y_train` (zeros; no label is used); `x_val`, `y_val`, `x_test`,
`y_test` with ImageNet's class numbers, to follow the accuracy; `class_names`, ImageNet's.
resnet50.pt: a state dict in torchvision's names, with the stride in the first convolution of a block, for
pixels from 0 to 255 less the means, blue first (He et al., 2015).
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet50

from vitreous import checkpoint
from vitreous.config import TrainConfig
from vitreous.data import Batch, Dataset
from vitreous.models.weights import Model
from vitreous.objectives import Objective
from vitreous.objectives.distill import Teacher
from vitreous.objectives.supervised import correct
from vitreous.predict import load
from vitreous.training.run import train

MEANS = (123.68, 116.779, 103.939)
"""Of ImageNet's red, green and blue, from 0 to 255."""
VIT_SIZE = 168


class FrozenResNet(nn.Module):
    """ResNet-50 for RGB pixels from 0 to 1; batch norm is folded into the convolutions."""

    def __init__(self, path: str) -> None:
        super().__init__()
        net = resnet50()
        for part in net.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.eps = 1e-3
        for stage in (net.layer2, net.layer3, net.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
        net.load_state_dict({k: v.float() for k, v in torch.load(path, weights_only=True).items()})
        net.eval().requires_grad_(False)
        net.conv1.weight.copy_(net.conv1.weight.flip(1) * 255.0)  # for red first, pixels from 0 to 1
        for holder in list(net.modules()):
            for number in ("1", "2", "3"):
                if hasattr(holder, f"conv{number}"):
                    folded = _fold(getattr(holder, f"conv{number}"), getattr(holder, f"bn{number}"))
                    setattr(holder, f"conv{number}", folded)
                    setattr(holder, f"bn{number}", nn.Identity())
            if getattr(holder, "downsample", None) is not None:
                holder.downsample = _fold(holder.downsample[0], holder.downsample[1])
        self.head, net.fc = net.fc, nn.Identity()
        self.net = net.to(memory_format=torch.channels_last)
        self.register_buffer("means", torch.tensor(MEANS)[:, None, None] / 255.0, persistent=False)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:  # (B, 3, H, W) → (B, 2048), (B, 1000)
        pooled = self.net((pixels - self.means).contiguous(memory_format=torch.channels_last))
        return pooled, self.head(pooled)


def _fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    folded = nn.utils.fuse_conv_bn_eval(conv, norm)
    return folded.requires_grad_(False)


class TwoTeachers(Objective):
    """Give the features of both teachers, and the answers of the one that has classes."""

    def __init__(self, model: Model, vit: Teacher, resnet: FrozenResNet, parts: set[str]) -> None:
        super().__init__()
        self.model, self.vit, self.parts = model, vit, parts
        self.frozen = (vit.model, resnet)  # in a tuple: no part of what learns or is saved
        own, theirs = model.config.width, vit.model.config.width
        widths = {"vit": theirs, "places": theirs, "resnet": 2048}
        self.project = nn.ModuleDict({name: nn.Linear(own, width) for name, width in widths.items()})
        # Each number of a teacher's vector counts alike: it is compared in units of its own spread.
        self.spread = nn.ModuleDict(
            {name: nn.BatchNorm1d(width, affine=False) for name, width in widths.items()}
        )

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        features = self.model.forward_features(batch.images)
        pooled, logits = self.model.pool(features), self.model.forward_head(features).float()
        maps = self.model.feature_maps(features)
        losses: dict[str, Tensor] = {}
        if "vit" in self.parts:
            vector, places = self.vit.features(batch.images)
            places = F.interpolate(places.float(), size=maps.shape[2:], mode="bilinear", antialias=True)
            losses["vit"] = self.apart("vit", pooled, vector)
            losses["places"] = self.apart("places", _rows(maps), _rows(places))
        if "resnet" in self.parts:
            with torch.no_grad():
                vector, answers = self.frozen[1](
                    batch.images * 0.5 + 0.5
                )  # as the student's preprocessing has it
            losses["resnet"] = self.apart("resnet", pooled, vector)
            ours, theirs = logits.log_softmax(1), answers.float().log_softmax(1)
            losses["answers"] = F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
        metrics = {name: value.detach() for name, value in losses.items()}
        if batch.targets.ndim == 1:
            metrics["accuracy"] = correct(logits, batch.targets).float().mean()
        else:
            metrics["accuracy"] = torch.zeros((), device=logits.device)
        return torch.stack(list(losses.values())).sum(), metrics

    def apart(self, name: str, ours: Tensor, theirs: Tensor) -> Tensor:
        """Return 1 minus the mean cosine of our vectors, brought to the other width, and a teacher's."""
        with torch.autocast(ours.device.type, enabled=False):
            theirs = self.spread[name](theirs.float())
        return 1.0 - F.cosine_similarity(self.project[name](ours).float(), theirs, dim=-1).mean()


def _rows(maps: Tensor) -> Tensor:  # (B, D, h, w) → (B·h·w, D)
    return maps.permute(0, 2, 3, 1).flatten(0, 2)


LICENCE = (
    "The weights are under Apache-2.0, as the code. They were learned from pictures with terms of their own: "
    "ImageNet's (Tiny-ImageNet, Imagenette, what the teachers had learned from) are for research."
)


def seal(run: Path, destination: Path) -> None:
    """Write the best model of a run as it comes with the package: in float16, with what it is."""
    weights = checkpoint.read(run / "best.safetensors")
    tensors = {name: tensor.half() for name, tensor in weights.tensors.items()}
    about = {
        "name": destination.stem,
        "description": "ViT-Ti/16, distilled without labels from a ViT-S/14 and a ResNet-50",
        "licence": LICENCE,
        "results": {"test": {"accuracy": weights.about["results"]["test"]["accuracy"]}},
        "data": weights.about["data"],
        "step": weights.about["step"],
    }
    checkpoint.write(replace(weights, tensors=tensors, about=about), destination)


def main() -> None:
    """Read the command line, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--vit", required=True, help="the ViT-S/14, in any layout")
    parser.add_argument("--resnet", required=True, help="the ResNet-50")
    parser.add_argument("--out", default="runs/tiny")
    parser.add_argument("--time-budget", default="20m")
    parser.add_argument("--image-size", type=int, default=160)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--mix", type=float, default=0.5, help="share of images that are mixed")
    parser.add_argument("--teachers", default="vit,resnet")
    parser.add_argument("--model", default="ViT-Ti/16")
    given = parser.parse_args()
    options = TrainConfig(
        out=given.out,
        model=given.model,
        image_size=(given.image_size,),
        time_budget=given.time_budget,
        batch_size=given.batch_size,
        optimizer="muon",
        lr=given.lr,
        weight_decay=0.05,
        warmup=0.03,
        ema=0.999,
        augment="light",
        crop_scale=(0.15, 1.0),
        color=0.5,
        mixup=0.8 if given.mix else 0.0,
        cutmix=1.0 if given.mix else 0.0,
        mix_probability=given.mix,
        unmixed=0.2,
    )

    def build(model: Model, plan: Any, dataset: Dataset) -> Objective:
        vit = Teacher(load(given.vit, image_size=VIT_SIZE), plan.preprocessing)
        torch.backends.cudnn.benchmark = True
        return TwoTeachers(model, vit, FrozenResNet(given.resnet), set(given.teachers.split(",")))

    result = train(given.data, options, make_objective=build)
    seal(result.folder, result.folder / "tiny.safetensors")


if __name__ == "__main__":
    main()
