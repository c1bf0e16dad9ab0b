"""Tasks without labels: what is hidden, predicted, taught; against calculations that are not ours."""

import math
from typing import Any

import lightly.loss
import numpy as np
import pytest
import scipy.stats
import timm
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.test_vit import tiny
from vitreous.config import Preprocessing
from vitreous.data import Batch, SmallViews
from vitreous.data import draws as drawing
from vitreous.errors import OptionError
from vitreous.models.vit import VisionTransformer
from vitreous.objectives import dino, masked, patches
from vitreous.objectives.dino import Dino
from vitreous.objectives.mae import MaskedAutoencoder
from vitreous.objectives.masked import Masked

SETTINGS = Preprocessing(image_size=(16, 24), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))


def model(**changes: Any) -> VisionTransformer:
    return tiny(**{"num_classes": 0, **changes})


def batch(count: int = 5, views: int = 1, size: tuple[int, int] = (16, 24), **more: Any) -> Batch:
    torch.manual_seed(count + views)
    pixels = torch.rand(views * count, 3, *size)
    mean, std = (torch.tensor(values)[:, None, None] for values in (SETTINGS.mean, SETTINGS.std))
    words = drawing.words(3, 1, torch.arange(views * count), 0)
    images = (pixels - mean) / std
    return Batch(images, torch.zeros(count).long(), torch.arange(count), views=views, words=words, **more)


# -- masked patch prediction ---------------------------------------------------------------------------------


def test_half_is_corrupted_and_of_that_most_is_hidden() -> None:
    """By counting: 50 % of 100 patches; of these 80 % hidden, 10 % exchanged, 10 % left as they are."""
    words = drawing.words(0, 0, torch.arange(2000), 0)
    shown = Batch(torch.empty(2000, 0), torch.empty(2000), torch.arange(2000), words=words)
    order, other = masked.drawn(shown, 100)
    corrupted, hidden, exchanged = masked.corruption(order)
    assert corrupted.sum(1).unique().tolist() == [50]
    assert hidden.sum(1).unique().tolist() == [40] and exchanged.sum(1).unique().tolist() == [5]
    assert not (hidden & exchanged).any() and (corrupted | ~(hidden | exchanged)).all()
    for chosen, share in ((corrupted, 0.5), (hidden, 0.4), (exchanged, 0.05)):  # every patch alike
        assert (chosen.float().mean(0) - share).abs().max() < 0.06
    assert (other != torch.arange(100)).all() and other.unique().numel() == 100
    again = masked.drawn(shown.part(700, 701), 100)
    assert torch.equal(again[0], order[700:701]) and torch.equal(again[1], other[700:701])
    assert len({tuple(row) for row in order[:100].tolist()}) == 100


@pytest.mark.parametrize("target", ["color", "small", "pixels"])
def test_only_corrupted_patches_have_a_loss(target: masked.Target) -> None:
    task, shown = Masked(model(), SETTINGS, target=target), batch()
    order, tokens = task.see(shown)
    tokens = tokens.detach().requires_grad_()
    task.see = lambda _: (order, tokens)  # type: ignore[method-assign]
    task(shown)[0].backward()
    assert tokens.grad is not None
    assert torch.equal(tokens.grad.abs().sum(-1) > 0, masked.corruption(order)[0])


def test_what_is_hidden_is_not_seen() -> None:
    """What a hidden patch shows can't change any prediction; what a kept one shows does."""
    task, shown = Masked(model(), SETTINGS).eval(), batch(1)
    order, _ = masked.drawn(shown, 6)
    hidden, kept = int((order == 0).int().argmax()), int((order == 5).int().argmax())
    before = task.see(shown)[1]
    for patch, same in ((hidden, True), (kept, False)):
        cells = patches.cut(shown.images, (8, 8)).clone()
        cells[0, patch] += 1.0
        changed = batch(1)
        changed.images = patches.joined(cells, task.model.config)
        assert torch.equal(task.see(changed)[1], before) == same


def test_colours_are_those_of_a_calculation_by_hand() -> None:
    pixels = np.zeros((1, 1, 3, 8, 8))
    pixels[0, 0, 0] = 1.0  # red: 7 of 0 to 7
    pixels[0, 0, 1, :4] = 0.6  # green: 0.6 in the upper half, 0 below: 0.3 in the mean, 2.4
    pixels[0, 0, 2] = 0.99  # blue: 7.92
    cell = torch.from_numpy(pixels)
    assert masked.colors(cell, 1).tolist() == [[[7 * 64 + 2 * 8 + 7]]]
    assert masked.colors(cell, 4)[0, 0].tolist() == [7 * 64 + 4 * 8 + 7] * 8 + [7 * 64 + 0 * 8 + 7] * 8
    assert masked.colors(torch.ones(1, 1, 3, 2, 2), 1).item() == 511
    assert masked.colors(torch.full((1, 1, 1, 2, 2), 0.5), 1).item() == 4  # gray: 8 levels
    np.testing.assert_allclose(masked.middle_of(torch.tensor(471), 3), [7.5 / 8, 2.5 / 8, 7.5 / 8])


