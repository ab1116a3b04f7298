"""The emulated output: the same bits as on the GPU, judged by the same protocol."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from emulator.support import PLANTED, gemm, needs_compiler, parse_params, records, run
from ladder import correctness
from ladder.emulator import emulate
from ladder.manifest import Launch
from ladder.status import Status

pytestmark = needs_compiler

HASHES = list(records("output_hashes.csv"))


@pytest.mark.parametrize("row", HASHES, ids=lambda row: "-".join(list(row.values())[:5]))
def test_the_output_is_bit_identical_to_an_h200(row: dict[str, str], cache: Path) -> None:
    size = int(row["m"]), int(row["n"]), int(row["k"])
    result = run(row["kernel"], parse_params(row["params"]), *size, cache)
    assert hashlib.sha256(result.c.tobytes()).hexdigest() == row["sha256"]


@pytest.mark.parametrize(
    ("kernel", "params", "size"),
    [
        ("01_naive", {"BLOCK_X": 16, "BLOCK_Y": 16}, (33, 17, 65)),
        ("03_shared_tile", {"TILE": 16}, (31, 33, 64)),
        ("register_tile", {}, (64, 64, 32)),
        ("async_double_buffer", {"A_PAD": 4}, (64, 64, 48)),
    ],
)
def test_the_correctness_protocol_accepts_right_kernels(
    kernel: str, params: dict[str, int], size: tuple[int, int, int], cache: Path
) -> None:
    verdict = judge(
        gemm(kernel, params).source, params, gemm(kernel, params).launch(*size[:2]), size, cache
    )
    assert verdict.status is Status.OK and verdict.exact and verdict.deterministic


def test_the_correctness_protocol_refuses_a_wrong_kernel(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "forgetful.cu"
    source.write_text((PLANTED / "unguarded.cu").read_text().replace("k < K", "k < K - 1"))
    verdict = judge(source, {}, Launch((2, 2, 1), (16, 16, 1), 0), (32, 32, 48), cache)
    assert verdict.status is Status.WRONG_RESULT


def judge(
    source: Path, params: dict[str, int], launch: Launch, size: tuple[int, int, int], cache: Path
) -> correctness.Verdict:
    m, n, k = size

    def once(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        emulate(source, params, launch, m, n, k, a=a, b=b, c=c, trace=False, cache=cache)

    return correctness.check(
        np,
        once,
        m,
        n,
        k,
        accuracy="fp32",
        deterministic=True,
        reference_of=lambda a, b, kind, seed: correctness.reference(np, a, b, m, n, k, kind, seed),
    )


@pytest.mark.parametrize(
    ("kernel", "params"),
    [
        ("03_shared_tile", {"TILE": 16}),
        ("async_double_buffer", {"A_PAD": 4}),
        ("warp_broadcast", {}),
    ],
)
def test_the_order_of_warps_changes_neither_bits_nor_counts(
    kernel: str, params: dict[str, int], cache: Path
) -> None:
    forward = run(kernel, params, 64, 64, 48, cache)
    backward = run(kernel, params, 64, 64, 48, cache, reverse=True)
    assert forward.c.tobytes() == backward.c.tobytes()
    assert forward.counters == backward.counters
    assert not backward.findings


def test_inputs_are_never_changed(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "clobber.cu"
    source.write_text(
        'extern "C" __global__ void gemm(float* A, float* B, float* C, int M, int N, int K) {'
        "\n    A[0] = 7.0f;\n    C[threadIdx.x] = 1.0f;\n}\n"
    )
    a, b = np.zeros(64, np.float32), np.zeros(64, np.float32)
    emulate(source, {}, Launch((1, 1, 1), (64, 1, 1), 0), 8, 8, 8, a=a, b=b, cache=cache)
    assert a[0] == 0
