"""Launches with clusters and tensor maps: manifests, plans, keys, builds, the driver's structures.

What the GPU makes of them is in test_gpu.py.
"""

from __future__ import annotations

import ctypes
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from emulator.support import needs_compiler
from ladder import driver
from ladder.compile import compile_build, compiler_problem, resources_from_log
from ladder.config import Config
from ladder.device import LaunchSpec
from ladder.documents import UserError
from ladder.emulator.emulation import observe
from ladder.emulator.library import build_library
from ladder.emulator.point import emulate_point
from ladder.manifest import Kernel, Launch, Manifest, TensorMaps, load
from ladder.occupancy import largest_cluster
from ladder.plan import Fault, Point, build_fault, launch_fault, plan_points
from ladder.status import Status
from ladder.store import Environment, check_key, point_key
from ladder.store import load as load_journal
from ladder.tensor_maps import HELPERS, SHIFTS_HELPERS, copies_bytes, mapped_matrices
from ladder.work import needed_bytes
from launch_kinds import KERNELS, LARGEST, ODD_SIZES
from project import MANIFEST, QUICK, ROOT, Project

HOPPER = {"minimum_compute_capability": "9.0"}
CLUSTER: dict[str, Any] = {"kind": "cluster", "block": [32], "grid": [8, 8], "cluster": [2, 4]}
MAPS: dict[str, Any] = {
    "kind": "tensor_maps",
    "block": [32],
    "grid": [8, 8],
    "a_box": [32, 8],
    "b_box": [128, 8],
}


@pytest.fixture
def make_kernel(tmp_path: Path) -> Callable[..., Kernel]:
    """Writes a kernel's two files beside the shared headers and loads it."""

    def make(source: str = "", **manifest: Any) -> Kernel:
        folder = tmp_path / "kernels"
        if not folder.exists():
            shutil.copytree(ROOT / "kernels/include", folder / "include")
        path = folder / "mine.yaml"
        path.write_text(yaml.safe_dump(MANIFEST | manifest, sort_keys=False))
        path.with_suffix(".cu").write_text(source)
        return load(path)

    return make


