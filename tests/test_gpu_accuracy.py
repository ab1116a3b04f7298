"""What kernels make of special values on a real GPU: what their manifests promise, and no less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ladder.device import detect
from ladder.special_values import CASES
from project import Project

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not detect() or float(detect()[0].compute_capability) < 8.0,
        reason="no GPU with tensor cores that multiply TF32 (compute capability 8.0)",
    ),
]
OUT = "results/gpu"
FP32_UNITS = ["01_naive", "05_register_tile", "cublas_fp32"]
TENSOR = ["22_3xtf32", "23_promoted", "24_wgmma", "25_fp16_split"]
SPLIT_TF32 = TENSOR[:3]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    kernels = [*FP32_UNITS, *TENSOR]
    settings = {
        "sizes": {"square": [256]},
        "kernels": {name: {} for name in kernels},
        "architectures": ["sm_90a"],
        "accuracy": {"sides": [256], "depths": [1024]},
    }
    project = Project(tmp_path_factory.mktemp("accuracy"), settings, kernels=kernels)
    project.compile_all(detect()[0].architecture(["sm_90a"]))
    project.ladder("plan")
    project.ladder("accuracy", "--out", OUT)
    found = project.table("accuracy", OUT)
    # Some kernels are not for this GPU.
    return [row for row in found if row["status"] != "skipped_unsupported"]


def outcomes(rows: list[dict[str, Any]], kernel: str) -> Mapping[str, str]:
    own = [row for row in rows if row["kernel"] == kernel and row["special"]]
    if not own:
        pytest.skip("not for this GPU")
    assert {row["status"] for row in own} == {"ok"}, [row["detail"] for row in own]
    return {row["special"]: row["outcome"] for row in own}


@pytest.mark.parametrize("kernel", FP32_UNITS)
def test_the_fp32_units_follow_ieee_754(rows: list[dict[str, Any]], kernel: str) -> None:
    found = dict(outcomes(rows, kernel))
    assert found.pop("cancelled_overflow") in ("same", "made_nonfinite"), "as the order has it"
    assert found == dict.fromkeys(found, "same") and len(found) == len(CASES) - 1


@pytest.mark.parametrize("kernel", SPLIT_TF32)
def test_split_tf32_keeps_what_its_limits_promise(rows: list[dict[str, Any]], kernel: str) -> None:
    """`limits`: the elements that an infinity or NaN enters are infinite or NaN, and no others;
    magnitudes up to 0x1.ffcp127 are numbers; small ones keep an error; overflow depends on order.
    """
    found = outcomes(rows, kernel)
    for case in ("infinity", "nan", "infinity_times_zero", "overflow"):
        assert found[case] in ("same", "other_nonfinite"), case
    assert found["near_largest"] == "same"
    assert found["subnormal_results"] == "same"
    assert found["largest"] in ("same", "made_nonfinite")
    assert found["subnormal_inputs"] in ("same", "inaccurate", "flushed")
    assert found["cancelled_overflow"] in ("same", "made_nonfinite")


def test_what_does_not_fit_fp16_is_computed_in_fp32(rows: list[dict[str, Any]]) -> None:
    found = dict(outcomes(rows, "25_fp16_split"))
    assert found.pop("cancelled_overflow") in ("same", "made_nonfinite")
    assert found.pop("overflow") in ("same", "other_nonfinite"), "as the order of sums has it"
    assert found == dict.fromkeys(found, "same")


def test_errors_are_those_of_fp32_and_of_sums_that_are_cut_off(rows: list[dict[str, Any]]) -> None:
    errors = {
        (row["kernel"], row["distribution"]): row
        for row in rows
        if row["distribution"] and row["status"] == "ok"
    }
    for kernel in ("01_naive", "cublas_fp32"):
        assert errors[kernel, "uniform"]["eta_rms"] < 1
        assert errors[kernel, "wide"]["eta_rms"] < 4
    naive = errors["01_naive", "positive"]
    assert 2 < naive["eta_rms"] < 30 and abs(naive["bias"]) < naive["eta_rms"] / 4
    if ("22_3xtf32", "positive") in errors:
        assert errors["22_3xtf32", "positive"]["bias"] < -20, "the tensor core cuts off"
        promoted = errors["23_promoted", "positive"]
        assert errors["22_3xtf32", "uniform"]["shrinkage"] > 0.5, "whatever the signs"
        assert abs(promoted["bias"]) < 0.1 * abs(errors["22_3xtf32", "positive"]["bias"])
