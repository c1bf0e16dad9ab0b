"""How `--help` orders the options."""

GROUPS: dict[str, tuple[str, ...]] = {
    "main": (
        *(
            "job",
            "against",
            "objective",
            "model",
            "match",
            "init",
            "tune",
            "recipe",
            "method",
            "split",
            "image_size",
        ),
        *("epochs", "time_budget", "extend", "batch_size", "lr", "top", "out", "seed", "device"),
    ),
    "model": (
        "patch_size",
        "drop_path",
        "initialization",
        "keep_head",
        "fit_head",
        "heads",
        "layer",
        "pooling",
    ),
    "data and augmentation": (
        *("data_root", "train_limit", "balance", "augment", "resize", "crop_scale", "crop_ratio", "flip"),
        *(
            "randaugment",
            "three_augment",
            "color_jitter",
            "erase",
            "mixup",
            "cutmix",
            "mix_probability",
            "unmixed",
        ),
        *("repeats", "geometry", "color", "fit", "local_crops", "local_scale"),
    ),
    "optimisation": (
        *("optimizer", "find_lr", "schedule", "warmup", "weight_decay", "layer_decay", "clip", "ema"),
        *("loss", "label_smoothing", "binary_targets", "on_nan"),
        *("targets", "temperature", "teacher_share", "distance"),
        *("target", "mask_ratio", "decoder_width", "decoder_depth", "prototypes", "on_collapse"),
    ),
    "measurement": (
        *("metric", "shots", "seeds", "compare", "calibrate", "abstain", "restrict", "real_labels"),
        *("resolutions", "corruptions", "rounds", "profile"),
    ),
    "hardware": ("micro_batch", "workers", "precision", "pixels", "compile", "checkpointing", "shard"),
    "logging and file": (
        "save_every",
        "keep",
        "cache",
        "thumbnails",
        "preview",
        "tensorboard",
        "wandb",
        "mlflow",
    ),
}
"""The options of the large configs, as `--help` shows them: the few that matter first."""
