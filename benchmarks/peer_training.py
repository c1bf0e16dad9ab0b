"""The same model, data and time in timm's training loop and in `vitreous train`: images/s and accuracy.

    python benchmarks/peer_training.py cifar10.npz [--time-budget 2m] [--device cuda] [--batch-size 1024]

timm's side is what its training script does by default: `create_loader` with workers and its prefetcher,
RandAugment, random erasing, Mixup and CutMix, AdamW, `ModelEmaV3`, bf16 autocast; the model compiled whole;
its learning rate follows a cosine over the same time, which counts from before the model is built, as ours.
Of its weights and their average, which lags behind in a short run, the better on test counts.
The model is the one that `vitreous train` chooses for the data and the time.
"""

import argparse
import math
import os
import tempfile
import time
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from timm.data import Mixup, create_loader  # pyright: ignore[reportPrivateImportUsage]
from timm.loss import SoftTargetCrossEntropy
from timm.models.vision_transformer import VisionTransformer
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3  # pyright: ignore[reportPrivateImportUsage]
from torch.utils.data import Dataset

import vitreous
from vitreous import console, parallel
from vitreous.config import TrainConfig
from vitreous.data import Split, open_data
from vitreous.models.architecture import ViTConfig
from vitreous.training import defaults, setup
from vitreous.training.plan import Plan, seconds

RESERVE = 0.06
"""Part of the time that is left for the evaluation on the test split."""


class Pictures(Dataset[tuple[Any, int]]):
    """A split as timm's loader expects it: Pillow images and labels, with the transform that it sets."""

    transform: Any = None

    def __init__(self, split: Split) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.split.read(index).convert("RGB")
        assert isinstance(image, Image.Image)
        return self.transform(image), int(self.split.targets[index])


def loader(split: Split, config: ViTConfig, device: torch.device, batch: int, training: bool) -> Any:
    """Return timm's loader, with its defaults for training from scratch."""
    # Magnitude 7: at 9, timm may posterize to 0 bits, which newer Pillows refuse.
    augmented: dict[str, Any] = {"auto_augment": "rand-m7-mstd0.5-inc1", "re_prob": 0.25, "re_mode": "pixel"}
    return create_loader(
        Pictures(split),
        input_size=(config.in_channels, *config.image_size),
        batch_size=batch,
        is_training=training,
        use_prefetcher=device.type == "cuda",
        num_workers=min(16, os.cpu_count() or 1) if device.type == "cuda" else 0,
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        crop_pct=1.0,
        device=device,
        **(augmented | {"scale": (0.5, 1.0)} if training else {}),
    )


def peer_model(config: ViTConfig) -> VisionTransformer:
    """Return timm's model of the same shape."""
    return VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size[0],
        num_classes=config.num_classes,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=config.mlp_width / config.width,
        class_token=False,
        global_pool="avg",
        fc_norm=False,
        drop_path_rate=config.drop_path,
    )


def train_peer(plan: Plan, splits: dict[str, Split], device: torch.device, batch: int) -> dict[str, float]:
    """Train with timm's parts until the time is over; return images/s and the accuracy on test."""
    started, budget, config = time.monotonic(), plan.time_budget, plan.architecture
    assert budget is not None and isinstance(config, ViTConfig)
    model = peer_model(config).to(device)
    torch.backends.cuda.enable_cudnn_sdp(False)  # with it a run ended at chance, as after NaN
    run: Any = torch.compile(model) if device.type == "cuda" else model
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    average = ModelEmaV3(model, decay=plan.ema)
    mixup = Mixup(
        mixup_alpha=0.8, cutmix_alpha=1.0, prob=0.8, label_smoothing=0.1, num_classes=config.num_classes
    )
    images = loader(splits["train"], config, device, batch, training=True)
    until, peak, seen, first = (1 - RESERVE) * budget, 1e-3 * math.sqrt(batch / 256), 0, 0.0
    criterion, share = SoftTargetCrossEntropy(), 0.0
    while share < 1.0:
        for pixels, labels in images:
            mixed, targets = mixup(pixels.to(device), labels.to(device))
            share = (time.monotonic() - started) / until
            for group in optimizer.param_groups:
                group["lr"] = peak * min(share / 0.05, 0.5 + 0.5 * math.cos(math.pi * min(1.0, share)))
            with torch.autocast(device.type, torch.bfloat16):
                loss = criterion(run(mixed), targets)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            average.update(model)
            if not first:
                parallel.synchronize(device)
                first = time.monotonic()
            else:
                seen += len(pixels)
            if share >= 1.0:
                break
    parallel.synchronize(device)
    console.note(f"timm: loss {loss.item():.3f} at the end")
    pace = seen / max(1e-9, time.monotonic() - first)
    test = loader(splits["test"], config, device, batch, training=False)
    right = max(correct(each, test, device) for each in (average.module, model))
    return {
        "images_per_second": pace,
        "accuracy": right / len(splits["test"]),
        "seconds": time.monotonic() - started,
        "start_seconds": first - started,
    }


@torch.inference_mode()
def correct(model: torch.nn.Module, images: Any, device: torch.device) -> int:
    """Return how many images of a loader the model gets right."""
    model.eval()
    return sum(
        int((model(pixels.to(device)).argmax(1) == labels.to(device)).sum()) for pixels, labels in images
    )


def main() -> None:
    """Train both, one after the other, and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--time-budget", default="2m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int)
    options = parser.parse_args()
    device, dataset = parallel.choose_device(options.device), open_data(options.data)
    settings = TrainConfig(
        time_budget=options.time_budget, device=options.device, batch_size=options.batch_size
    )
    plan = defaults.choose(settings, setup.measure_facts(dataset, parallel.World(device=device)))
    theirs = train_peer(plan, dict(dataset.splits), device, plan.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        ours = vitreous.train(
            options.data,
            time_budget=options.time_budget,
            device=options.device,
            batch_size=options.batch_size,
            out=f"{folder}/run",
        )
    names = (f"timm {timm.__version__}", "vitreous")
    pairs = [
        ("images/s", theirs["images_per_second"], ours.images_per_second, ",.0f"),
        ("test accuracy", theirs["accuracy"], ours.test.accuracy, ".2%"),
        ("seconds", theirs["seconds"], ours.seconds, ".1f"),
        ("of it before the first step", theirs["start_seconds"], ours.start_seconds, ".1f"),
    ]
    console.table(["", *names], [[what, f"{a:{form}}", f"{b:{form}}"] for what, a, b, form in pairs])
    console.note(f"{seconds(options.time_budget):.0f} s, batch {plan.batch_size}, numpy {np.__version__}")


if __name__ == "__main__":
    main()
