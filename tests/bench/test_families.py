"""Where the time goes: names of kernels and operators tell the kind of work, and shares add up."""

import pytest
import torch

from vitreous.bench import families


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "matrix products"),
        ("aten::mkldnn_convolution", "matrix products"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::native_layer_norm_backward", "pointwise, norms"),
        ("aten::gelu", "pointwise, norms"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::_foreach_lerp_", "optimizer"),
        ("aten::copy_", "copies"),
        ("aten::randn", "other"),
    ],
)
def test_an_operator_has_a_kind(name: str, kind: str) -> None:
    assert families.kind_of(name, families.OPERATORS) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "matrix products"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "attention"),
        ("triton_red_fused_add_native_layer_norm_3", "pointwise, norms"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdam>", "optimizer"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
    ],
)
def test_a_kernel_has_a_kind(name: str, kind: str) -> None:
    assert families.kind_of(name, families.KERNELS) == kind


def test_shares_are_of_all_the_time_and_the_rest_is_named() -> None:
    found = families.shares([("aten::mm", 2.0), ("aten::gelu", 1.0), ("aten::bmm", 3.0)], 10.0, "cpu")
    assert list(found) == ["matrix products", "pointwise, norms", "between operators"]
    assert list(found.values()) == pytest.approx([0.5, 0.1, 0.4])
    assert families.shares([("nvjet", 1.0)], 4.0, "cuda") == {"matrix products": 0.25, "idle": 0.75}


def test_busy_threads_never_make_more_than_all_the_time() -> None:
    assert families.shares([("aten::mm", 3.0), ("aten::gelu", 1.0)], 2.0, "cpu") == {
        "matrix products": 0.75,
        "pointwise, norms": 0.25,
        "between operators": 0.0,
    }


def test_work_is_looked_into_on_a_cpu() -> None:
    left, right = torch.randn(256, 256), torch.randn(256, 256)
    found = families.profiled(lambda: [left @ right for _ in range(20)], torch.device("cpu"))
    assert found["matrix products"] > 0
    assert sum(found.values()) == pytest.approx(1.0)
