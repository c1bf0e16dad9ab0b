"""Token merging: what is joined, what stays the same, what it saves, and who is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import vitreous
from tests.conftest import digits_files, randomize
from vitreous import cli
from vitreous.errors import ModelError, OptionError
from vitreous.evaluate import summary
from vitreous.models.architecture import ViTConfig
from vitreous.models.merge import MergingTransformer, join, merging, pair_up
from vitreous.models.resnet import ResNet
from vitreous.models.vit import VisionTransformer
from vitreous.models.zoo import get_config
from vitreous.predict import Classifier
from vitreous.predict.engines import HalfTorch
from vitreous.predict.output import fingerprint

SHAPE: dict[str, Any] = {"image_size": (24, 24), "patch_size": (4, 4), "width": 32, "depth": 3, "heads": 4}
SHAPE |= {"mlp_width": 64, "num_classes": 5}


def model(**changes: Any) -> VisionTransformer:
    built = randomize(VisionTransformer(ViTConfig(**{**SHAPE, **changes})))
    assert isinstance(built, VisionTransformer)
    return built


def by_hand(keys: torch.Tensor, x: torch.Tensor, size: torch.Tensor, prefix: int, merge: int) -> Any:
    """ToMe's matching, one pair at a time: the tokens that are left, by the set of those they stand for."""
    patches = list(range(prefix, len(keys)))
    first, second = patches[::2], patches[1::2]
    unit = keys / keys.norm(dim=-1, keepdim=True)
    pairs = [max((float(unit[a] @ unit[b]), a, b) for b in second) for a in first]
    groups = {token: [token] for token in range(len(keys))}
    for _, a, b in sorted(pairs, reverse=True)[:merge]:
        groups[b] += groups.pop(a)
    return [
        (sorted(group), sum(x[t] * size[t] for t in group) / sum(size[t] for t in group))
        for _, group in sorted(groups.items())
    ]


@pytest.mark.parametrize(("prefix", "tokens", "merge"), [(1, 12, 3), (0, 9, 4), (2, 13, 1)])
def test_the_most_similar_pairs_become_their_mean(prefix: int, tokens: int, merge: int) -> None:
    keys, x, size = torch.randn(2, tokens, 6), torch.randn(2, tokens, 5), torch.rand(2, tokens, 1) + 1
    pairing = pair_up(keys, prefix, merge)
    joined, sizes = join(x, size, pairing)
    assert joined.shape == (2, tokens - merge, 5)
    torch.testing.assert_close(sizes.sum(1), size.sum(1))  # nothing is lost
    for image in range(2):
        expected = by_hand(keys[image], x[image], size[image], prefix, merge)
        assert len(expected) == tokens - merge
        for number, (group, mean) in enumerate(expected):
            torch.testing.assert_close(joined[image, number], mean)
            assert all(pairing.place[image, token] == number for token in group)
    assert (pairing.place[:, :prefix] == torch.arange(prefix)).all()


@pytest.mark.parametrize("changes", [{}, {"pooling": "gap", "class_token": False}, {"pooling": "map"}])
def test_patches_that_are_alike_can_be_merged_for_nothing(changes: dict[str, Any]) -> None:
    """A key that stands for two patches counts twice: as long as only equals are merged, nothing changes."""
    plain = model(positions="none", **changes)
    kinds = torch.randn(3, 3, 4, 4)[torch.randint(3, (2, 6, 6))]  # (B, rows, columns, C, P, P)
    images = kinds.permute(0, 3, 1, 4, 2, 5).reshape(2, 3, 24, 24)
    torch.testing.assert_close(merging(plain, 3)(images), plain(images), rtol=1e-4, atol=1e-5)


def test_it_changes_answers_a_little_and_saves_work() -> None:
    plain, images = model(), torch.randn(4, 3, 24, 24)
    expected = plain(images)
    differences, costs = [], []
    for merge in (0, 1, 4, 8):
        other = merging(plain, merge) if merge else plain
        with FlopCounterMode(display=False) as counter:
            found = other(images)
        differences.append((found - expected).abs().max().item())
        costs.append(counter.get_total_flops())
    assert differences[0] == 0 < differences[1]
    assert costs[0] > costs[1] > costs[2] > costs[3]


