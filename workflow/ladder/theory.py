"""What the closed forms say of a point: traffic at each level, and what follows from it.

Forms that depend on the kernel stand in its manifest (`closed_forms` has their names). Here are
those that do not: compulsory traffic, bounds, and ratios. Ratios are the same for every source of
counts, so `ratios` serves theory, emulator, machine code and hardware alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from .closed_forms import CLOSED_FORMS
from .expressions import ExpressionError, Number, evaluate
from .manifest import Kernel, Params, first_violation

SECTOR_BYTES = 32
FLOAT_BYTES = 4
WARP = 32

COMPULSORY_BYTES = "compulsory_bytes"
"""4 (MK + KN + MN): every matrix moved once."""
DRAM_READ_BOUND = "dram_read_bytes_lower_bound"
"""4 (MK + KN): a launch that finds nothing in L2 reads A and B at least once."""
L2_READ_BOUND = "l2_read_bytes_upper_bound"
"""Bytes that L2 sends to the multiprocessors if no load finds its sector in L1."""
SECTORS_PER_REQUEST = "sectors_per_load_request"
BYTES_PER_SECTOR = "bytes_per_load_sector"
REQUESTED_INTENSITY = "intensity_requested"
"""flop for each byte that threads ask of global memory, copies of TMA included."""
SHARED_INTENSITY = "intensity_shared"
"""flop for each byte that threads read from and write to shared memory."""
L1_INTENSITY = "intensity_l1"
"""flop for each byte of the sectors that loads, stores and copies touch."""
COMPULSORY_INTENSITY = "intensity_compulsory"
"""flop for each compulsory byte."""
FMA_SHARE = "fma_share"
"""FMAs among the instructions that warps issue."""

UNITS = {
    COMPULSORY_BYTES: "byte",
    DRAM_READ_BOUND: "byte",
    L2_READ_BOUND: "byte",
    SECTORS_PER_REQUEST: "sector/request",
    BYTES_PER_SECTOR: "byte/sector",
    REQUESTED_INTENSITY: "flop/byte",
    SHARED_INTENSITY: "flop/byte",
    L1_INTENSITY: "flop/byte",
    COMPULSORY_INTENSITY: "flop/byte",
    FMA_SHARE: "1",
    **{form.metric: form.unit for form in CLOSED_FORMS.values()},
}
"""The unit of every metric of the source `theory`."""


def _metric(name: str) -> str:
    return CLOSED_FORMS[name].metric


_LOADS, _STORES = _metric("global_load_requests"), _metric("global_store_requests")
_LOAD_SECTORS, _STORE_SECTORS = _metric("global_load_sectors"), _metric("global_store_sectors")
_TMA_SECTORS, _TMA_BYTES = _metric("tma_load_sectors"), _metric("tma_load_bytes")
_SHARED_LOADS, _SHARED_STORES = _metric("shared_loads"), _metric("shared_stores")


@dataclass(frozen=True)
class Value:
    """One metric of a point: its value, or why there is none."""

    metric: str
    value: float | None
    detail: str | None = None

    @property
    def unit(self) -> str:
        return UNITS[self.metric]


def theory(kernel: Kernel, params: Params, m: int, n: int, k: int) -> list[Value]:
    """The closed forms of one point: the manifest's, and what follows from them.

    A form that is exact only under a condition has no value where that fails, but the reason. Of a
    kernel that selects others the forms are those of what it runs.

    Args:
        params: a value for every parameter of the kernel.
    """
    kernel, params = kernel.resolve(params)
    stated = list(_stated(kernel, params, m, n, k))
    known = {item.metric: item.value for item in stated if item.value is not None}
    unknown = {item.metric for item in stated if item.value is None}
    read = FLOAT_BYTES * (m * k + k * n)
    general = {COMPULSORY_BYTES: read + FLOAT_BYTES * m * n, DRAM_READ_BOUND: read}
    if _LOAD_SECTORS in known and _TMA_SECTORS not in unknown:
        moved = known[_LOAD_SECTORS] + known.get(_TMA_SECTORS, 0.0)
        general[L2_READ_BOUND] = int(SECTOR_BYTES * moved)
    derived = ratios(known, m, n, k, unknown)
    share = source_fma_share(known)
    if share is not None:
        derived[FMA_SHARE] = share
    derived[COMPULSORY_INTENSITY] = 2.0 * m * n * k / general[COMPULSORY_BYTES]
    further = {**general, **derived}
    return [*stated, *(Value(name, float(value)) for name, value in further.items())]


def _stated(kernel: Kernel, params: Params, m: int, n: int, k: int) -> Iterator[Value]:
    """The manifest's own forms, in the order in which they are written."""
    manifest = kernel.manifest
    names: dict[str, Number] = {**params, "M": m, "N": n, "K": k}
    for name, text in manifest.theory.items():
        value = _evaluated(name, text, names)
        if value.value is not None:
            names[name] = evaluate(text, names)
        yield value
    launch = kernel.launch(params, m, n, k)
    if launch:
        names |= {"blocks": math.prod(launch.grid), "threads": launch.threads}
    for group in manifest.theory_where:
        fault: str | None
        own = dict(names)
        try:
            fault = first_violation([group], own)
            if fault is None:
                for name, text in group.terms.items():
                    own[name] = evaluate(text, own)
        except ExpressionError as error:
            fault = str(error)
        for name, text in group.forms.items():
            if fault is not None:
                yield Value(_metric(name), None, f"no closed form here: {fault}")
                continue
            value = _evaluated(name, text, own)
            if value.value is not None:
                own[name] = evaluate(text, own)
            yield value