def test_the_targets_are_of_pixels_as_they_look() -> None:
    """Not of normalised ones: the loss of a certain, right answer is zero."""
    task, shown = Masked(model(), SETTINGS, target="color"), batch()
    cells = patches.cut(shown.images, (8, 8))
    looks = (cells.numpy() * np.array(SETTINGS.std)[:, None, None]) + np.array(SETTINGS.mean)[:, None, None]
    red, green, blue = np.floor(looks.mean((3, 4)) * 8).astype(int).transpose(2, 0, 1)
    certain = F.one_hot(torch.from_numpy(red * 64 + green * 8 + blue), 512).float() * 100
    losses, right = task.losses(certain, cells)
    assert losses.max() < 1e-6 and right is not None and right.min() == 1.0
    pixels = Masked(model(), SETTINGS, target="pixels")
    exact = cells.flatten(2)
    assert pixels.losses(exact, cells)[0].max() == 0.0
    assert pixels.losses(exact + 2.0, cells)[0].allclose(torch.tensor(4.0))


def test_patches_are_cut_as_the_model_cuts_them_and_put_together_again() -> None:
    images, vit = batch().images, model()
    cells = patches.cut(images, (8, 8))
    assert torch.equal(patches.joined(cells, vit.config), images)
    weight, bias = vit.patch_embed.proj.weight, vit.patch_embed.proj.bias
    torch.testing.assert_close(cells.flatten(2) @ weight.flatten(1).T + bias, vit.patch_embed(images))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"pooling": "map"}, "pools by attention"), ({"frames": 2, "tubelet": 1}, "videos")],
)
def test_models_from_which_patches_cannot_be_hidden(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        patches.plain(model(**changes))


def test_one_patch_is_too_few_to_hide_half_of_them() -> None:
    settings = Preprocessing(image_size=(8, 8), mean=SETTINGS.mean, std=SETTINGS.std)
    with pytest.raises(OptionError, match="masked needs 2 patches or more: use smaller patches or larger"):
        Masked(model(image_size=(8, 8)), settings)
    task = Masked(model(image_size=(8, 16)), settings)
    assert task(batch(size=(8, 16)))[0].isfinite()


# -- masked autoencoders -------------------------------------------------------------------------------------


def test_the_encoder_sees_exactly_the_visible_patches() -> None:
    """By counting operations: those of the blocks are of a fourth of the patches, and of the class token."""
    vit = model(image_size=(32, 32), patch_size=(4, 4))
    task = MaskedAutoencoder(vit, Preprocessing(image_size=(32, 32)))
    assert task.seen == 16

    def operations(tokens: Tensor) -> int:
        with FlopCounterMode(display=False) as counter:
            vit.run_blocks(tokens, vit.geometry())
        return counter.get_total_flops()

    lengths: list[int] = []
    vit.blocks[0].register_forward_pre_hook(lambda _, given: lengths.append(given[0].shape[1]))
    task.paint(batch(2, size=(32, 32)))
    assert lengths == [16 + vit.config.prefix]
    whole, part = (operations(torch.zeros(2, count, vit.config.width)) for count in (65, 17))
    assert part < 0.27 * whole


def test_nothing_of_a_hidden_patch_reaches_what_is_painted() -> None:
    task, shown = MaskedAutoencoder(model(), SETTINGS, hidden=0.5).eval(), batch(1)
    before, places = task.paint(shown)
    for place, same in ((5, True), (0, False)):
        cells = patches.cut(shown.images, (8, 8)).clone()
        cells[0, int((places[0] == place).int().argmax())] += 1.0
        changed = batch(1)
        changed.images = patches.joined(cells, task.model.config)
        assert torch.equal(task.paint(changed)[0], before) == same


def test_what_was_shuffled_comes_back_to_its_place() -> None:
    tokens = torch.randn(4, 10, 3)
    places = drawing.shuffled(10, drawing.MASK, drawing.words(0, 0, torch.arange(4), 0))
    order = places.argsort(1)
    shuffled = tokens.gather(1, order[..., None].expand(-1, -1, 3))
    assert not torch.equal(shuffled, tokens) and torch.equal(patches.taken(shuffled, places), tokens)


def test_the_loss_is_of_hidden_patches_normalised_by_themselves() -> None:
    task, shown = MaskedAutoencoder(model(), SETTINGS, hidden=0.5), batch()
    painted, places = task.paint(shown)
    pixels = patches.cut(shown.images, (8, 8)).flatten(2).numpy()
    mean, variance = pixels.mean(-1, keepdims=True), pixels.var(-1, ddof=1, keepdims=True)
    error = ((painted.detach().numpy() - (pixels - mean) / np.sqrt(variance + 1e-6)) ** 2).mean(-1)
    expected = np.mean([row[place >= 3].mean() for row, place in zip(error, places.numpy(), strict=True)])
    assert task(shown)[0].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("positions", ["learned", "learned2d", "sincos2d", "rope", "none"])
def test_every_kind_of_position_goes_with_its_patch(positions: str) -> None:
    """With everything visible the encoder gives what it gives without hiding, whatever the order."""
    vit = model(positions=positions).eval()
    task, shown = MaskedAutoencoder(vit, SETTINGS), batch()
    assert shown.words is not None
    task.seen = vit.config.patches
    tokens: list[Tensor] = []
    task.decoder.forward = lambda found, *_: tokens.append(found) or found.new_zeros(5, 6, 192)  # type: ignore
    _, places = task.paint(shown)
    kept = places.argsort(1)
    expected = vit.forward_features(shown.images)
    prefix = vit.config.prefix
    ordered = expected[:, prefix:].gather(1, kept[..., None].expand(-1, -1, vit.config.width))
    torch.testing.assert_close(tokens[0][:, prefix:], ordered)
    torch.testing.assert_close(tokens[0][:, :prefix], expected[:, :prefix])


def test_its_encoder_is_a_plain_vit_to_timm() -> None:
    vit = model(image_size=(32, 32), patch_size=(16, 16), width=192, depth=2, heads=3, mlp_width=768)
    task, shown = MaskedAutoencoder(vit, Preprocessing(image_size=(32, 32))), batch(4, size=(32, 32))
    task(shown)[0].backward()
    with torch.no_grad():
        for weight in vit.parameters():
            weight -= 0.1 * weight.grad if weight.grad is not None else 0.0
    about: dict[str, Any] = {"img_size": 32, "depth": 2, "num_classes": 0}
    theirs = timm.create_model("vit_tiny_patch16_224", **about).eval()
    theirs.load_state_dict(vit.state_dict())
    torch.testing.assert_close(
        theirs.forward_features(shown.images), vit.eval().forward_features(shown.images), atol=1e-5, rtol=1e-5
    )


# -- self-distillation ---------------------------------------------------------------------------------------


def distilling(**changes: Any) -> Dino:
    local = SmallViews(3, (8, 16), (0.2, 0.5))
    torch.manual_seed(0)
    return Dino(model(**changes), SETTINGS, prototypes=20, local=local)


def several(count: int = 4) -> Batch:
    return batch(count, views=2, small=torch.randn(3 * count, 3, 8, 16))


def test_the_loss_and_the_centre_are_lightlys() -> None:
    """Over three steps, in which the centre moves."""
    task = distilling().train()
    theirs = lightly.loss.DINOLoss(output_dim=20, teacher_temp=0.05, student_temp=0.1)
    for step in range(3):
        task.before_step(0.5)
        task.temperature.fill_(0.05)
        shown = several(4 + step)
        taught, answered = task.teach(shown), task.answer(shown)
        expected = theirs(list(taught), list(answered), teacher_temp=0.05)
        task.before_step(0.5)  # as a step that is tried again: what was noted above does not count
        task.temperature.fill_(0.05)
        assert task(shown)[0].item() == pytest.approx(expected.item(), rel=1e-5)
        task.after_update(step, None)
        torch.testing.assert_close(task.center, theirs.center.flatten())
    assert task.center.abs().max() > 0


def test_parts_of_a_batch_make_the_same_centre() -> None:
    whole, parts, shown = distilling().train(), distilling().train(), several(6)
    for task, given in ((whole, [shown]), (parts, shown.parts(4))):
        task.before_step(0.0)
        for part in given:
            task(part)
        task.after_update(0, None)
    torch.testing.assert_close(whole.center, parts.center)


def test_the_schedules_are_those_of_the_paper() -> None:
    task = distilling()
    found = {}
    for progress in (0.0, 0.075, 0.15, 0.5, 1.0):
        task.before_step(progress)
        found[progress] = (task.temperature.item(), task.momentum)
    temperatures = [each[0] for each in found.values()]
    assert temperatures == pytest.approx([0.04, 0.055, 0.07, 0.07, 0.07])
    expected = [1 - 0.004 * (math.cos(math.pi * progress) + 1) / 2 for progress in found]
    assert [each[1] for each in found.values()] == pytest.approx(expected)


def test_the_teacher_follows_and_nothing_else_moves_it() -> None:
    task = distilling().train()
    task.before_step(0.0)
    before = {name: value.clone() for name, value in task.teacher.named_parameters()}
    with torch.no_grad():
        for weight in [*task.model.parameters(), *task.head.parameters()]:
            weight += 1.0
    task(several())[0].backward()
    assert all(weight.grad is None for weight in task.teacher.parameters())
    centre = task.center.clone()
    task.after_update(0, torch.tensor(True))  # refused: nothing moves
    assert torch.equal(task.center, centre)
    for name, value in task.teacher.named_parameters():
        assert torch.equal(value, before[name])
    task.after_update(0, torch.tensor(False))
    for name, value in task.teacher.named_parameters():
        torch.testing.assert_close(value, before[name] + 0.004)
    assert not torch.equal(task.center, centre)
    assert task.kept is task.teacher["model"]


def test_prototypes_are_held_at_first() -> None:
    task = distilling().train()
    for progress, moves in ((0.0, False), (0.02, True)):
        task.zero_grad()
        task.before_step(progress)
        task(several())[0].backward()
        grad = task.head.prototypes.grad
        assert grad is not None and bool(grad.any()) == moves


@pytest.mark.parametrize("positions", ["learned", "learned2d", "sincos2d", "rope"])
def test_small_crops_are_seen_as_a_model_of_that_size_would(positions: str) -> None:
    task = distilling(positions=positions).eval()
    shown = several()
    assert shown.small is not None
    answers = task.answer(shown)[2:].flatten(0, 1)
    small = model(positions=positions).eval()
    small.load_state_dict(task.model.state_dict())
    small.set_image_size((8, 16))
    torch.testing.assert_close(answers, task.head(small.encode(shown.small)))


def test_a_teacher_without_opinion_is_trouble_but_not_at_first() -> None:
    task = distilling()
    figures = {"teacher_entropy": math.log(20), "mean_cosine": 0.5, "effective_rank": 9.0}
    figures["prototypes_used"] = 20.0
    task.before_step(0.1)
    assert task.trouble(figures) is None
    task.before_step(0.9)
    assert "all prototypes alike" in str(task.trouble(figures))
    assert task.trouble({**figures, "teacher_entropy": 2.0}) is None
    assert "the same answer" in str(task.trouble({**figures, "teacher_entropy": 0.1, "prototypes_used": 1.1}))
    assert "collapsed" in str(task.trouble({**figures, "teacher_entropy": 2.0, "mean_cosine": 0.9999}))
    few = {**figures, "teacher_entropy": 0.1, "prototypes_used": 1.1, "mean_cosine": 0.9999, "count": 2.0}
    assert task.trouble(few) is None  # two images may well have the same answer


def test_relative_positions_are_refused() -> None:
    with pytest.raises(OptionError, match="relative positions"):
        MaskedAutoencoder(model(positions="relative"), SETTINGS)
    with pytest.raises(OptionError, match="relative positions"):
        dino.able(model(positions="relative"))


def test_the_best_is_chosen_by_neighbours_or_without_labels() -> None:
    figures = {"knn": 0.4, "loss": 2.0, "effective_rank": 7.0}
    blind = {name: value for name, value in figures.items() if name != "knn"}
    assert Masked(model(), SETTINGS).score(figures) == [0.4, -2.0]
    assert Masked(model(), SETTINGS).score(blind) == [-2.0]
    assert distilling().score(figures) == [0.4] and distilling().score(blind) == [7.0]
    assert distilling().score({"loss": 2.0}) == [-2.0]  # of images that are too few to have a rank


def test_answers_are_spread_over_as_many_prototypes_as_their_entropy_says() -> None:
    answers = torch.rand(20, generator=torch.Generator().manual_seed(0)) * 40
    expected = math.exp(scipy.stats.entropy(answers.double().numpy()))
    assert dino.spread(answers).item() == pytest.approx(expected, rel=1e-5)
    few = torch.tensor([0.0, 3.0, 3.0, 0.0])
    assert dino.spread(few).item() == pytest.approx(2.0)
