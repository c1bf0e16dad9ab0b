"""Draws made by torch are those made by numpy, bit for bit; the normal ones are normal."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitreous.data import draws, order

KEY = st.integers(-(1 << 63), (1 << 63) - 1)


@given(keys=st.lists(KEY, min_size=1, max_size=6), many=st.lists(KEY, min_size=1, max_size=8))
def test_words_are_numpys(keys: list[int], many: list[int]) -> None:
    expected = order.words(*keys, np.array(many), 3)
    ours = draws.words(*keys, torch.tensor(many), 3)
    assert np.array_equal(ours.numpy().view(np.uint64), expected)


@given(seed=KEY, epoch=st.integers(0, 10**6), many=st.lists(KEY, min_size=1, max_size=8))
def test_uniforms_are_numpys(seed: int, epoch: int, many: list[int]) -> None:
    expected = order.uniforms(5, seed, epoch, np.array(many), 2)
    ours = draws.uniforms(5, seed, torch.tensor(epoch), torch.tensor(many), 2)
    assert ours.dtype == torch.float64 and np.array_equal(ours.numpy(), expected)
    short = draws.uniforms32(5, seed, torch.tensor(epoch), torch.tensor(many), 2)
    assert short.dtype == torch.float32 and (short < 1).all()
    apart = expected - short.numpy()
    assert (apart >= 0).all() and (apart < 2.0**-24).all()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_draws_are_the_same(backend: str) -> None:
    """The epoch is a tensor: another value must not compile again, and must change every draw."""
    if backend == "inductor" and not has_compiler():
        pytest.skip("no C++ compiler here")
    torch._dynamo.reset()
    compiled = torch.compile(draws.uniforms, backend=backend, fullgraph=True)
    images = torch.arange(1000) - 500
    for epoch in (0, 7, -3):
        with torch.compiler.set_stance("fail_on_recompile" if epoch else "default"):
            ours = compiled(4, 5, torch.tensor(epoch), images, 1)
        assert np.array_equal(ours.numpy(), order.uniforms(4, 5, epoch, images.numpy(), 1))


def has_compiler() -> bool:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return False
    return True


@pytest.mark.parametrize("seed", [0, 1, 99])
def test_normals_are_normal(seed: int) -> None:
    drawn = draws.normals(seed, torch.arange(4)[:, None], torch.arange(20_000)).double().numpy()
    assert drawn.shape == (4, 20_000) and np.isfinite(drawn).all()
    assert stats.kstest(drawn.ravel(), "norm").pvalue > 0.01
    assert np.abs(np.corrcoef(drawn) - np.eye(4)).max() < 0.04


def test_every_key_matters() -> None:
    keys = [1, 2, 3, torch.arange(8)]
    plain = draws.normals(*keys)
    for place in range(3):
        other = [*keys]
        other[place] = 9
        assert not (draws.normals(*other) == plain).any()
