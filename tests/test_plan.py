"""Planning: which points and builds follow from a configuration, and what cannot run."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ladder import schema
from ladder.config import Config, load
from ladder.documents import UserError
from ladder.manifest import Kernel, Launch, Manifest, canonical, expand, load_all
from ladder.plan import (
    PlannedPoint,
    Point,
    architecture_fault,
    build_fault,
    launch_fault,
    memory_fault,
    plan_builds,
    plan_points,
    read_config,
    read_points,
    write_plan,
)
from ladder.status import Status
from project import MANIFEST, ROOT

# What a kernel that selects others runs depends on the size: tests/test_selection.py.
SHIPPED = {
    name: kernel for name, kernel in load_all(ROOT / "kernels").items() if not kernel.candidates
}
some = settings(max_examples=40, deadline=None)


def kernel_of(name: str = "mine", **manifest: Any) -> Kernel:
    return Kernel(
        name,
        Manifest.model_validate(MANIFEST | manifest),
        Path(f"kernels/{name}.yaml"),
        Path(f"kernels/{name}.cu"),
    )


def plan_of(kernel: Kernel, *shapes: tuple[int, int, int], **choice: Any) -> list[PlannedPoint]:
    config = Config.model_validate(
        {"sizes": {"shapes": [list(s) for s in shapes]}, "kernels": {kernel.name: choice}}
    )
    return plan_points(config, {kernel.name: kernel})


# --- families and architectures -------------------------------------------------------------------

ONE_PRODUCT, THREE_PRODUCTS = (
    {"family": "tensor", "tensor_cores": {"inputs": "tf32", "products": products}}
    for products in (1, 3)
)


@pytest.mark.parametrize(
    ("manifest", "architecture", "words"),
    [
        ({"minimum_compute_capability": "9.0"}, "sm_89", "needs compute capability 9.0 or newer"),
        ({"only_architecture": "sm_90a"}, "sm_90", "needs sm_90a; no other target"),
        ({"only_architecture": "sm_90a"}, "sm_90a", None),
        (THREE_PRODUCTS, "sm_90a", None),
        (THREE_PRODUCTS, "sm_120", "3 TF32 products.*compute capability 12.0 make at most 2"),
        (ONE_PRODUCT, "sm_120", None),
    ],
)
def test_what_an_architecture_cannot_do_or_not_usefully_is_told(
    manifest: dict[str, Any], architecture: str, words: str | None
) -> None:
    fault = architecture_fault(kernel_of(**manifest), architecture)
    if words is None:
        assert fault is None
    else:
        assert fault is not None
        assert fault[0] is Status.SKIPPED_UNSUPPORTED
        assert re.search(words, fault[1])


def by_parameter(*values: int) -> Kernel:
    return kernel_of(
        family="tensor",
        tensor_cores={"inputs": "tf32", "products": "4 - TILE"},
        parameters={"TILE": {"description": "side", "values": [1, 2, 3, 4]}},
        sweep=[{"TILE": value} for value in values],
    )


def test_a_kernel_is_refused_if_even_its_fewest_products_are_too_many() -> None:
    assert architecture_fault(by_parameter(1, 2), "sm_120") is None
    fault = architecture_fault(by_parameter(1), "sm_120")
    assert fault is not None and "3 TF32 products" in fault[1]


def test_a_set_without_products_is_told_with_its_manifest() -> None:
    with pytest.raises(UserError, match=r"'4 - TILE' gives 0; at least 1 is needed"):
        plan_of(by_parameter(4), (64, 64, 64))


def test_a_plan_says_the_family_of_every_point(tmp_path: Path) -> None:
    names = {"mine": {}, "other": {}}
    kernels = {"mine": kernel_of("mine"), "other": kernel_of("other", **THREE_PRODUCTS)}
    config = Config.model_validate({"sizes": {"square": [64]}, "kernels": names})
    write_plan(tmp_path / "plan.parquet", config, kernels)
    rows = schema.read(tmp_path / "plan.parquet", "plan").to_pylist()
    assert {row["kernel"]: row["family"] for row in rows} == {"mine": "fp32", "other": "tensor"}


# --- properties of every plan ---------------------------------------------------------------------

sizes = st.integers(1, 100_000)
shapes = st.lists(st.tuples(sizes, sizes, sizes).map(list), max_size=4, unique_by=tuple)
squares = st.lists(sizes, min_size=1, max_size=5, unique=True)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    square = draw(squares)
    rectangular = [shape for shape in draw(shapes) if len(set(shape)) > 1]
    kernels: dict[str, dict[str, Any]] = {}
    for name in draw(st.lists(st.sampled_from(sorted(SHIPPED)), min_size=1, unique=True)):
        kernels[name] = {}
        if draw(st.booleans()):
            kernels[name]["largest"] = draw(st.integers(min(square), 120_000))
        elif draw(st.booleans()):
            kernels[name]["smallest"] = draw(st.integers(1, max(square)))
        if draw(st.booleans()):
            kernels[name]["shapes"] = draw(st.booleans())
        if name == "01_naive" and draw(st.booleans()):
            sides = st.lists(st.integers(1, 1024), min_size=1, max_size=3, unique=True)
            kernels[name]["sweep"] = {"BLOCK_X": draw(sides), "BLOCK_Y": draw(sides)}
    modes = {mode: draw(st.lists(st.sampled_from(square), max_size=3)) for mode in ("hot", "cold")}
    return {
        "sizes": {"square": square, "shapes": rectangular},
        "kernels": kernels,
        "cache_modes": modes,
    }


def planned(data: dict[str, Any]) -> list[PlannedPoint]:
    config = Config.model_validate(data)
    return plan_points(config, {name: SHIPPED[name] for name in config.kernels})


@some
@given(configurations())
def test_every_kernel_set_and_size_of_the_configuration_is_planned_exactly_once(
    data: dict[str, Any],
) -> None:
    expected: Counter[Point] = Counter()
    rotating = [(n, n, n) for n in data["sizes"]["square"]] + data["sizes"]["shapes"]
    wanted = [(tuple(shape), "rotating") for shape in rotating]
    for mode in ("hot", "cold"):
        wanted += [((n, n, n), mode) for n in set(data["cache_modes"][mode])]
    for name, choice in data["kernels"].items():
        sweep = choice.get("sweep", SHIPPED[name].manifest.sweep)
        for params in expand(sweep):
            for shape, mode in wanted:
                square = len(set(shape)) == 1
                if (
                    choice.get("smallest", 1) <= min(shape)
                    and max(shape) <= choice.get("largest", max(shape))
                    and (square or choice.get("shapes", True))
                ):
                    expected[Point(name, canonical(params), *shape, mode)] += 1
    assert Counter(item.point for item in planned(data)) == expected
    assert set(expected.values()) == {1}


@some
@given(configurations(), st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_in_which_things_are_written(
    data: dict[str, Any], random: Any
) -> None:
    def shuffled(items: list[Any]) -> list[Any]:
        return random.sample(items, len(items))

    again = {
        "cache_modes": {mode: shuffled(side) for mode, side in data["cache_modes"].items()},
        "kernels": {name: data["kernels"][name] for name in shuffled(list(data["kernels"]))},
        "sizes": {name: shuffled(values) for name, values in data["sizes"].items()},
    }
    assert planned(again) == planned(data)


@some
@given(configurations(), sizes, sizes, sizes)
def test_one_more_size_adds_exactly_its_points_and_changes_no_other(
    data: dict[str, Any], m: int, n: int, k: int
) -> None:
    known = [(side,) * 3 for side in data["sizes"]["square"]]
    if [m, n, k] in data["sizes"]["shapes"] or (m, n, k) in known:
        return
    before = planned(data)
    more = {**data["sizes"], "shapes": [*data["sizes"]["shapes"], [m, n, k]]}
    after = planned({**data, "sizes": more})
    added = [item for item in after if item not in before]
    assert [item for item in after if item in before] == before
    assert all(item.point.shape == (m, n, k) for item in added)
    sets = {
        (name, canonical(params))
        for name, choice in data["kernels"].items()
        if choice.get("smallest", 1) <= min(m, n, k)
        and max(m, n, k) <= choice.get("largest", max(m, n, k))
        and (m == n == k or choice.get("shapes", True))
        for params in expand(choice.get("sweep", SHIPPED[name].manifest.sweep))
    }
    assert {(item.point.kernel, item.point.params) for item in added} == sets
    assert len(added) == len(sets)


@some
@given(configurations())
def test_a_point_has_either_a_geometry_that_may_be_launched_or_a_fault_in_words(
    data: dict[str, Any],
) -> None:
    for item in planned(data):
        if item.fault is None:
            if SHIPPED[item.point.kernel].needs_build:
                assert item.launch is not None
                assert 1 <= item.launch.threads <= 1024
                assert min(item.launch.grid) >= 1
                assert max(item.launch.grid[1:]) <= 65_535
        else:
            status, words = item.fault
            assert isinstance(status, Status)
            assert status not in {Status.OK, Status.OK_NOISY}
            assert len(words) > 10


@some
@given(configurations())
def test_every_runnable_point_that_needs_a_build_has_one_and_no_build_is_idle(
    data: dict[str, Any],
) -> None:
    config = Config.model_validate(data)
    kernels = {name: SHIPPED[name] for name in config.kernels}
    builds = plan_builds(config, kernels, ["sm_90a", "sm_120"])
    assert builds == sorted(set(builds))
    built = {(build.kernel, build.params) for build in builds}
    skipped = Status.SKIPPED_CONSTRAINT
    wanted = {
        (item.point.kernel, item.point.params)
        for item in planned(data)
        if kernels[item.point.kernel].needs_build and (item.fault or ("",))[0] != skipped
    }
    assert built == wanted
    assert len(builds) == 2 * len(built)


@settings(max_examples=20, deadline=None)
@given(data=configurations())
def test_a_plan_survives_its_file(data: dict[str, Any], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("plan") / "plan.parquet"
    config = Config.model_validate(data)
    kernels = {name: SHIPPED[name] for name in config.kernels}
    written = write_plan(path, config, kernels)
    assert read_points(path) == [(item.point, item.fault) for item in written]
    assert read_config(path) == config
    assert written == plan_points(config, kernels)
    assert [file.name for file in path.parent.iterdir()] == ["plan.parquet"]


def test_two_plans_of_one_configuration_are_the_same_file(tmp_path: Path) -> None:
    config, kernels = load([ROOT / "config/config.yaml"], ROOT)
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write_plan(first, config, kernels)
    write_plan(second, config, kernels)
    assert first.read_bytes() == second.read_bytes()


@given(sizes, sizes, sizes)
def test_work_and_compulsory_traffic_follow_the_formulas(m: int, n: int, k: int) -> None:
    point = Point("mine", "{}", m, n, k)
    assert point.flop == 2 * m * n * k
    assert point.bytes_min == 4 * (m * k + k * n + m * n)


def test_a_kernel_that_is_left_without_any_size_is_an_error_that_says_so() -> None:
    with pytest.raises(UserError, match=r"kernels\.mine\.largest: 4 leaves none"):
        plan_of(kernel_of(), (8, 8, 8), largest=4)
    with pytest.raises(UserError, match=r"kernels\.mine\.smallest: 16 leaves none"):
        plan_of(kernel_of(), (8, 8, 8), smallest=16)
    with pytest.raises(UserError, match=r"kernels\.mine\.shapes: false leaves none"):
        plan_of(kernel_of(), (8, 8, 4), shapes=False)


# --- case 9: illegal tile sets --------------------------------------------------------------------

TILE_NAMES = ("BM", "BN", "BK", "WM", "WN", "TM", "TN", "THREADS")
RULES = [
    ("BM % WM == 0 and BN % WN == 0", "warp tiles {WM}x{WN} must tile the block's {BM}x{BN}"),
    ("THREADS == 32 * (BM // WM) * (BN // WN)", "{THREADS} threads are not one warp a warp tile"),
    ("WM * WN % (32 * TM * TN) == 0", "32 thread tiles {TM}x{TN} must tile {WM}x{WN}"),
    ("THREADS * 4 % BK == 0 and THREADS * 4 % BN == 0", "16-byte loads must cover whole rows"),
    ("WM * WN // 32 < 255", "{WM}x{WN} accumulators over 32 lanes need more than 255 registers"),
]
WARP_TILED: dict[str, Any] = {
    "parameters": {name: {"description": name} for name in TILE_NAMES},
    "constraints": [{"require": rule, "message": message} for rule, message in RULES],
    "launch": {
        "kind": "cuda",
        "block": ["THREADS"],
        # Only a legal set divides; the geometry of any other would be no whole number.
        "grid": ["cdiv(N, BN) * (WM * WN // 32 // (TM * TN))", "cdiv(M, BM) // (BM // WM // 1)"],
    },
    "sweep": [
        {"BM": 128, "BN": 128, "BK": 8, "WM": 64, "WN": 64, "TM": 8, "TN": 4, "THREADS": 128}
    ],
}


def fault_of_tiles(tiles: dict[str, int]) -> tuple[Status, str] | None:
    [item] = plan_of(kernel_of(**WARP_TILED), (4096, 4096, 4096), sweep=[tiles])
    return item.fault


def test_an_illegal_tile_set_is_a_row_that_names_the_violated_rule() -> None:
    tiles = {"BM": 128, "BN": 256, "BK": 8, "WM": 32, "WN": 256, "TM": 8, "TN": 4, "THREADS": 128}
    assert fault_of_tiles(tiles) == (
        Status.SKIPPED_CONSTRAINT,
        "32x256 accumulators over 32 lanes need more than 255 registers "
        "(requires WM * WN // 32 < 255)",
    )


@given(
    st.fixed_dictionaries(
        {name: st.sampled_from([4, 8, 16, 32, 64, 128, 256]) for name in TILE_NAMES}
    )
)
def test_every_tile_set_is_legal_or_names_the_first_rule_it_violates(tiles: dict[str, int]) -> None:
    broken = [rule for rule, _ in RULES if not eval(rule, {}, tiles)]
    fault = fault_of_tiles(tiles)
    if not broken:
        assert fault is None or fault[0] is Status.INFEASIBLE_THREADS
        return
    assert fault is not None
    status, words = fault
    assert status is Status.SKIPPED_CONSTRAINT
    assert words.endswith(f"(requires {broken[0]})")
    assert "{" not in words


def test_an_illegal_set_does_not_keep_the_legal_ones_from_being_planned_and_built() -> None:
    good = WARP_TILED["sweep"][0]
    kernel = kernel_of(**WARP_TILED)
    sets = [good | {"BK": 4 * 2**i} for i in range(5)] + [good | {"WM": 48}]
    items = plan_of(kernel, (256, 256, 256), sweep=sets)
    assert Counter(item.fault and item.fault[0] for item in items) == {
        None: 5,
        Status.SKIPPED_CONSTRAINT: 1,
    }
    config = Config.model_validate(
        {"sizes": {"square": [256]}, "kernels": {kernel.name: {"sweep": sets}}}
    )
    assert len(plan_builds(config, {kernel.name: kernel}, ["sm_90a"])) == 5


def test_a_set_whose_geometry_does_not_exist_is_told_by_its_constraint() -> None:
    kernel = kernel_of(
        parameters={"TM": {"description": "rows", "minimum": 0}},
        constraints=[{"require": "TM > 0", "message": "a thread needs rows, not {TM}"}],
        launch={"kind": "cuda", "block": [32], "grid": ["M // TM"]},
        sweep=[{"TM": 0}],
    )
    [item] = plan_of(kernel, (8, 8, 8))
    assert item.fault == (Status.SKIPPED_CONSTRAINT, "a thread needs rows, not 0 (requires TM > 0)")


# --- case 8: sizes a kernel cannot do -------------------------------------------------------------

VECTORISED = kernel_of(
    preconditions=[
        {"require": "K % 4 == 0", "message": "16-byte loads of A need K % 4 = 0, not {K}"},
        {"require": "N % 4 == 0", "message": "16-byte loads of B need N % 4 = 0, not {N}"},
    ]
)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((3, 3, 431), "16-byte loads of A need K % 4 = 0, not 431 (requires K % 4 == 0)"),
        ((127, 129, 131), "16-byte loads of A need K % 4 = 0, not 131 (requires K % 4 == 0)"),
        ((127, 129, 132), "16-byte loads of B need N % 4 = 0, not 129 (requires N % 4 == 0)"),
        ((127, 128, 132), None),
    ],
)
def test_a_size_that_a_kernel_excludes_is_a_row_that_names_the_rule(
    shape: tuple[int, int, int], words: str | None
) -> None:
    [item] = plan_of(VECTORISED, shape)
    assert item.fault == ((Status.SKIPPED_PRECONDITION, words) if words else None)


@given(sizes, sizes, sizes)
def test_a_size_runs_exactly_if_every_precondition_holds(m: int, n: int, k: int) -> None:
    [item] = plan_of(VECTORISED, (m, n, k))
    refused = item.fault is not None and item.fault[0] is Status.SKIPPED_PRECONDITION
    assert refused == bool(k % 4 or n % 4)


# --- limits of the hardware and of int ------------------------------------------------------------

FLAT = {"kind": "cuda", "block": [256], "grid": ["cdiv(M * N, 256)"]}


@pytest.mark.parametrize(
    ("shape", "matrix"),
    [
        ((2**16, 1, 2**15), "A"),
        ((1, 2**16, 2**15), "B"),
        ((2**16, 2**15, 1), "C"),
        ((2**16 - 1, 1, 2**15), None),
        ((1, 2**16 - 1, 2**15), None),
        ((2**16 - 1, 2**15, 1), None),
    ],
)
def test_a_matrix_beyond_the_kernels_index_is_a_row_that_names_it(
    shape: tuple[int, int, int], matrix: str | None
) -> None:
    [item] = plan_of(kernel_of(launch=FLAT), shape)
    if matrix is None:
        assert item.fault is None
    else:
        assert item.fault is not None
        assert item.fault[0] is Status.SKIPPED_INT32_INDEX
        assert item.fault[1].startswith(f"{matrix} has 2,147,483,648 elements")
    [wide] = plan_of(kernel_of(launch=FLAT, index_bits=64), shape)
    assert wide.fault is None


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ([1024], None),
        ([1025], "1025 threads per block; the limit is 1024"),
        ([64, 32], "2048 threads per block; the limit is 1024"),
        ([1, 1, 64], None),
        ([1, 1, 65], "block.z is 65; allowed: 1 to 64"),
        ([32, 0], "block.y is 0; allowed: 1 to 1024"),
    ],
)
def test_a_block_beyond_the_hardware_is_a_row_with_the_number_and_the_limit(
    block: list[int], words: str | None
) -> None:
    kernel = kernel_of(launch={"kind": "cuda", "block": block, "grid": [1]})
    [item] = plan_of(kernel, (8, 8, 8))
    assert item.fault == ((Status.INFEASIBLE_THREADS, words) if words else None)


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (["M", "N"], None),
        ([1, "N + 1"], "grid.y is 65,536; allowed: 1 to 65,535"),
        ([1, 1, "N + 1"], "grid.z is 65,536; allowed: 1 to 65,535"),
        ([2**31 - 1], None),
        ([2**31], "grid.x is 2,147,483,648; allowed: 1 to 2,147,483,647"),
        (["K // 8"], "grid.x is 0; allowed: 1 to 2,147,483,647"),
    ],
)
def test_a_grid_beyond_the_hardware_is_a_row_with_the_number_and_the_limit(
    grid: list[Any], words: str | None
) -> None:
    kernel = kernel_of(launch={"kind": "cuda", "block": [1], "grid": grid})
    [item] = plan_of(kernel, (1, 65_535, 7))
    assert item.fault == ((Status.INFEASIBLE_GRID, words) if words else None)


dimension = st.integers(-1, 70_000)


@given(st.tuples(dimension, dimension, dimension), st.tuples(*[st.integers(0, 70)] * 3))
def test_a_launch_is_refused_exactly_if_a_limit_is_exceeded(
    grid: tuple[int, int, int], block: tuple[int, int, int]
) -> None:
    x, y, z = block
    legal = (
        x * y * z <= 1024
        and min(block) >= 1
        and z <= 64
        and min(grid) >= 1
        and max(grid[1:]) <= 65_535
    )
    assert (launch_fault(Launch(grid, block, 0)) is None) == legal


@given(st.integers(1, 255), st.integers(1, 1024), st.integers(0, 2**18), st.integers(0, 2**18))
@example(64, 1024, 0, 0)
@example(65, 1024, 0, 0)
@example(32, 32, 128, 232_448 - 128)
@example(32, 32, 128, 232_449 - 128)
def test_a_build_is_refused_exactly_if_its_registers_or_shared_memory_do_not_fit(
    registers: int, threads: int, static: int, dynamic: int
) -> None:
    launch = Launch((1, 1, 1), (threads, 1, 1), dynamic)
    fault = build_fault("sm_90a", launch, registers=registers, static_shared_memory_bytes=static)
    if static + dynamic > 227 * 1024:
        assert fault is not None
        assert fault[0] is Status.INFEASIBLE_SMEM
        assert f"{static + dynamic:,} bytes" in fault[1]
        assert "sm_90a allows 232,448" in fault[1]
    elif registers * threads > 65_536:
        assert fault is not None
        assert fault[0] is Status.INFEASIBLE_REGISTERS
        assert f"{registers} registers x {threads} threads = {registers * threads:,}" in fault[1]
        assert "65,536" in fault[1]
    else:
        assert fault is None


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_buffers_are_refused_exactly_if_they_exceed_85_percent_of_the_free_memory(
    needed: int, free: int
) -> None:
    fault = memory_fault(needed, free)
    assert (fault is not None) == (needed > int(0.85 * free))
    if fault:
        assert fault[0] is Status.SKIPPED_OOM_PREDICTED


def test_a_constraint_is_told_before_a_precondition_and_both_before_a_limit() -> None:
    kernel = kernel_of(
        parameters={"T": {"description": "threads"}},
        constraints=[{"require": "T <= 1024", "message": "too many"}],
        preconditions=[{"require": "K % 4 == 0", "message": "odd"}],
        launch={"kind": "cuda", "block": ["T"], "grid": ["K - 8"]},
        sweep={"T": [32, 2048]},
    )
    found = {
        (json.loads(item.point.params)["T"], item.point.k): item.fault and item.fault[0]
        for item in plan_of(kernel, (8, 8, 7), (8, 8, 8), (8, 8, 12))
    }
    assert found == {
        (2048, 7): Status.SKIPPED_CONSTRAINT,
        (2048, 8): Status.SKIPPED_CONSTRAINT,
        (2048, 12): Status.SKIPPED_CONSTRAINT,
        (32, 7): Status.SKIPPED_PRECONDITION,
        (32, 8): Status.INFEASIBLE_GRID,
        (32, 12): None,
    }