def _evaluated(name: str, text: str | int, names: Mapping[str, Number]) -> Value:
    try:
        return Value(_metric(name), float(evaluate(text, names)))
    except ExpressionError as error:
        return Value(_metric(name), None, str(error))


# --- ratios, of the counts of any source ----------------------------------------------------------


def ratios(
    counts: Mapping[str, float], m: int, n: int, k: int, unknown: Collection[str] = ()
) -> dict[str, float]:
    """Sectors per request, useful bytes per sector and arithmetic intensities, where counts tell.

    Args:
        counts: by metric, of one launch of C (m x n) = A (m x k) B (k x n).
        unknown: metrics that the launch has and the counts do not tell; what else is missing is 0
            if it is a further part, as copies of TMA are.

    Returns:
        By metric; a ratio with an unknown part, or with nothing below the line, is left out.
        An intensity is work, 2 m n k flop, over the bytes moved at a level: Williams, Waterman &
        Patterson, CACM 52(4), 2009.
    """
    flop = 2.0 * m * n * k
    sectors = _sum(counts, (_LOAD_SECTORS, _STORE_SECTORS), (_TMA_SECTORS,), unknown)
    parts = {
        SECTORS_PER_REQUEST: (counts.get(_LOAD_SECTORS), counts.get(_LOADS)),
        BYTES_PER_SECTOR: (counts.get("unique_load_bytes"), counts.get(_LOAD_SECTORS)),
        REQUESTED_INTENSITY: (
            flop,
            _sum(
                counts,
                ("requested_load_bytes", "requested_store_bytes"),
                (_TMA_BYTES,),
                unknown,
            ),
        ),
        SHARED_INTENSITY: (flop, _sum(counts, ("shared_load_bytes", "shared_store_bytes"))),
        L1_INTENSITY: (flop, None if sectors is None else SECTOR_BYTES * sectors),
    }
    return {
        name: over / under for name, (over, under) in parts.items() if over is not None and under
    }


def _sum(
    counts: Mapping[str, float],
    needed: tuple[str, ...],
    further: tuple[str, ...] = (),
    unknown: Collection[str] = (),
) -> float | None:
    if any(name not in counts for name in needed) or any(name in unknown for name in further):
        return None
    return sum(counts.get(name, 0.0) for name in (*needed, *further))


def source_fma_share(counts: Mapping[str, float]) -> float | None:
    """FMAs among FMAs and memory instructions, as the source has them; None if one is unknown.

    Addresses, loops and barriers come on top, so a warp's issue slots hold a smaller share, unless
    the compiler merges accesses into wider ones.
    """
    fma = counts.get(_metric("fma"))
    memory = _sum(counts, (_LOADS, _STORES), (_SHARED_LOADS, _SHARED_STORES))
    if fma is None or memory is None:
        return None
    return fma / WARP / (fma / WARP + memory)
