"""Options that several experiments share, by scale; none is left to be chosen automatically, so that runs
differ only in what an experiment varies."""

from typing import Any

SMALL: dict[str, Any] = {
    "model": "ViT-Ti/16",
    "initialization": "paper",
    "optimizer": "adamw",
    "batch_size": 64,
    "lr": 2e-3,
    "weight_decay": 0.05,
    "augment": "none",
    "label_smoothing": 0.0,
    "ema": 0.0,
    "precision": "float32",
}
"""Minutes on two cores: small images, few epochs, nothing that hides a difference."""

SMALL_SHAPE: dict[str, Any] = {
    "width": 64,
    "depth": 2,
    "heads": 4,
    "mlp_width": 128,
    "pooling": "cls",
    "class_token": True,
}
"""A model for them: the lecture's, with half of its MLP width."""

GPU: dict[str, Any] = {
    "model": "ViT-Ti/16",
    "initialization": "paper",
    "optimizer": "adamw",
    "batch_size": 512,
    "lr": 1e-3,
    "weight_decay": 0.05,
    "augment": "medium",
}
"""Minutes on one GPU: CIFAR and the like, from scratch."""

ADAM: dict[str, Any] = {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "linear", "clip": 1.0}
PAPER: dict[str, Any] = {
    "initialization": "paper",
    "batch_size": 4096,
    "warmup": 0.03,
    "label_smoothing": 0.0,
    "ema": 0.0,
    "augment": "light",
}
"""Appendix B.1, table 3, pre-training: batch 4096, 10,000 steps of warm-up, Inception crops and flips. `ADAM`
has what it uses on JFT-300M; on ImageNet-21k lr 1e-3 and decay 0.03, on ImageNet lr 3e-3, cosine, 0.3."""

FINE: dict[str, Any] = {
    "recipe": "none",
    "optimizer": "adamw",
    "batch_size": 64,
    "lr": 5e-4,
    "weight_decay": 0.05,
    "augment": "none",
    "label_smoothing": 0.0,
    "ema": 0.0,
}
"""Fine-tuning of models trained with `SMALL`: a quarter of its learning rate."""

UNLABELLED: dict[str, Any] = {"model": "ViT-Ti/16", "initialization": "paper", "batch_size": 64, "lr": 2e-3}
"""Pre-training without labels of the same small model."""
