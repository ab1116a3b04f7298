"""The hardware counters that a profile asks for: names, renamed ones, units, and ratios of sums.

NVIDIA renames counters, and not every GPU has each. A counter keeps one name in our tables, that of
compute capability 9.0; `asked` gives the name under which a GPU's profiler knows it. The names are
held against NVIDIA's own metric library for six chips by `tests/profile/metrics_by_chip.csv`.

A product may take several launches: copies for tensor maps, then `gemm`. Counts of all of them are
added up, as the emulator does, and ratios are made of the sums. What cannot be added, a percentage
of a peak, is that of the main launch alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .emulator.compiled import (
    FFMA,
    INSTRUCTIONS,
    LOCAL_LOADS,
    LOCAL_STORES,
    PREDICATED_SHARED_LOADS,
    PREDICATED_SHARED_STORES,
)
from .emulator.result import (
    ASYNC_COPIES,
    GLOBAL_LOAD_REQUESTS,
    GLOBAL_LOAD_SECTORS,
    GLOBAL_STORE_REQUESTS,
    GLOBAL_STORE_SECTORS,
    SHARED_LOAD_CONFLICTS,
    SHARED_LOAD_WAVEFRONTS,
    SHARED_LOADS,
    SHARED_STORE_CONFLICTS,
    SHARED_STORE_WAVEFRONTS,
    SHARED_STORES,
)

Capability = tuple[int, int]

_HOPPER: Capability = (9, 0)
_BLACKWELL: Capability = (10, 0)
_CONSUMER_BLACKWELL: Capability = (12, 0)
_NO_END: Capability = (1000, 0)

L1_HIT_RATE = "l1tex__t_sector_hit_rate.pct"
L2_HIT_RATE = "lts__t_sector_hit_rate.pct"
BYTES_PER_SECTOR = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
FMA_PIPE = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
DRAM_READ = "dram__bytes_read.sum"
DRAM_WRITTEN = "dram__bytes_write.sum"
GLOBAL_TAGS = "smsp__sass_l1tex_tags_mem_global.sum"
L2_READ = "l1tex__m_xbar2l1tex_read_bytes.sum"
LOADED_BYTES = "smsp__sass_data_bytes_mem_global_op_ld.sum"
LOADED_SECTORS = "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ld.sum"
STORED_BYTES = "smsp__sass_data_bytes_mem_global_op_st.sum"
COPIED_BYTES = "smsp__sass_data_bytes_mem_global_op_ldgsts.sum"
COPIED_SECTORS = "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum"
REMOTE_LOADS = "smsp__sass_inst_executed_op_dshared_ld.sum"
"""Loads from the shared memory of other blocks of the cluster."""
EXACT_WAVEFRONTS = {
    SHARED_LOAD_WAVEFRONTS: "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    SHARED_STORE_WAVEFRONTS: "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
}
"""The same without wavefronts that belong to no instruction."""

_L1_SECTORS, _L1_HITS = "l1tex__t_sectors.sum", "l1tex__t_sectors_lookup_hit.sum"
_L2_HITS, _L2_MISSES = "lts__t_sectors_lookup_hit.sum", "lts__t_sectors_lookup_miss.sum"


@dataclass(frozen=True)
class Counter:
    """One counter of a launch."""

    name: str
    unit: str
    since: Capability = (0, 0)
    """The oldest compute capability whose hardware has what is counted."""
    until: Capability = _NO_END
    """The first one that has it no more."""
    renamed: tuple[Capability, str] | None = None
    """From which compute capability on it has which other name."""

    @property
    def additive(self) -> bool:
        """Whether the counts of several launches may be added."""
        return self.name.endswith(".sum")

    def asked(self, capability: Capability) -> str | None:
        """Its name for the profiler of a GPU; None if such a GPU has no such thing to count."""
        if not self.since <= capability < self.until:
            return None
        if self.renamed and capability >= self.renamed[0]:
            return self.renamed[1]
        return self.name


def _stall(reason: str, since: Capability = (0, 0), until: Capability = _NO_END) -> Counter:
    return Counter(f"smsp__warps_issue_stalled_{reason}.sum", "warp cycle", since, until)


COUNTERS: tuple[Counter, ...] = (
    # Global memory: what warps ask of L1.
    Counter(GLOBAL_LOAD_REQUESTS, "request"),
    Counter(GLOBAL_LOAD_SECTORS, "sector"),
    Counter(GLOBAL_STORE_REQUESTS, "request"),
    Counter(GLOBAL_STORE_SECTORS, "sector"),
    Counter(LOADED_BYTES, "byte"),
    Counter(LOADED_SECTORS, "sector"),
    Counter(STORED_BYTES, "byte"),
    # Lines of 128 bytes that a request touches: L1 looks up one a clock.
    Counter(GLOBAL_TAGS, "tag"),
    # Caches and DRAM.
    Counter(_L1_SECTORS, "sector"),
    Counter(_L1_HITS, "sector"),
    Counter(L2_READ, "byte"),
    Counter("lts__t_bytes.sum", "byte"),
    Counter("lts__t_sectors_op_read.sum", "sector"),
    Counter("lts__t_sectors_op_write.sum", "sector"),
    Counter(_L2_HITS, "sector"),
    Counter(_L2_MISSES, "sector"),
    Counter(DRAM_READ, "byte", renamed=(_CONSUMER_BLACKWELL, "dram__bytes_op_read.sum")),
    Counter(DRAM_WRITTEN, "byte", renamed=(_CONSUMER_BLACKWELL, "dram__bytes_op_write.sum")),
    # Shared memory. The `sass` counters leave out accesses whose predicate is never true, and
    # wavefronts that belong to no instruction.
    Counter(SHARED_LOADS, "inst"),
    Counter(SHARED_STORES, "inst"),
    Counter(PREDICATED_SHARED_LOADS, "inst"),
    Counter(PREDICATED_SHARED_STORES, "inst"),
    Counter(SHARED_LOAD_WAVEFRONTS, "wavefront"),
    Counter(SHARED_STORE_WAVEFRONTS, "wavefront"),
    Counter(EXACT_WAVEFRONTS[SHARED_LOAD_WAVEFRONTS], "wavefront"),
    Counter(EXACT_WAVEFRONTS[SHARED_STORE_WAVEFRONTS], "wavefront"),
    Counter(SHARED_LOAD_CONFLICTS, "conflict"),
    Counter(SHARED_STORE_CONFLICTS, "conflict"),
    # Asynchronous copies: cp.async, TMA, and loads from another block of the cluster.
    Counter(ASYNC_COPIES, "inst"),
    Counter(COPIED_BYTES, "byte"),
    Counter(COPIED_SECTORS, "sector"),
    Counter("smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum", "conflict"),
    Counter("smsp__sass_inst_executed_op_tma_ld.sum", "inst", since=_HOPPER),
    Counter("l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum", "byte", since=_HOPPER),
    Counter(REMOTE_LOADS, "inst", since=_HOPPER),
    # Instructions: of warps, by pipe and by kind of access; of threads, by arithmetic.
    Counter(INSTRUCTIONS, "inst"),
    Counter("smsp__inst_issued.sum", "inst"),
    Counter("smsp__inst_executed_pipe_fma.sum", "inst"),
    Counter("smsp__inst_executed_pipe_alu.sum", "inst"),
    Counter("smsp__inst_executed_pipe_lsu.sum", "inst"),
    Counter("smsp__inst_executed_pipe_uniform.sum", "inst"),
    Counter("smsp__inst_executed_pipe_tensor.sum", "inst"),
    Counter("smsp__sass_inst_executed_op_global_ld.sum", "inst"),
    Counter("smsp__sass_inst_executed_op_global_st.sum", "inst"),
    Counter(LOCAL_LOADS, "inst"),
    Counter(LOCAL_STORES, "inst"),
    Counter(FFMA, "inst"),
    Counter("sm__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst"),
    Counter("sm__sass_thread_inst_executed_op_fmul_pred_on.sum", "inst"),
    Counter("sm__sass_thread_inst_executed_op_integer_pred_on.sum", "inst"),
    Counter("sm__sass_thread_inst_executed_op_memory_pred_on.sum", "inst"),
    Counter("sm__sass_thread_inst_executed_op_control_pred_on.sum", "inst"),
    Counter(FMA_PIPE, "%"),
    # Warps: how many were there, and what each waited for in every cycle.
    Counter(OCCUPANCY, "%"),
    Counter("smsp__warps_active.sum", "warp cycle"),
    Counter("smsp__issue_active.sum", "cycle"),
    _stall("barrier"),
    _stall("branch_resolving"),
    _stall("dispatch_stall"),
    _stall("drain"),
    _stall("gmma", since=_HOPPER, until=_BLACKWELL),
    _stall("imc_miss", until=_BLACKWELL),
    _stall("lg_throttle"),
    _stall("long_scoreboard"),
    _stall("math_pipe_throttle"),
    _stall("membar"),
    _stall("mio_throttle"),
    _stall("misc"),
    _stall("no_instruction"),
    _stall("not_selected"),
    _stall("selected"),
    _stall("short_scoreboard"),
    _stall("sleeping"),
    _stall("tex_throttle"),
    _stall("wait"),
)


@dataclass(frozen=True)
class Ratio:
    """A ratio of two sums: of one counter to the sum of others, times `scale`."""

    name: str
    unit: str
    over: str
    under: tuple[str, ...]
    scale: float = 1.0


RATIOS: tuple[Ratio, ...] = (
    Ratio(BYTES_PER_SECTOR, "byte/sector", LOADED_BYTES, (LOADED_SECTORS,)),
    Ratio(L1_HIT_RATE, "%", _L1_HITS, (_L1_SECTORS,), 100.0),
    Ratio(L2_HIT_RATE, "%", _L2_HITS, (_L2_HITS, _L2_MISSES), 100.0),
)


@dataclass(frozen=True)
class Value:
    """What is known of one metric of a point: its value, or why there is none."""

    name: str
    unit: str
    value: float | None
    detail: str | None = None


Launch = Mapping[str, float | str]
"""Counters of one launch by their names in `COUNTERS`: the value, or why there is none."""


def names_asked(capability: Capability) -> dict[str, Counter]:
    """What to ask the profiler of a GPU for, by the name that it knows."""
    named = ((counter.asked(capability), counter) for counter in COUNTERS)
    return {name: counter for name, counter in named if name is not None}


def values_of_point(asked: Iterable[Counter], launches: Sequence[Launch], main: int) -> list[Value]:
    """The metrics of a point: counts of all its launches added up, and ratios of the sums.

    Args:
        launches: all launches of the point, in order.
        main: index of the launch whose percentages stand for the point.
    """
    values = {counter.name: _value(counter, launches, main) for counter in asked}
    return [*values.values(), *(item for ratio in RATIOS if (item := _ratio(ratio, values)))]


def _value(counter: Counter, launches: Sequence[Launch], main: int) -> Value:
    taken = launches if counter.additive else [launches[main]]
    cells = [launch[counter.name] for launch in taken]
    known = [cell for cell in cells if not isinstance(cell, str)]
    if len(known) < len(cells):
        why = next(cell for cell in cells if isinstance(cell, str))
        return Value(counter.name, counter.unit, None, why)
    alone = not counter.additive and len(launches) > 1
    return Value(
        counter.name,
        counter.unit,
        sum(known),
        f"of launch {main + 1} of {len(launches)} alone" if alone else None,
    )


def _ratio(ratio: Ratio, values: Mapping[str, Value]) -> Value | None:
    """None where nothing was counted below the line: a ratio to nothing is no number."""
    parts = [values[name] for name in (ratio.over, *ratio.under)]
    for part in parts:
        if part.value is None:
            return Value(ratio.name, ratio.unit, None, f"{part.name}: {part.detail}")
    over, *under = (part.value or 0.0 for part in parts)
    whole = sum(under)
    return Value(ratio.name, ratio.unit, ratio.scale * over / whole) if whole else None