def test_every_patch_still_has_its_features() -> None:
    merged = merging(model(), 8)
    features = merged.forward_features(torch.randn(2, 3, 24, 24))
    assert features.shape == (2, 37, 32) and merged.feature_maps(features).shape == (2, 32, 6, 6)
    for image in features[:, 1:]:
        assert len(image.unique(dim=0)) == 36 - 3 * 8  # eight fewer after each of three blocks


def test_it_is_the_same_model() -> None:
    plain = model()
    merged = merging(plain, 2)
    assert isinstance(merged, MergingTransformer) and merged.config == plain.config and not merged.training
    for name, tensor in plain.state_dict().items():
        assert merged.state_dict()[name].data_ptr() == tensor.data_ptr()  # not a copy


def test_no_more_is_merged_than_there_is() -> None:
    assert merging(model(), 18)(torch.randn(1, 3, 24, 24)).isfinite().all()


@pytest.mark.parametrize("merge", [-1, 0, 19])
def test_a_number_that_does_not_fit_is_refused(merge: int) -> None:
    with pytest.raises(
        ModelError, match=f"{merge} patches of 36 can't be merged in a block: use 0 .none. to 18"
    ):
        merging(model(), merge)


def test_what_asks_for_places_is_refused() -> None:
    for positions in ("rope", "relative"):
        with pytest.raises(ModelError, match=f"a model with {positions} positions can't merge"):
            merging(model(positions=positions, class_token=True), 2)
    with pytest.raises(ModelError, match="padded"):
        merging(model(), 2)(torch.randn(1, 3, 24, 24), torch.ones(1, 36, dtype=torch.bool))
    tiny = get_config("BiT-R50x1", layers=(1,), stem_width=8, groups=8, image_size=(32, 32), num_classes=2)
    bit = ResNet(tiny)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="a ResNet has no tokens to merge"):
        merging(bit, 2)


def test_predict_and_evaluate_merge_as_many_as_they_are_told(
    digits: Classifier, digits_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = digits_files(tmp_path / "pictures", count=4)
    answers = {}
    for merge in ("0", "4"):
        arguments = ["predict", str(digits_file), *map(str, paths), "--json", "--merge", merge]
        assert cli.main(arguments) == 0
        answers[merge] = [each["probability"] for each in json.loads(capsys.readouterr().out)]
    assert answers["0"] == pytest.approx([each.probability for each in digits.predict(paths)])  # type: ignore[union-attr]
    merged = digits.merging(4).predict(paths)
    assert answers["4"] == pytest.approx([each.probability for each in merged])  # type: ignore[union-attr]
    assert answers["0"] != answers["4"]
    said = vitreous.predict(digits_file, list(map(str, paths)), merge=4)
    assert [each.probability for each in said] == pytest.approx(answers["4"])  # type: ignore[union-attr]
    plain = vitreous.evaluate(digits_file, "digits")
    found = vitreous.evaluate(digits_file, "digits", merge=4, compare=str(digits_file))
    assert found.merge == 4 and "merge" not in plain.to_dict()
    assert ("patches merged in each block", 4) in summary(found.to_dict())
    assert found.loss > plain.loss and found.compare.accuracy == plain.accuracy
    assert digits.merging(0) is digits
    halved = replace(digits, engine=HalfTorch(digits.model))  # it holds the model that merges nothing
    assert halved.merging(4).predict(paths) == merged
    assert fingerprint(digits.merging(4)) != fingerprint(digits)  # an --out file is not continued with it


def test_what_is_sealed_exported_or_computed_elsewhere_merges_nothing(
    digits: Classifier, digits_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="leave --merge out"):
        vitreous.evaluate(digits_file, "digits", merge=4, calibrate=True)
    with pytest.raises(OptionError, match="leave --restrict out"):
        vitreous.evaluate(digits_file, "digits", restrict=True, calibrate=True)
    with pytest.raises(OptionError, match="--merge is computed by torch, not by onnxruntime"):
        vitreous.predict(digits_file, [], merge=4, runtime="onnxruntime")
    with pytest.raises(ModelError, match="a model that merges tokens can't be exported"):
        from vitreous.export import export

        export(digits.merging(4), tmp_path / "a.onnx")
    again = vitreous.load(digits.merging(4).save(tmp_path / "again.safetensors"))
    assert not isinstance(again.model, MergingTransformer)
