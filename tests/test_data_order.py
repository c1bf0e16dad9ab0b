"""Order and draws are pure functions: the properties that every other promise rests on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitreous.data.order import Order, balanced_weights, class_weights, share, uniforms, words

counts = st.integers(1, 300)
seeds = st.integers(0, 2**31)


def test_known_words() -> None:
    """Golden values: a change of them would change every run that is resumed."""
    assert words(1, 2, 3).item() == 0x31DA74E9BF769F9D
    assert words(1, 2).item() != words(2, 1).item()
    assert Order(10, 5, seed=7).sequence(0).tolist() == [3, 4, 8, 7, 2, 6, 9, 5, 1, 0]
    assert uniforms(2, 1, 2, 3).tolist() == [0.7279320471085422, 0.1927584375724396]


@given(counts, seeds, st.integers(0, 1000))
def test_an_epoch_has_every_image_once(count: int, seed: int, epoch: int) -> None:
    assert sorted(Order(count, 8, seed).sequence(epoch).tolist()) == list(range(count))


@given(counts, st.integers(1, 64), seeds, st.integers(1, 5))
def test_batches_are_slices_of_the_sequence(count: int, size: int, seed: int, epoch: int) -> None:
    order = Order(count, size, seed)
    whole = np.concatenate([order.batch(epoch, step)[0] for step in range(order.steps)])
    assert np.array_equal(whole, order.sequence(epoch)[: len(whole)])
    assert len(whole) == (count // size * size if count >= size else count)


@given(counts, st.integers(1, 64))
def test_evaluation_takes_all_in_order(count: int, size: int) -> None:
    order = Order(count, size, shuffle=False)
    whole = np.concatenate([order.batch(0, step)[0] for step in range(order.steps)])
    assert whole.tolist() == list(range(count))


@given(st.integers(0, 200), st.integers(1, 9))
def test_shares_make_up_the_batch(count: int, world: int) -> None:
    parts = [range(count)[share(count, rank, world)] for rank in range(world)]
    assert [i for part in parts for i in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(seeds, st.lists(st.integers(0, 10**6), min_size=1, max_size=20, unique=True))
def test_draws_do_not_depend_on_company(seed: int, indices: list[int]) -> None:
    together = uniforms(4, seed, 3, np.array(indices), 0, 1)
    alone = np.stack([uniforms(4, seed, 3, np.array([i]), 0, 1)[0] for i in indices])
    assert np.array_equal(together, alone)
    assert ((together >= 0) & (together < 1)).all()


def test_draws_are_uniform_and_uncorrelated() -> None:
    drawn = uniforms(8, 0, 0, np.arange(20_000), 0, 0)
    assert np.abs(drawn.mean(0) - 0.5).max() < 0.01
    assert np.abs(np.histogram(drawn, 20, (0, 1))[0] / drawn.size - 0.05).max() < 0.002
    off_diagonal = np.corrcoef(drawn.T) - np.eye(8)
    assert np.abs(off_diagonal).max() < 0.03
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.03


def test_epochs_and_seeds_differ() -> None:
    sequences = {tuple(Order(50, 8, seed).sequence(epoch)) for seed in range(3) for epoch in range(3)}
    assert len(sequences) == 9


@pytest.mark.parametrize("size", [8, 9])
def test_repeated_augmentation_keeps_copies_in_one_batch_apart(size: int) -> None:
    order = Order(100, size, repeats=3)
    seen = []
    for step in range(order.steps):
        indices, copies = order.batch(0, step)
        assert len(set(zip(indices.tolist(), copies.tolist(), strict=True))) == size
        assert len(set(indices.tolist())) == -(-size // 3)
        assert (indices[1:] != indices[:-1]).all()
        seen += indices.tolist()
    assert order.steps == 100 // size
    assert len(set(seen)) == order.steps * -(-size // 3)


def test_balanced_sampling_draws_classes_equally_often() -> None:
    targets = np.repeat([0, 1, 2], [9000, 900, 100])
    order = Order(10_000, 100, seed=1, weights=balanced_weights(targets, 3))
    sequence = order.sequence(0)
    shares = np.bincount(targets[sequence]) / len(sequence)
    assert np.abs(shares - 1 / 3).max() < 0.02
    indices, copies = (
        np.concatenate(x) for x in zip(*(order.batch(0, s) for s in range(order.steps)), strict=True)
    )
    assert len(set(zip(indices.tolist(), copies.tolist(), strict=True))) == len(
        indices
    )  # each turn its own draw
    assert not np.array_equal(sequence, order.sequence(1))


def occurrences_before(sequence: np.ndarray, step: int, indices: np.ndarray, size: int) -> np.ndarray:
    """The formula of versions that sorted the epoch for every batch: resumed runs rely on its numbers."""
    ranks = np.argsort(np.argsort(sequence, kind="stable"), kind="stable")
    return ranks[step * size : step * size + len(indices)] - np.searchsorted(np.sort(sequence), indices)


@given(counts, st.integers(1, 64), seeds, st.integers(0, 3), st.integers(1, 8))
def test_occurrences_are_those_of_sorting_for_every_batch(
    count: int, size: int, seed: int, epoch: int, classes: int
) -> None:
    targets = np.arange(count) ** 2 % classes
    order = Order(count, size, seed, weights=balanced_weights(targets, classes))
    for step in range(order.steps):
        indices, copies = order.batch(epoch, step)
        expected = occurrences_before(order.sequence(epoch), step, indices, size)
        assert copies.dtype == expected.dtype and np.array_equal(copies, expected)


def test_balanced_sampling_sorts_once_per_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_sizes: list[int] = []
    argsort = np.argsort
    monkeypatch.setattr(np, "argsort", lambda x, **o: sorted_sizes.append(len(x)) or argsort(x, **o))
    order = Order(1000, 10, weights=np.ones(1000))
    for step in range(order.steps):
        order.batch(0, step)
    assert sorted_sizes == [1000]


def test_balanced_sampling_with_repeats_gives_each_turn_its_own_copy() -> None:
    """An image that is drawn twice into a batch must not come twice with the same augmentation."""
    order = Order(60, 12, repeats=3, weights=np.repeat([20.0, 1.0], [3, 57]))
    for step in range(order.steps):
        indices, copies = order.batch(0, step)
        assert len(set(zip(indices.tolist(), copies.tolist(), strict=True))) == 12


def test_class_weights_equal_scikit_learns() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    targets = np.repeat([0, 1, 2], [50, 30, 7])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=targets)
    assert np.allclose(class_weights(targets, 3), expected)
    assert class_weights(targets, 4)[3] == 0  # a class without images


def test_balanced_weights_of_several_labels() -> None:
    targets = np.array([[1, 0], [1, 0], [1, 0], [1, 1], [0, 0]], bool)
    weights = balanced_weights(targets, 2)
    assert weights[3] > weights[0] > 0 and weights[4] > 0
