"""Theoretical occupancy, against known values and against NVIDIA's own calculator."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.occupancy import LIMITS, limits_of, occupancy

KIB = 1024


@pytest.mark.parametrize(
    ("architecture", "threads", "registers", "shared", "blocks", "percent", "limited_by"),
    [
        # A full multiprocessor: 2048 threads of 32 registers are exactly its register file.
        ("sm_90a", 256, 32, 0, 8, 100.0, "threads"),
        ("sm_90a", 1024, 32, 0, 2, 100.0, "threads"),
        ("sm_120", 256, 32, 0, 6, 100.0, "threads"),
        ("sm_86", 512, 40, 0, 3, 100.0, "threads"),
        # Small blocks: the number of blocks stops first.
        ("sm_90a", 32, 16, 0, 32, 50.0, "blocks"),
        ("sm_86", 32, 16, 0, 16, 100 / 3, "blocks"),
        ("sm_89", 32, 16, 0, 24, 50.0, "blocks"),
        ("sm_75", 32, 16, 0, 16, 50.0, "blocks"),
        # Registers go to a warp in units of 256: 33 a thread cost as much as 40.
        ("sm_90a", 256, 33, 0, 6, 75.0, "registers"),
        ("sm_90a", 256, 40, 0, 6, 75.0, "registers"),
        ("sm_90a", 256, 41, 0, 5, 62.5, "registers"),
        ("sm_90a", 256, 128, 0, 2, 25.0, "registers"),
        ("sm_90a", 256, 255, 0, 1, 12.5, "registers"),
        ("sm_90a", 1024, 64, 0, 1, 50.0, "registers"),
        ("sm_90a", 1024, 65, 0, 0, 0.0, "registers"),
        # 1 KiB of each block's shared memory belongs to the system.
        ("sm_90a", 128, 32, 48 * KIB, 4, 25.0, "shared memory"),
        ("sm_90a", 128, 32, 113 * KIB, 2, 12.5, "shared memory"),
        ("sm_90a", 128, 32, 113 * KIB + 1, 1, 6.25, "shared memory"),
        ("sm_90a", 128, 32, 227 * KIB, 1, 6.25, "shared memory"),
        ("sm_90a", 128, 32, 227 * KIB + 1, 0, 0.0, "shared memory"),
        ("sm_120", 128, 32, 49 * KIB, 2, 100 / 6, "shared memory"),
        ("sm_120", 128, 32, 99 * KIB, 1, 100 / 12, "shared memory"),
        ("sm_80", 128, 32, 163 * KIB, 1, 6.25, "shared memory"),
        # A warp that is not full costs a whole one.
        ("sm_90a", 33, 32, 0, 32, 100.0, "threads"),
        ("sm_90a", 65, 32, 0, 21, 100 * 63 / 64, "threads"),
    ],
)
def test_occupancy_has_its_known_value_and_names_what_stops_the_next_block(
    architecture: str,
    threads: int,
    registers: int,
    shared: int,
    blocks: int,
    percent: float,
    limited_by: str,
) -> None:
    found = occupancy(
        architecture, threads=threads, registers=registers, shared_memory_bytes=shared
    )
    assert found is not None
    assert found.blocks_per_sm == blocks
    assert found.percent == pytest.approx(percent)
    assert found.limited_by == limited_by


def test_an_architecture_that_the_table_does_not_hold_has_no_occupancy() -> None:
    assert limits_of("sm_999") is None
    assert occupancy("sm_999", threads=32, registers=32, shared_memory_bytes=0) is None


@given(
    st.sampled_from(sorted(LIMITS)),
    st.integers(1, 1024),
    st.integers(1, 255),
    st.integers(0, 230 * KIB),
)
def test_asking_for_more_never_raises_occupancy_and_it_stays_within_0_and_100(
    capability: tuple[int, int], threads: int, registers: int, shared: int
) -> None:
    architecture = f"sm_{capability[0]}{capability[1]}"

    def blocks(registers: int, shared: int) -> int:
        found = occupancy(
            architecture, threads=threads, registers=registers, shared_memory_bytes=shared
        )
        assert found is not None
        assert 0 <= found.percent <= 100
        return found.blocks_per_sm

    assert blocks(registers + 1, shared) <= blocks(registers, shared)
    assert blocks(registers, shared + 1) <= blocks(registers, shared)


# --- NVIDIA's cuda_occupancy.h --------------------------------------------------------------------

CALCULATOR = """\
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
    int major, minor, threads, registers, blocks;
    int device[6];
    while (std::scanf("%d %d %d %d %d %d %d %d", &major, &minor, &device[0], &device[1], &device[2],
                      &device[3], &threads, &registers) == 8) {
        int shared;
        if (std::scanf("%d", &shared) != 1) return 1;
        cudaOccDeviceProp properties = {};
        properties.computeMajor = major;
        properties.computeMinor = minor;
        properties.maxThreadsPerBlock = 1024;
        properties.maxThreadsPerMultiprocessor = device[0];
        properties.regsPerBlock = properties.regsPerMultiprocessor = 65536;
        properties.warpSize = 32;
        properties.sharedMemPerBlock = 49152;
        properties.sharedMemPerMultiprocessor = device[1];
        properties.numSms = 1;
        properties.sharedMemPerBlockOptin = device[2];
        properties.reservedSharedMemPerBlock = device[3];
        cudaOccFuncAttributes function = {};
        function.maxThreadsPerBlock = 1024;
        function.numRegs = registers;
        function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        function.maxDynamicSharedSizeBytes = device[2];
        function.numBlockBarriers = 1;
        cudaOccDeviceState state;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result;
        cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(
            &result, &properties, &function, &state, threads, shared);
        blocks = error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -error;
        std::printf("%d\\n", blocks);
    }
}
"""


def occupancy_header() -> Path | None:
    """The folder of `cuda_occupancy.h`: in a Python package, or in a CUDA toolkit."""
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:
            continue
        for file in files:
            if file.name == "cuda_occupancy.h":
                return Path(str(file.locate())).parent
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    folders = [f"{root}/include" for root in roots if root]
    folders += sorted(glob.glob("/usr/local/cuda*/include"), reverse=True)
    return next((Path(f) for f in folders if (Path(f) / "cuda_occupancy.h").is_file()), None)


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVIDIA's calculator as a program that answers queries from its standard input."""
    folder = occupancy_header()
    if folder is None:
        pytest.skip("no cuda_occupancy.h (package nvidia-cuda-runtime, or a CUDA toolkit)")
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path_factory.mktemp("occupancy") / "calculator"
    source = program.with_suffix(".cpp")
    source.write_text(CALCULATOR)
    subprocess.run([compiler, f"-I{folder}", str(source), "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize("capability", sorted(LIMITS), ids=lambda c: f"sm_{c[0]}{c[1]}")
def test_occupancy_agrees_with_nvidias_calculator(
    capability: tuple[int, int], calculator: Path
) -> None:
    major, minor = capability
    limits = LIMITS[capability]
    optin = limits.shared_memory_per_block
    queries = list(
        product(
            [1, 31, 32, 33, 64, 96, 128, 160, 192, 256, 288, 384, 480, 512, 640, 768, 992, 1024],
            [1, 8, 9, 16, 24, 31, 32, 33, 40, 41, 48, 64, 72, 80, 96, 97, 128, 168, 200, 254, 255],
            [0, 1, 127, 128, 129, 1024, 3000, 8192, 16_384, 16_385, 24_576, 33_333, 49_152, 65_536,
             optin // 2 - 512, optin // 2, optin - 1024, optin - 1, optin],
        )
    )  # fmt: skip
    device = (
        f"{limits.threads_per_sm} {limits.shared_memory_per_sm} {optin} "
        f"{limits.shared_memory_reserved}"
    )
    asked = "".join(f"{major} {minor} {device} {t} {r} {s}\n" for t, r, s in queries)
    done = subprocess.run([calculator], input=asked, capture_output=True, text=True, check=True)
    answers = [int(line) for line in done.stdout.split()]
    assert len(answers) == len(queries)
    if set(answers) == {answers[0]} and answers[0] < 0:
        pytest.skip("this version of cuda_occupancy.h does not know the architecture")
    different = []
    for (threads, registers, shared), answer in zip(queries, answers, strict=True):
        found = occupancy(
            f"sm_{major}{minor}", threads=threads, registers=registers, shared_memory_bytes=shared
        )
        assert found is not None
        if found.blocks_per_sm != answer:
            different.append((threads, registers, shared, found.blocks_per_sm, answer))
    assert not different, f"(threads, registers, shared, ours, NVIDIA's): {different[:10]}"
