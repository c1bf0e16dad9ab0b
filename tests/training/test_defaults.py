"""The choices: sensible for all data and hardware, explained, overridden by the user, written down."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitreous.config import TrainConfig
from vitreous.data.augment import resolve
from vitreous.errors import ModelError, OptionError
from vitreous.models import zoo
from vitreous.models.architecture import ResNetConfig, ViTConfig
from vitreous.training import setup
from vitreous.training.defaults import choose
from vitreous.training.facts import Facts, Pretrained
from vitreous.training.plan import Plan, seconds

DIGITS = Facts(
    images=1258, classes=10, multilabel=False, size=(8, 8), channels=1, device="cpu", bf16=True, cores=2
)
CIFAR = replace(DIGITS, images=45_000, size=(32, 32), channels=3, device="cuda")
PHOTOS = replace(DIGITS, images=6_552, classes=102, size=(500, 667), channels=3)


def vit(plan: Plan) -> ViTConfig:
    assert isinstance(plan.architecture, ViTConfig)
    return plan.architecture


def test_every_choice_has_its_reason() -> None:
    plan = choose(TrainConfig(), DIGITS)
    named = {"model", "image_size", "patch_size", "batch_size", "epochs", "lr", "weight_decay", "ema"}
    named |= {"initialization", "optimizer"}
    assert named | {"loss", "label_smoothing", "augment", "precision"} == plan.reasons.keys()
    assert all(plan.reasons.values())
    assert vit(plan).num_classes == 10 and vit(plan).in_channels == 1
    assert vit(plan).image_size == plan.preprocessing.image_size == (8, 8)
    assert plan.preprocessing.channels == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("epochs", 7), ("batch_size", 32), ("lr", 0.5), ("weight_decay", 0.3), ("ema", 0.0)],
        *[("label_smoothing", 0.0), ("precision", "bf16"), ("loss", "sigmoid")],
    ],
)
def test_the_user_has_the_last_word(option: str, value: Any) -> None:
    plan = choose(TrainConfig(**{option: value}), DIGITS)
    assert getattr(plan, option) == value and option not in plan.reasons


def test_augmentation_is_a_preset_with_parts_of_ones_own() -> None:
    """The plan holds it in full; `strong` is what the data makes of it: the digits may not be mirrored."""
    strong = choose(TrainConfig(augment="strong"), replace(DIGITS, mirror=False))
    assert strong.augment == resolve("strong", mirror=False, size=(8, 8), channels=1, resize="cover")
    assert strong.augment != choose(TrainConfig(), DIGITS).augment and "augment" not in strong.reasons
    assert strong.augment.flip == 0.0
    one = choose(TrainConfig(augment="strong", mixup=0.25), replace(DIGITS, mirror=False))
    assert one.augment == replace(strong.augment, mixup=0.25)
    whole = choose(TrainConfig(augment="light", crop_scale=(0.0, 0.0)), CIFAR)
    assert whole.augment.crop_scale is None
    with pytest.raises(OptionError, match="--crop-scale cuts images and --fit pad shows all of them"):
        choose(TrainConfig(fit="pad", crop_scale=(0.5, 1.0)), CIFAR)


def test_models_and_sizes_by_name() -> None:
    plan = choose(TrainConfig(model="ViT-Ti/16", image_size=(64, 96), drop_path=0.2), CIFAR)
    assert (vit(plan).width, vit(plan).image_size, vit(plan).drop_path) == (192, (64, 96), 0.2)
    assert vit(plan).num_classes == 10 and "model" not in plan.reasons
    assert vit(choose(TrainConfig(model="ViT-Ti/16"), CIFAR)).image_size == (224, 224)
    small = choose(TrainConfig(image_size=(16,), patch_size=(8,)), CIFAR)
    assert vit(small).image_size == (16, 16) and vit(small).grid == (2, 2)
    bit = choose(TrainConfig(model="BiT-R50x1"), CIFAR)
    assert isinstance(bit.architecture, ResNetConfig) and bit.architecture.num_classes == 10
    with pytest.raises(ModelError, match="unknown model"):
        choose(TrainConfig(model="vit_enormous"), CIFAR)


def test_hardware_and_data_matter() -> None:
    on_gpu, on_cpu = choose(TrainConfig(), CIFAR), choose(TrainConfig(), replace(CIFAR, device="cpu"))
    assert vit(on_gpu).width > vit(on_cpu).width
    assert (on_gpu.epochs or 0) > (on_cpu.epochs or 0)
    assert on_gpu.precision == on_cpu.precision == "bf16"
    small = choose(TrainConfig(), DIGITS)
    assert small.precision == "float32" and "16 patches of width 64" in small.reasons["precision"]
    assert choose(TrainConfig(), replace(CIFAR, bf16=False)).precision == "float32"
    big = choose(TrainConfig(model="ViT-B/16"), replace(CIFAR, device="cpu"))
    assert big.precision == "bf16"
    photos = replace(CIFAR, size=(224, 224))
    many = replace(photos, images=2_000_000)
    assert choose(TrainConfig(), many).batch_size > choose(TrainConfig(), photos).batch_size
    several = choose(TrainConfig(), replace(CIFAR, multilabel=True))
    assert several.loss == "sigmoid" and several.label_smoothing == 0.0
    with pytest.raises(OptionError, match="these images have several labels: add --loss sigmoid"):
        choose(TrainConfig(loss="softmax"), replace(CIFAR, multilabel=True))
    assert choose(TrainConfig(optimizer="sgd"), CIFAR).weight_decay == 0.0  # the paper's fine-tuning
    photos = vit(choose(TrainConfig(), replace(PHOTOS, device="cuda")))
    assert photos.patch_size == (16, 16) and max(photos.image_size) <= 224
    wide = vit(choose(TrainConfig(), replace(CIFAR, size=(28, 40))))
    assert wide.image_size == (40, 60)
    assert vit(choose(TrainConfig(time_budget="1m"), replace(CIFAR, size=(28, 40)))).image_size == (28, 40)


@pytest.mark.parametrize(
    ("side", "patch", "on_cpu", "on_gpu"),
    [
        *[(7, 1, 7, 7), (8, 2, 8, 8), (23, 2, 24, 24), (24, 4, 24, 36), (39, 4, 40, 40), (47, 4, 48, 48)],
        *[
            (16, 2, 16, 24),
            (32, 4, 32, 48),
            (48, 8, 48, 72),
            (64, 8, 64, 96),
            (65, 8, 64, 64),
            (95, 8, 64, 96),
        ],
        *[(96, 16, 64, 96), (129, 16, 64, 128), (224, 16, 64, 224), (300, 16, 64, 224)],
    ],
)
def test_patches_and_sizes_by_the_images(side: int, patch: int, on_cpu: int, on_gpu: int) -> None:
    for device, expected in (("cpu", on_cpu), ("cuda", on_gpu)):
        config = vit(choose(TrainConfig(), replace(CIFAR, size=(side, side), device=device)))
        wanted = min(patch, 8) if device == "cpu" else patch  # no image is larger there than 64 pixels
        assert (config.patch_size, config.image_size) == ((wanted, wanted), (expected, expected))


def test_a_size_that_is_asked_for_sets_the_other_on_a_cpu() -> None:
    photographs = replace(CIFAR, size=(300, 400), device="cpu")
    for asked in ({"patch_size": (16,)}, {"image_size": (128,)}):
        config = vit(choose(TrainConfig(**asked), photographs))
        assert (config.patch_size, config.image_size) == ((16, 16), (128, 128))
    fine = vit(choose(TrainConfig(patch_size=(4,)), photographs))
    assert fine.image_size == (64, 64)


def test_muon_is_for_few_steps_from_scratch() -> None:
    """On a CPU, unless the model is trained already, or another is asked for."""
    small = replace(CIFAR, device="cpu", size=(16, 20))
    plan = choose(TrainConfig(), small)
    assert plan.optimizer == "muon" and "few steps" in plan.reasons["optimizer"]
    assert choose(TrainConfig(), replace(small, device="mps")).optimizer == "adamw"
    assert choose(TrainConfig(optimizer="adam"), small).optimizer == "adam"
    for named in ("resnetv2_50x1_bit", "ViT-Ti/16"):
        assert choose(TrainConfig(model=named), small).optimizer == "adamw"
    trained = Pretrained(architecture=plan.architecture, preprocessing=plan.preprocessing)
    assert choose(TrainConfig(), small, trained).optimizer == "adamw"


@pytest.mark.parametrize(
    ("images", "device", "shape", "batch", "epochs", "lr", "ema"),
    [
        *[(249, "cpu", (64, 4, 4), 64, 300, 3e-3, 0.99), (249, "cuda", (192, 9, 3), 64, 300, 5e-4, 0.99)],
        *[(9_999, "cpu", (64, 4, 4), 64, 8, 3e-3, 0.99), (9_999, "cuda", (192, 9, 3), 64, 300, 5e-4, 0.99)],
        (10_000, "cpu", (64, 4, 4), 128, 8, 3e-3, 0.99),
        (10_000, "cuda", (192, 9, 3), 256, 300, 1e-3, 0.99),
        (20_000, "cpu", (96, 6, 4), 128, 5, 3e-3, 0.99),
        (20_000, "cuda", (384, 9, 6), 512, 300, 2**0.5 * 1e-3, 0.99),
        (50_000, "cuda", (384, 9, 6), 512, 200, 2**0.5 * 1e-3, 0.999),
        (200_000, "cuda", (384, 12, 6), 1024, 50, 2e-3, 0.999),
        (9_000_000, "cuda", (384, 12, 6), 1024, 5, 2e-3, 0.999),
    ],
)
def test_sizes_and_lengths_by_the_number_of_images(
    images: int, device: str, shape: tuple[int, ...], batch: int, epochs: int, lr: float, ema: float
) -> None:
    """The rules of docs/train.md, at their edges."""
    plan = choose(TrainConfig(), replace(CIFAR, images=images, device=device, size=(96, 96)))
    config = vit(plan)
    assert (config.width, config.depth, config.heads) == shape and config.mlp_width == 4 * shape[0]
    assert (plan.batch_size, plan.epochs, plan.ema) == (batch, epochs, ema)
    assert plan.lr == pytest.approx(lr)
    assert (plan.warmup, plan.clip, plan.layer_decay) == (0.1, 1.0, 1.0)
    assert (plan.weight_decay, plan.label_smoothing) == (0.05, 0.1)


@pytest.mark.parametrize(
    ("images", "budget", "width", "batch", "lr", "ema"),
    [
        (47_500, "2m", 192, 1024, 3e-3, 0.998),
        (47_500, "10m", 384, 1024, 3e-3 * 0.5**0.5, 0.999),
        (47_500, None, 384, 1024, 3e-3 * 0.5**0.5, 0.999),
        (10_000, "10m", 192, 1024, 3e-3 * 0.5**0.5, 0.999),
    ],
)
def test_small_images_that_a_gpu_sees_often(
    images: int, budget: str | None, width: int, batch: int, lr: float, ema: float
) -> None:
    """The recipe of docs/train.md, which gives way to every option, and to an optimizer as a whole."""
    facts = replace(CIFAR, images=images)
    plan = choose(TrainConfig(time_budget=budget), facts)
    assert (vit(plan).width, plan.batch_size, plan.ema) == (width, batch, ema)
    assert vit(plan).depth == (7 if budget == "2m" else 9)
    assert vit(plan).image_size == ((32, 32) if budget == "2m" else (48, 48)) and vit(plan).patch_size == (
        4,
        4,
    )
    wide = vit(choose(TrainConfig(time_budget=budget), replace(facts, size=(32, 24))))
    assert wide.image_size == ((32, 24) if budget == "2m" else (48, 36))
    for fixed in ({"patch_size": (4,)}, {"image_size": (32,)}):
        assert vit(choose(TrainConfig(**fixed), facts)).image_size == (32, 32)
    assert (plan.optimizer, plan.weight_decay, plan.warmup) == ("muon", 0.1, 0.05)
    assert plan.lr == pytest.approx(lr) and vit(plan).drop_path == (0.2 if width == 384 else 0.0)
    usual = resolve("small", mirror=True, size=(32, 32), channels=3, resize="cover")
    assert plan.augment == (replace(usual, unmixed=0.02) if width == 384 else usual)
    assert plan.reasons["lr"] == "recipe for small images on a GPU"
    assert choose(TrainConfig(lr=1e-4, augment="light"), facts).lr == 1e-4
    assert choose(TrainConfig(optimizer="adamw"), facts).weight_decay == 0.05
    assert choose(TrainConfig(batch_size=512), facts).lr == pytest.approx(1.5e-3)
    for other in ({"device": "cpu"}, {"size": (96, 96)}, {"images": 9_999}, {"images": 200_000}):
        assert choose(TrainConfig(), replace(facts, **other)).weight_decay == 0.05


def test_a_plain_vit_starts_mimetic_from_scratch() -> None:
    """The rule of docs/train.md; what has no such start is refused where it was asked for."""
    assert choose(TrainConfig(), PHOTOS).initialization == "mimetic"
    assert choose(TrainConfig(model="ViT-S/16"), PHOTOS).initialization == "mimetic"
    assert choose(TrainConfig(initialization="paper"), PHOTOS).initialization == "paper"
    assert choose(TrainConfig(), DIGITS).initialization == "mimetic"
    for side, start in ((24, "paper"), (32, "mimetic")):
        plan = choose(TrainConfig(image_size=(side,), patch_size=(8,)), PHOTOS)
        assert plan.initialization == start
    for other in ("BiT-R50x1", "R50+ViT-B/16"):
        assert choose(TrainConfig(model=other), PHOTOS).initialization == "paper"
    for start in ("mimetic", "torch"):
        with pytest.raises(OptionError, match=f"--initialization {start} is for ViTs"):
            choose(TrainConfig(model="BiT-R50x1", initialization=start), PHOTOS)  # type: ignore[arg-type]
    plan = choose(TrainConfig(), PHOTOS)
    trained = Pretrained(architecture=plan.architecture, preprocessing=plan.preprocessing)
    assert choose(TrainConfig(), PHOTOS, trained).initialization == "paper"
    with pytest.raises(OptionError, match="is for training from scratch"):
        choose(TrainConfig(initialization="mimetic"), PHOTOS, trained)


def test_other_choices_by_the_images() -> None:
    assert vit(choose(TrainConfig(), replace(CIFAR, size=(20, 30)))).image_size == (20, 30)
    assert vit(choose(TrainConfig(), replace(CIFAR, size=(20, 32)))).image_size == (20, 20)  # too long
    for side, device, preset in ((15, "cpu", "mix"), (16, "cpu", "light"), (65, "cuda", "medium")):
        plan = choose(TrainConfig(), replace(CIFAR, size=(side, side), device=device))
        assert plan.reasons["augment"].startswith(f"{preset}: ")
        assert plan.augment == resolve(
            preset, mirror=True, size=(side, side), channels=3, resize=plan.preprocessing.resize
        )
    assert choose(TrainConfig(optimizer="sgd"), CIFAR).lr == pytest.approx(0.03 * 2**0.5)
    wide = choose(TrainConfig(model="ViT-Ti/16"), replace(CIFAR, device="cpu"))
    assert wide.lr == pytest.approx(1e-3 * 0.5**0.5) and wide.precision == "bf16"  # width 192


@given(
    images=st.integers(1, 20_000_000),
    height=st.integers(1, 5000),
    width=st.integers(1, 5000),
    classes=st.integers(1, 20_000),
    device=st.sampled_from(["cpu", "cuda", "mps"]),
    bf16=st.booleans(),
)
def test_any_data_gets_a_model_that_can_be_built(
    images: int, height: int, width: int, classes: int, device: str, bf16: bool
) -> None:
    facts = replace(
        CIFAR, images=images, size=(height, width), classes=classes, device=device, bf16=bf16, cores=1
    )
    plan = choose(TrainConfig(), facts)
    config = vit(plan)
    assert 1 <= config.patches <= 400
    assert plan.epochs and 5 <= plan.epochs <= 300
    assert 0.0 < plan.lr < 0.01
    assert zoo.ViTConfig(**{**vars(config)}) == config  # nothing in it is refused
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_times_are_read() -> None:
    assert [seconds(text) for text in ("90", "90s", "10m", "1.5h", "2d")] == [90, 90, 600, 5400, 172800]
    for wrong in ("", "m", "-3s", "ten", "infs", "nan"):
        with pytest.raises(OptionError, match="is not understood"):
            seconds(wrong)
    with pytest.raises(OptionError, match="time '0s' is zero"):
        seconds("0s")
    plan = choose(TrainConfig(time_budget="10m"), CIFAR)
    assert plan.time_budget == 600.0 and plan.epochs is None
    with pytest.raises(OptionError, match="give one of them"):
        setup.check_options(TrainConfig(time_budget="10m", epochs=3))


PLANS = Path(__file__).parents[1] / "fixtures" / "plans.json"
SITUATIONS: dict[str, tuple[TrainConfig, Facts]] = {
    "digits on a CPU": (TrainConfig(), DIGITS),
    "photographs on a CPU": (TrainConfig(), PHOTOS),
    "many photographs on a CPU, for ten minutes": (
        TrainConfig(time_budget="10m"),
        replace(PHOTOS, images=60_000),
    ),
    "CIFAR on a GPU, for two minutes": (TrainConfig(time_budget="2m"), CIFAR),
    "CIFAR on a GPU": (TrainConfig(), CIFAR),
    "CIFAR on a GPU, by AdamW": (TrainConfig(optimizer="adamw"), CIFAR),
    "photographs on a GPU, by SGD": (TrainConfig(optimizer="sgd"), replace(PHOTOS, device="cuda")),
    "ImageNet on a GPU": (TrainConfig(), replace(PHOTOS, images=1_281_167, classes=1000, device="cuda")),
    "several labels": (TrainConfig(), replace(PHOTOS, multilabel=True)),
    "small patches of one's own": (
        TrainConfig(patch_size=(16,)),
        replace(PHOTOS, size=(5, 40), images=20_000),
    ),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_default_changes_on_purpose(situation: str) -> None:
    """All values of the plan, as docs/train.md explains them: whoever changes one changes `plans.json`."""
    plan = json.loads(json.dumps(choose(*SITUATIONS[situation]).to_json()))
    del plan["reasons"]
    assert plan == json.loads(PLANS.read_text())[situation]