# --- manifests ------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no cluster": (
        HOPPER | {"launch": {k: v for k, v in CLUSTER.items() if k != "cluster"}},
        "launch.cluster",
        "this key is required",
    ),
    "a size in the cluster": (
        HOPPER | {"launch": CLUSTER | {"cluster": ["K"]}},
        "launch.cluster[0]",
        "unknown name 'K'",
    ),
    "a cluster of four dimensions": (
        HOPPER | {"launch": CLUSTER | {"cluster": [1, 1, 1, 1]}},
        "launch.cluster",
        "at most 3 items",
    ),
    "a cluster on old architectures": (
        {"minimum_compute_capability": "8.0", "launch": CLUSTER},
        "minimum_compute_capability",
        "'8.0' is too old for launches of the kind `cluster`; write '9.0' or newer",
    ),
    "tensor maps on old architectures": (
        {"minimum_compute_capability": "8.6", "launch": MAPS},
        "minimum_compute_capability",
        "'8.6' is too old for launches of the kind `tensor_maps`; write '9.0' or newer",
    ),
    "no box": (
        HOPPER | {"launch": {k: v for k, v in MAPS.items() if k != "b_box"}},
        "launch.b_box",
        "this key is required",
    ),
    "a box of one side": (
        HOPPER | {"launch": MAPS | {"a_box": [32]}},
        "launch.a_box",
        "at least 2 items",
    ),
    "a size in a box": (
        HOPPER | {"launch": MAPS | {"b_box": [128, "K"]}},
        "launch.b_box[1]",
        "unknown name 'K'",
    ),
    "a transposition that is no truth value": (
        HOPPER | {"launch": MAPS | {"transpose_a": 1}},
        "launch.transpose_a",
        "valid boolean; found 1",
    ),
    "shifts of a transposed matrix": (
        HOPPER | {"launch": MAPS | {"transpose_a": True, "f16_shifts": 1}},
        "launch.f16_shifts",
        "not together with split_f16 or transpose_a",
    ),
    "shifts by the size": (
        HOPPER | {"launch": MAPS | {"f16_shifts": "K > 64"}},
        "launch.f16_shifts",
        "unknown name 'K'",
    ),
    "a swizzle that does not exist": (
        HOPPER | {"launch": MAPS | {"b_swizzle": "256B"}},
        "launch.b_swizzle",
        "'none', '32B', '64B' or '128B'",
    ),
    "a misspelt box": (
        HOPPER | {"launch": MAPS | {"a_boxes": [1, 1]}},
        "launch.a_boxes",
        "unknown key; did you mean 'a_box'?",
    ),
    "a box of an ordinary launch": (
        {"launch": MANIFEST["launch"] | {"a_box": [32, 8]}},
        "launch.a_box",
        "unknown key; known: block, grid, dynamic_shared_memory_bytes, scratch_bytes, kind",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_file_line_key_and_remedy(
    name: str, make_kernel: Callable[..., Kernel]
) -> None:
    manifest, key, remedy = MISTAKES[name]
    with pytest.raises(UserError) as caught:
        make_kernel(**manifest)
    found = re.fullmatch(r"\S+mine\.yaml:\d+: (\S+): (.*)", str(caught.value))
    assert found, str(caught.value)
    assert found[1] == key
    assert remedy in found[2]


def test_a_manifest_that_names_no_architecture_is_told_which_one_it_needs(
    make_kernel: Callable[..., Kernel],
) -> None:
    with pytest.raises(UserError, match=r"minimum_compute_capability: '7\.5' is too old .* '9\.0'"):
        make_kernel(launch=CLUSTER)


def test_a_launch_holds_what_the_manifest_says_at_the_values_of_the_parameters() -> None:
    kernel = kernel_of(
        MAPS | {"a_box": ["BM", "BK"], "b_box": [128, "BK"], "cluster": ["BM // 32"]},
        parameters={name: {"description": name} for name in ("BM", "BK")},
        sweep=[{"BM": 64, "BK": 16}],
    )
    launch = kernel.launch({"BM": 64, "BK": 16}, 1, 1, 1)
    maps = TensorMaps((64, 16), (128, 16), False)
    assert launch == Launch((8, 8, 1), (32, 1, 1), 0, (2, 1, 1), maps)


def test_a_swizzle_goes_from_the_manifest_to_the_map_of_its_matrix() -> None:
    launch = kernel_of(MAPS | {"b_swizzle": "128B"}).launch({}, 64, 64, 64)
    assert launch is not None and launch.tensor_maps is not None
    a, b = mapped_matrices(launch.tensor_maps, 64, 64, 64)
    assert (a.swizzle, b.swizzle) == ("none", "128B")


# --- plans ----------------------------------------------------------------------------------------


def kernel_of(launch: dict[str, Any], **manifest: Any) -> Kernel:
    data = MANIFEST | HOPPER | {"launch": launch} | manifest
    return Kernel("mine", Manifest.model_validate(data), Path("mine.yaml"), Path("mine.cu"))


def fault_of(launch: dict[str, Any], n: int = 64) -> Fault | None:
    config = Config.model_validate({"sizes": {"square": [n]}, "kernels": {"mine": {}}})
    [item] = plan_points(config, {"mine": kernel_of(launch)})
    return item.fault


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"cluster": [4, 4]}, None),
        ({"cluster": [4, 4, 2], "grid": [8, 8, 2]}, "32 blocks per cluster; the limit is 16"),
        ({"cluster": [0]}, "cluster.x is 0; at least 1 is needed"),
        (
            {"grid": [8, "cdiv(N, 10)"]},
            "grid.y is 7, no multiple of cluster.y = 4; round the grid up to whole clusters, "
            "as in 4 * cdiv(...)",
        ),
        ({"cluster": [1, 1, 2]}, "grid.z is 1, no multiple of cluster.z = 2; "),
    ],
)
def test_a_cluster_that_cannot_be_is_a_row_with_the_reason(
    change: dict[str, Any], words: str | None
) -> None:
    fault = fault_of(CLUSTER | change)
    if words is None:
        assert fault is None
    else:
        assert fault is not None
        assert fault[0] is Status.INFEASIBLE_CLUSTER
        assert fault[1].startswith(words)


