"""Planted faults are found with file and line; correct kernels give no finding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emulator.support import (
    COMPILERS,
    FIRST_COMPILER,
    PLANTED,
    RUNGS,
    each_compiler,
    gemm,
    inputs,
    line_of,
    needs_compiler,
    run,
)
from ladder import correctness
from ladder.emulator import Compiler, Finding, build_library, emulate, find_compiler
from ladder.emulator.emulation import observe
from ladder.emulator.point import emulate_point
from ladder.manifest import Kernel, Launch, expand, load_all, slug
from ladder.status import Status

pytestmark = needs_compiler

FAULTS = PLANTED / "faults.cu"
EXPECTED = {
    1: "race",
    3: "uninitialised_read",
    4: "race_between_blocks",
    5: "divergent_barrier",
    6: "deadlock",
    7: "out_of_bounds",
    8: "out_of_bounds",
    9: "out_of_bounds",
    10: "misaligned",
    11: "divergent_barrier",
    12: "uninitialised_read",
    13: "race",
    14: "endless_loop",
    15: "shuffle_source",
    16: "race_between_blocks",
    17: "wild_address",
    18: "trap",
    19: "machine_fault",
}


def plant(
    fault: int, compiler: Compiler, cache: Path
) -> tuple[list[Finding], np.ndarray, np.ndarray]:
    library = build_library(
        FAULTS, {"FAULT": fault}, entry="planted", cache=cache, compiler=compiler
    )
    size = 257 if fault == 10 else 128
    x, y = np.arange(1, size + 1, dtype=np.float32), np.zeros(128, np.float32)
    blocks = 2 if fault in (4, 16) else 1
    seen = observe(library, Launch((blocks, 1, 1), (64, 1, 1), 0), {"x": x, "y": y, "n": size})
    return seen.findings, x, y


CASES = [
    (name, fault)
    for name in COMPILERS
    for fault in EXPECTED
    # every fault with one compiler; with the other those which its optimiser could hide
    if name == COMPILERS[0] or fault in (3, 5, 10, 11, 16)
]


@pytest.mark.parametrize(("compiler_name", "fault"), CASES)
def test_a_planted_fault_is_found_where_it_is(compiler_name: str, fault: int, cache: Path) -> None:
    findings, _, _ = plant(fault, find_compiler(compiler_name), cache)
    line = line_of(FAULTS, f"// fault {fault}:")
    lines = {line, line + 1, line - 1} if fault in (14, 18) else {line}
    named = {(item.kind, item.line) for item in findings if item.file == FAULTS.name}
    assert named & {(EXPECTED[fault], where) for where in lines}, [str(item) for item in findings]


@each_compiler
def test_a_synchronised_exchange_gives_no_finding(compiler: Compiler, cache: Path) -> None:
    findings, x, y = plant(2, compiler, cache)
    assert not findings
    assert np.array_equal(y[:64], x[:64].reshape(-1, 2)[:, ::-1].ravel())


def test_a_finding_says_who_and_where(cache: Path) -> None:
    findings, x, y = plant(9, FIRST_COMPILER, cache)
    assert np.array_equal(y[:64], x[:64]), (
        "the result is right, and the fault is found all the same"
    )
    (finding,) = findings
    assert (finding.array, finding.thread, finding.block) == ("x", 63, 0)
    assert "x[128]" in finding.message
    assert str(finding).startswith(f"faults.cu:{finding.line}: out_of_bounds: ")


@each_compiler
def test_a_missing_barrier_is_a_race_even_when_the_result_is_right(
    compiler: Compiler, cache: Path
) -> None:
    source = PLANTED / "missing_barrier.cu"
    size = 16
    a, b = inputs(size, size, size)
    result = emulate(
        source,
        {},
        Launch((2, 2, 1), (8, 8, 1), 0),
        size,
        size,
        size,
        a=a,
        b=b,
        cache=cache,
        compiler=compiler,
    )
    assert result.status is Status.RACE
    assert {finding.kind for finding in result.findings} == {"race"}
    reported = {finding.line for finding in result.findings}
    writes = line_of(source, "planted: overwrites")
    assert reported & {writes, writes + 1, line_of(source, "planted: still reads")}
    # one warp a block: in lockstep order nothing is overwritten too early
    single = emulate(
        source,
        {},
        Launch((2, 4, 1), (8, 8, 1), 0),
        size,
        size,
        size,
        a=a,
        b=b,
        cache=cache,
        compiler=compiler,
    )
    assert single.findings


@each_compiler
@pytest.mark.parametrize(("fault", "kind"), [(1, "in_flight"), (2, "race")])
def test_a_pipeline_without_its_wait_or_barrier_is_found(
    fault: int, kind: str, compiler: Compiler, cache: Path
) -> None:
    kernel = gemm("async_double_buffer", {"A_PAD": 4})
    a, b = inputs(64, 64, 64)
    result = emulate(
        kernel.source,
        {"A_PAD": 4, "FAULT": fault},
        kernel.launch(64, 64),
        64,
        64,
        64,
        a=a,
        b=b,
        cache=cache,
        compiler=compiler,
    )
    assert kind in {finding.kind for finding in result.findings}
    assert all(
        finding.file == kernel.source.name and finding.line > 0 for finding in result.findings
    )
    if fault == 1:
        assert np.isnan(result.c).any(), "what has not landed yet must not look like data"
        assert line_of(kernel.source, "planted: in flight") in {
            item.line for item in result.findings
        }


@each_compiler
def test_an_unguarded_kernel_is_caught_at_the_edge(compiler: Compiler, cache: Path) -> None:
    source = PLANTED / "unguarded.cu"
    m, n, k = 129, 129, 17
    a, b = inputs(m, n, k)
    result = emulate(
        source,
        {},
        Launch((9, 9, 1), (16, 16, 1), 0),
        m,
        n,
        k,
        a=a,
        b=b,
        cache=cache,
        compiler=compiler,
    )
    outside = {
        (finding.array, finding.line)
        for finding in result.findings
        if finding.kind == "out_of_bounds"
    }
    reads, writes = line_of(source, "planted: reads"), line_of(source, "planted: writes")
    assert ("A", reads) in outside and ("B", reads) in outside and ("C", writes) in outside
    assert result.status in (Status.GUARD_VIOLATION, Status.RACE)


@each_compiler
def test_dynamic_shared_memory_ends_where_the_launch_says(compiler: Compiler, cache: Path) -> None:
    source = PLANTED / "shared_limit.cu"
    library = build_library(source, {}, entry="fill", cache=cache, compiler=compiler)
    out = np.zeros(1, np.float32)

    def findings(count: int) -> list[Finding]:
        launch = Launch((1, 1, 1), (32, 1, 1), 4 * 256)
        return observe(library, launch, {"out": out, "count": count}).findings

    assert not findings(256)
    found = [
        item for item in findings(257) if item.line == line_of(source, "planted: past the end")
    ]
    assert found and found[0].kind == "out_of_bounds" and "shared[256]" in found[0].message


def test_checks_can_be_left_out(cache: Path) -> None:
    library = build_library(FAULTS, {"FAULT": 4}, entry="planted", cache=cache)
    arrays = {"x": np.ones(128, np.float32), "y": np.zeros(128, np.float32), "n": 128}
    launch = Launch((2, 1, 1), (64, 1, 1), 0)
    assert not observe(library, launch, arrays, checks=False).findings
    assert observe(library, launch, arrays, trace=False).findings


ODD = [
    (1, 1, 1),
    (3, 17, 31),
    (33, 32, 1),
    (1, 129, 64),
    (127, 1, 65),
    (63, 65, 33),
    (128, 31, 17),
    (255, 64, 3),
    (17, 257, 127),
]
"""Every size of the correctness protocol, as M, N or K."""


def shipped() -> list[tuple[Kernel, dict[str, int]]]:
    """Every rung that the emulator runs, with the first and the last set of its default sweep."""
    chosen = []
    for kernel in load_all(RUNGS).values():
        if kernel.needs_build and kernel.manifest.emulator:
            sets = list(expand(kernel.manifest.sweep)) or [{}]
            chosen += [(kernel, params) for params in ([sets[0], sets[-1]] if sets[1:] else sets)]
    return chosen


@pytest.mark.parametrize(
    ("kernel", "params"), shipped(), ids=lambda value: getattr(value, "name", None) or slug(value)
)
def test_shipped_rungs_are_right_and_without_a_finding_at_odd_sizes(
    kernel: Kernel, params: dict[str, int], cache: Path
) -> None:
    ran = 0
    for m, n, k in [*ODD, (128, 128, 64)]:
        point = emulate_point(kernel, params, m, n, k, cache=cache)
        if point.status is Status.SKIPPED_PRECONDITION:
            assert point.detail, "a refusal names its rule"
            continue
        assert point.status is Status.OK, (m, n, k, point.detail)
        assert point.result is not None and point.result.completed
        if n % 4 == 0 and k % 4 == 0:  # elsewhere quads at an edge are read in part (docs: Limits)
            assert point.result.inexact is None, point.result.inexact
        ran += 1
    assert ran, "no size was accepted"


@pytest.mark.parametrize("size", ODD[1::2], ids=lambda size: "x".join(map(str, size)))
def test_a_kernel_of_warp_shuffles_gives_no_finding(
    size: tuple[int, int, int], cache: Path
) -> None:
    m, n, k = size
    result = run("warp_broadcast", {}, m, n, k, cache)
    assert not result.findings and result.completed and result.inexact is None
    a, b = inputs(m, n, k)
    reference = correctness.reference(np, a, b, m, n, k, "uniform", 1)
    largest, _, wrong = correctness.error_statistics(np, result.c, reference, 16.0)
    assert wrong is None, largest