@given(st.tuples(*[st.integers(1, 6)] * 3), st.tuples(*[st.integers(1, 5)] * 3))
def test_a_grid_is_refused_exactly_if_it_is_no_whole_number_of_possible_clusters(
    grid: tuple[int, int, int], cluster: tuple[int, int, int]
) -> None:
    possible = all(blocks % size == 0 for blocks, size in zip(grid, cluster, strict=True))
    possible &= int(np.prod(cluster)) <= 16
    assert (launch_fault(Launch(grid, (32, 1, 1), 0, cluster)) is None) == possible


@pytest.mark.parametrize(
    ("architecture", "most"),
    [("sm_90", 16), ("sm_90a", 16), ("sm_100a", 16), ("sm_103a", 8), ("sm_120", 8), ("sm_121a", 8)],
)
def test_a_large_cluster_is_refused_where_the_architecture_has_none(
    architecture: str, most: int
) -> None:
    assert largest_cluster(architecture) == most

    def fault(blocks: int) -> Fault | None:
        launch = Launch((blocks, 1, 1), (32, 1, 1), 0, (blocks, 1, 1))
        return build_fault(architecture, launch, registers=32, static_shared_memory_bytes=0)

    assert fault(8) is None
    assert fault(most) is None
    words = f"{most + 1} blocks per cluster; {architecture} allows {most}"
    assert fault(most + 1) == (Status.INFEASIBLE_CLUSTER, words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"a_box": [256, 256]}, None),
        ({"a_box": [260, 8]}, "a_box has 260 columns; allowed: 1 to 256"),
        ({"b_box": [4, 257]}, "b_box has 257 rows; allowed: 1 to 256"),
        ({"b_box": [4, 0]}, "b_box has 0 rows; allowed: 1 to 256"),
        (
            {"a_box": [30, 8]},
            "a row of a_box has 30 columns, 120 bytes; a multiple of 4 columns, 16 bytes, "
            "is needed",
        ),
        ({"a_swizzle": "128B"}, None),
        (
            {"a_swizzle": "64B"},
            "a row of a_box has 32 columns; with the swizzle 64B it needs 16, 64 bytes",
        ),
    ],
)
def test_a_tile_that_no_copy_can_bring_is_a_row_with_the_reason(
    change: dict[str, Any], words: str | None
) -> None:
    assert fault_of(MAPS | change) == ((Status.INFEASIBLE_BOX, words) if words else None)


# --- what is copied before the kernel -------------------------------------------------------------

side = st.integers(1, 3_000_000)


@given(side, side, side, st.booleans())
def test_every_map_covers_its_matrix_in_rows_that_the_hardware_can_read(
    m: int, n: int, k: int, transpose: bool
) -> None:
    maps = TensorMaps((32, 8), (64, 8), transpose)
    a, b = mapped_matrices(maps, m, n, k)
    assert (a.rows, a.columns) == ((k, m) if transpose else (m, k))
    assert (b.rows, b.columns) == (k, n)
    assert (a.box, b.box) == (maps.a_box, maps.b_box)
    assert (a.helper is not None) == (transpose or k % 4 != 0)
    assert (b.helper is not None) == (n % 4 != 0)
    position = 0
    for matrix, read in ((a, (m, k)), (b, (k, n))):
        assert matrix.columns <= matrix.pitch < matrix.columns + 4
        assert matrix.pitch % 4 == 0
        if matrix.helper is None:
            assert matrix.copy_bytes == 0
            continue
        assert (matrix.helper.rows, matrix.helper.columns) == read
        assert matrix.workspace_offset == position
        assert matrix.workspace_offset % 256 == 0
        assert 4 * matrix.rows * matrix.pitch <= matrix.copy_bytes
        position += matrix.copy_bytes
        x, y, z = matrix.helper.grid
        assert x <= 2**31 - 1 and y <= 65_535 and z == 1
    assert copies_bytes(maps, m, n, k) == position


@given(side, side, side, st.integers(1, 256), st.integers(1, 256))
def test_the_shifts_of_all_tiles_have_room_behind_the_copies(
    m: int, n: int, k: int, a_rows: int, b_rows: int
) -> None:
    maps = TensorMaps((32, a_rows), (32, b_rows), False, f16_shifts=True)
    position = 0
    for matrix, rows, columns, tile_rows, tile_columns in zip(
        mapped_matrices(maps, m, n, k), (m, k), (k, n), (a_rows, b_rows), (32, 128), strict=True
    ):
        tiles = -(-rows // tile_rows) * -(-columns // tile_columns)
        assert matrix.shifts is not None and matrix.shifts in matrix.launches
        assert matrix.shifts.entry == f"shifts_of_{matrix.matrix.lower()}"
        assert (matrix.shifts.rows, matrix.shifts.columns) == (rows, columns)
        x, y, _ = matrix.shifts.grid
        assert 128 * (x - 1) < columns <= 128 * x and y == min(-(-rows // tile_rows), 65_535)
        assert matrix.workspace_offset == position and matrix.copy_bytes % 256 == 0
        assert 4 * tiles <= matrix.shifts_bytes < 4 * tiles + 256
        position += matrix.copy_bytes + matrix.shifts_bytes
    assert copies_bytes(maps, m, n, k) == position
    for other in (None, False):
        plain = mapped_matrices(replace(maps, f16_shifts=other), m, n, k)
        assert [matrix.shifts for matrix in plain] == [None, None]


def test_a_workspace_counts_as_memory_that_a_point_needs() -> None:
    point = Point("mine", "{}", 1024, 1023, 1024)
    plain = LaunchSpec("cuda")
    turned = replace(plain, kind="tensor_maps", tensor_maps=TensorMaps((32, 8), (32, 8), True))
    more = needed_bytes(point, turned, 2**20) - needed_bytes(point, plain, 2**20)
    assert more == 2 * 4 * 1024 * 1024
    assert copies_bytes(None, *point.shape) == 0


# --- the launch on its way to the worker, and in keys ---------------------------------------------

extent = st.integers(1, 99)
extents = st.tuples(extent, extent, extent)
boxes = st.tuples(extent, extent)
specs = st.builds(
    LaunchSpec,
    st.sampled_from(["cuda", "cublas", "cluster", "tensor_maps"]),
    st.none() | st.just("k.cubin"),
    extents,
    extents,
    extent,
    st.none() | st.just("tf32"),
    st.none() | extents,
    st.none()
    | st.builds(TensorMaps, boxes, boxes, st.booleans(), f16_shifts=st.none() | st.booleans()),
)


@given(specs)
def test_a_launch_survives_the_way_to_the_worker(spec: LaunchSpec) -> None:
    assert LaunchSpec.from_json(json.loads(json.dumps(asdict(spec)))) == spec


POINT = Point("mine", '{"TILE":8}', 65, 129, 33)
HERE = Environment("GPU-1", "580.0", "13.1.0")


def key(spec: LaunchSpec, point: Point = POINT) -> str:
    return check_key(point, spec, "ab" * 32, "fp32", True, HERE)


def test_results_of_before_there_were_kinds_of_launches_are_found_again() -> None:
    """These keys are in users' journals: another value would measure everything anew."""
    cuda = key(LaunchSpec("cuda", "/here/k.cubin", (5, 4, 1), (16, 16, 1), 128))
    assert cuda == "2f2ca2a0efb4f3572fd3a650fccebeddb4851597d3c55d395f46e678f6027b2d"
    library = LaunchSpec("cublas", compute="tf32")
    cublas = check_key(POINT, library, None, "tf32", True, HERE)
    assert cublas == "3b985eab28228f53389b7f324cfa7aa2c4dcf93a67331f433fecdce2d2b7ab3a"
    timing = point_key(cuda, "rotating", {"warmup_ms": 200.0})
    assert timing == "117d24e0d538b9671099f77ed5758dc96998c9113380dd2da03f1b2fb7674eaf"


def test_everything_that_a_new_kind_adds_to_a_launch_is_part_of_its_key() -> None:
    maps = TensorMaps((32, 8), (64, 8), True)
    plain = LaunchSpec("tensor_maps", "k.cubin", (4, 4, 1), (32, 1, 1), tensor_maps=maps)
    specs = [
        plain,
        replace(plain, kind="cuda", tensor_maps=None),
        replace(plain, kind="cluster", tensor_maps=None, cluster=(2, 1, 1)),
        replace(plain, kind="cluster", tensor_maps=None, cluster=(1, 2, 1)),
        replace(plain, cluster=(2, 1, 1)),
        replace(plain, tensor_maps=replace(maps, transpose_a=False)),
        replace(plain, tensor_maps=replace(maps, transpose_a=False, f16_shifts=True)),
        replace(plain, tensor_maps=replace(maps, a_box=(32, 16))),
        replace(plain, tensor_maps=replace(maps, b_box=(32, 16))),
        replace(plain, tensor_maps=replace(maps, a_swizzle="128B")),
        replace(plain, tensor_maps=replace(maps, b_swizzle="128B")),
    ]
    assert len({key(spec) for spec in specs}) == len(specs)


def test_another_geometry_of_the_helpers_is_timed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = TensorMaps((32, 8), (64, 8), True)
    spec = LaunchSpec("tensor_maps", "k.cubin", (4, 4, 1), (32, 1, 1), tensor_maps=maps)
    before = key(spec)
    monkeypatch.setattr("ladder.tensor_maps._HELPER_BLOCK", (32, 16, 1))
    assert key(spec) != before


# --- builds ---------------------------------------------------------------------------------------

needs_nvrtc = pytest.mark.skipif(
    compiler_problem() is not None, reason=f"no compiler here: {compiler_problem()}"
)


def report(entry: str, registers: int, spills: int = 0) -> str:
    return (
        f"ptxas info    : Compiling entry function '{entry}' for 'sm_90a'\n"
        f"ptxas info    : Function properties for {entry}\n"
        f"ptxas         .     {spills} bytes stack frame, {spills} bytes spill stores, "
        f"{spills} bytes spill loads\n"
        f"ptxas info    : Used {registers} registers, used 1 barriers, {registers}00 bytes smem\n"
    )


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_the_resources_of_a_build_are_those_of_gemm_wherever_its_report_stands(
    order: list[int],
) -> None:
    reports = [report("gemm", 168, 4), report("transpose_a", 20), report("pad_rows", 30)]
    found = resources_from_log("".join(reports[index] for index in order), HELPERS)
    assert found["registers_per_thread"] == 168
    assert found["spill_load_bytes"] == 4
    assert found["static_shared_memory_bytes"] == 16_800


@pytest.mark.parametrize(
    "entries",
    [["gemm"], ["gemm", "pad_rows"], ["transpose_a", "pad_rows"],
     ["gemm", "pad_rows", "transpose_a", "other"], ["gemm", "gemm", "pad_rows"], []],
)  # fmt: skip
def test_a_build_for_tensor_maps_has_exactly_the_helpers_beside_gemm(entries: list[str]) -> None:
    log = "".join(report(entry, 32) for entry in entries)
    words = r'extern "C" gemm and, by #include "prepare.cuh", pad_rows and transpose_a; found: '
    with pytest.raises(ValueError, match=words + (", ".join(entries) or "none")):
        resources_from_log(log, HELPERS)


def test_a_build_with_shifts_is_told_of_both_headers() -> None:
    log = "".join(report(entry, 32) for entry in ("gemm", "pad_rows", "transpose_a"))
    words = 'by #include "prepare.cuh" and #include "prepare_shifts.cuh", pad_rows and shifts_of_a'
    with pytest.raises(ValueError, match=words):
        resources_from_log(log, HELPERS | SHIFTS_HELPERS)
    log += report("shifts_of_a", 32) + report("shifts_of_b", 32)
    assert resources_from_log(log, HELPERS | SHIFTS_HELPERS)["registers_per_thread"] == 32


def test_a_build_of_any_other_kind_has_no_helpers() -> None:
    log = report("gemm", 32) + report("pad_rows", 32)
    with pytest.raises(ValueError, match="the one entry function"):
        resources_from_log(log)


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_90a", "sm_120"])
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_of_these_tests_compile(
    name: str, architecture: str, make_kernel: Callable[..., Kernel]
) -> None:
    source, manifest = KERNELS[name]
    kernel = make_kernel(source, **manifest)
    [(parameter, [value])] = manifest["sweep"].items()
    row, cubin = compile_build(kernel, {parameter: value}, architecture)
    assert row["status"] == Status.OK, row["detail"]
    assert cubin
    assert row["spill_store_bytes"] == 0


@needs_nvrtc
def test_clusters_that_only_some_gpus_have_are_built_for_those(
    make_kernel: Callable[..., Kernel],
) -> None:
    source, manifest = LARGEST
    kernel = make_kernel(source, **manifest)
    assert compile_build(kernel, {"SPLIT": 16}, "sm_90a")[0]["status"] == Status.OK
    row, _ = compile_build(kernel, {"SPLIT": 16}, "sm_120")
    assert row["status"] == Status.INFEASIBLE_CLUSTER
    assert row["detail"] == "16 blocks per cluster; sm_120 allows 8"


@needs_nvrtc
def test_a_kernel_that_forgets_the_helpers_is_told_what_to_include(
    make_kernel: Callable[..., Kernel],
) -> None:
    source, manifest = KERNELS["12_turned"]
    kernel = make_kernel(source.replace('#include "prepare.cuh"', ""), **manifest)
    row, _ = compile_build(kernel, {"TURNED": 1}, "sm_90a")
    assert row["status"] == Status.COMPILE_FAILED
    assert '#include "prepare.cuh"' in row["detail"]


# --- on the CPU -----------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("name", ["10_pair", "12_turned", "13_as_it_lies"])
def test_every_kind_runs_in_the_emulator_with_its_helpers(
    name: str, make_kernel: Callable[..., Kernel], emulator_cache: Path
) -> None:
    source, manifest = KERNELS[name]
    kernel = make_kernel(source, **manifest)
    [(parameter, [value])] = manifest["sweep"].items()
    for m, n, k in ODD_SIZES[:2] + ODD_SIZES[3:]:
        point = emulate_point(kernel, {parameter: value}, m, n, k, cache=emulator_cache)
        assert point.status == Status.OK, (m, n, k, point.detail)
        assert point.result is not None
        launch = kernel.launch({parameter: value}, m, n, k)
        assert launch is not None
        mapped = mapped_matrices(launch.tensor_maps, m, n, k) if launch.tensor_maps else ()
        copied = sum(m * k if one.matrix == "A" else k * n for one in mapped if one.helper)
        # The counters are those of all launches: C once, and each copy once.
        written = point.result.counters["requested_store_bytes"]
        assert written == 4 * (m * n + copied)


@needs_compiler
@pytest.mark.parametrize("entry", sorted(HELPERS))
def test_a_helper_walks_on_where_its_grid_ends_along_y(
    entry: str, make_kernel: Callable[..., Kernel], emulator_cache: Path
) -> None:
    kernel = make_kernel(KERNELS["12_turned"][0], **KERNELS["12_turned"][1])
    assert kernel.source_path is not None
    library = build_library(kernel.source_path, {"TURNED": 1}, entry=entry, cache=emulator_cache)
    rows, columns = 70, 133
    maps = TensorMaps((32, 8), (32, 8), entry == "transpose_a")
    mapped, _ = mapped_matrices(maps, rows, 4, columns)
    assert mapped.helper is not None
    x, y, _ = mapped.helper.grid
    assert y > 1
    matrix = np.arange(rows * columns, dtype=np.float32)
    copy = np.full(mapped.rows * mapped.pitch, -1, np.float32)
    sizes = {"rows": rows, "columns": columns, "pitch": mapped.pitch}
    launch = Launch((x, 1, 1), mapped.helper.block, 0)
    seen = observe(library, launch, {"in": matrix, "out": copy, **sizes})
    assert not seen.findings
    expected = matrix.reshape(rows, columns)
    found = copy.reshape(mapped.rows, mapped.pitch)
    assert (found[:, : mapped.columns] == (expected.T if maps.transpose_a else expected)).all()
    assert (found[:, mapped.columns :] == -1).all()


# --- the driver's structures ----------------------------------------------------------------------


def bindings() -> Any:
    return pytest.importorskip("cuda.bindings.driver")


def ready(cluster: tuple[int, int, int] | None) -> driver.KernelLaunch:
    arguments = [ctypes.c_void_p(2**40), ctypes.c_int(7)]
    return driver.KernelLaunch(
        1, (5, 4, 3), (32, 2, 1), arguments, stream=2**33 + 64,
        dynamic_shared_memory_bytes=50_000, cluster=cluster,
    )  # fmt: skip


def test_a_launch_is_laid_out_as_nvidias_own_bindings_lay_it_out() -> None:
    cuda = bindings()
    theirs = cuda.CUlaunchConfig()
    theirs.gridDimX, theirs.gridDimY, theirs.gridDimZ = 5, 4, 3
    theirs.blockDimX, theirs.blockDimY, theirs.blockDimZ = 32, 2, 1
    theirs.sharedMemBytes, theirs.hStream = 50_000, 2**33 + 64
    ours = ready(None).configuration
    size = ctypes.sizeof(driver.LaunchConfiguration)
    assert bytes(ours) == ctypes.string_at(theirs.getPtr(), size)


def test_a_cluster_is_laid_out_as_nvidias_own_bindings_lay_it_out() -> None:
    cuda = bindings()
    theirs = cuda.CUlaunchAttribute()
    theirs.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    value = theirs.value
    value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = 2, 4, 1
    ours = ready((2, 4, 1)).configuration
    assert ours.attribute_count == 1
    size = ctypes.sizeof(driver.LaunchAttribute)
    assert size == 72
    assert bytes(ours.attributes.contents) == ctypes.string_at(theirs.getPtr(), size)
    names = cuda.CUfunction_attribute
    allowed = names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    assert int(allowed) == driver.NON_PORTABLE_CLUSTER_SIZE_ALLOWED


def test_the_driver_is_handed_the_addresses_of_living_arguments() -> None:
    launch = ready(None)
    assert ctypes.c_void_p.from_address(launch.parameters[0]).value == 2**40
    assert ctypes.c_int.from_address(launch.parameters[1]).value == 7


def test_a_tensor_map_lies_where_the_driver_wants_it() -> None:
    maps = [driver.aligned_tensor_map() for _ in range(20)]
    assert all(ctypes.addressof(one) % 64 == 0 for one in maps)
    assert all(ctypes.sizeof(one) == 128 for one in maps)


def test_a_tensor_map_is_asked_for_in_the_drivers_order(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = bindings()
    asked: list[Any] = []
    monkeypatch.setattr(driver, "_call", lambda name, *arguments: asked.extend([name, *arguments]))
    plain = {"rows": 33, "columns": 65, "pitch_bytes": 272, "box": (32, 8)}
    driver.encode_tensor_map(2**40, **plain)
    name, _, kind, rank, address, extents, strides, box, steps, *modes = asked
    assert name == "cuTensorMapEncodeTiled"
    assert kind.value == int(cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32)
    assert (rank.value, address.value) == (2, 2**40)
    assert [list(a) for a in (extents, strides, box, steps)] == [[65, 33], [272], [32, 8], [1, 1]]
    assert [mode.value for mode in modes] == [
        int(cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE),
        int(cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
        int(cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    ]
    for swizzle in ("32B", "64B", "128B"):
        asked.clear()
        driver.encode_tensor_map(2**40, **plain, swizzle=swizzle)
        named = getattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}")
        assert asked[-3].value == int(named)


# --- a whole run, on a GPU that does not exist ----------------------------------------------------


def test_points_of_every_kind_are_measured_once_and_found_again(
    make_project: Callable[..., Project],
) -> None:
    config = {
        "sizes": {"shapes": [[65, 129, 33], [64, 64, 64]]},
        "kernels": {name: {} for name in KERNELS},
        "protocol": QUICK,
        "architectures": ["sm_90a"],
    }
    project = make_project(config, kernels=[])
    for name, (source, manifest) in KERNELS.items():
        project.add_kernel(name, source, **manifest)
    project.fake_gpu()
    project.pretend_compiled()
    project.measure()
    rows = project.table("points")
    assert {row["status"] for row in rows} <= {"ok", "ok_noisy"}
    assert all(row["block_x"] and row["grid_x"] for row in rows)
    journal = project.folder / "results/fake-gpu/journal"
    before = load_journal(journal)
    assert len(before.checks) == 2 * len(KERNELS)
    assert "0 measured now" in project.measure().stdout
    assert load_journal(journal).checks == before.checks


def test_the_sizes_of_these_tests_need_every_combination_of_copies() -> None:
    needed = {(k % 4 != 0, n % 4 != 0) for _, n, k in ODD_SIZES}
    assert needed == {(a, b) for a in (False, True) for b in (False, True)}
