"""What this GPU can do at most: micro-benchmarks whose machine code is checked before they count.

Each ceiling is a kernel of `kernels/ceilings` that does one thing: multiply-adds on registers,
loads from one level of the memory, a copy. The loop that is timed must hold exactly the
instructions that the number is made of: a compiler that removes some of them makes any rate
look possible. What the machine code does not show, or what exceeds what the hardware could do, is
a row with that status, and no ceiling.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from . import schema
from .compile import compiler_problem, compiler_version, run_nvrtc
from .config import Config
from .device import GpuIdentity, Target, detect, expected, select
from .emulator import sass
from .emulator.toolchain import EmulatorError
from .gpus import fp32_peak_tflops
from .measure import LastingWorker, gpu_lock, others_on, run_header
from .progress import Progress
from .status import Status
from .telemetry import Telemetry, extreme, mean, open_monitor, throttle_shares

FOLDER = Path("kernels/ceilings")
ENTRY_POINT = "ceiling"
TABLE = "ceilings.parquet"
PLAUSIBLE_SHARE = 1.02
"""Of what the hardware could do at the measured clock; above it a rate cannot be true."""

THREADS = 512
CHUNK_BYTES = 32 * 1024
"""What a block of `read.cu` and `copy.cu` works on in a trip of its loop."""
_TILE_BYTES = 2**20
"""At least so much is there to fill tiles from."""
_L2_SHARE = 4
"""L2 is read within a quarter of it: some GPUs keep what they read in both halves."""
_DRAM_TIMES_L2 = 16
"""DRAM is read and copied over so many times the L2."""

_FIRST_WARMUP_NS = 2e9  # the clock rises from idle
_WARMUP_NS = 0.3e9
_SAMPLE_NS = 5e6
_SAMPLES = 60
_TIMEOUT_S = 120.0

Level = Literal["fp32", "shared", "l1", "l2", "dram"]


@dataclass(frozen=True)
class Ceiling:
    """One micro-benchmark: what its timed loop does, and how it is launched."""

    name: str
    title: str
    """As figures and report call it."""
    source: str
    """File in `kernels/ceilings`, without its suffix."""
    level: Level
    """What it uses up: FP32 units, shared memory, L1, L2 or DRAM."""
    unit: Literal["TFLOPS", "GB/s"]
    loop: Mapping[str, int]
    """Instructions that the timed loop must hold, as in `LDS.128`; they are compared exactly."""
    work_per_trip: int
    """Flop, or bytes that lanes receive (a copy: and send), of one thread in one trip."""
    trips: int
    """Of the loop in a launch; where memory is read round and round, rounds."""
    macros: Mapping[str, int] = field(default_factory=dict)
    threads: int = THREADS
    blocks_per_sm: int = 2
    step: int = 0
    """By how many chunks a block moves on at each trip; the grid's size for 1, none for 0."""
    bytes_per_sm_clock: int | None = None
    """What the level's data path delivers to an SM per clock, bytes; None where that is unknown."""


CEILINGS: tuple[Ceiling, ...] = (
    Ceiling(
        "fma",
        "FP32 multiply-adds on registers",
        "fma",
        "fp32",
        "TFLOPS",
        {"FFMA": 256},
        work_per_trip=2 * 256,
        trips=4000,
    ),
    Ceiling(
        "shared_fma",
        "FP32 multiply-adds of an 8 x 16 register tile fed from shared memory",
        "shared_fma",
        "fp32",
        "TFLOPS",
        {"FFMA": 1024, "LDS.128": 48},
        work_per_trip=2 * 1024,
        trips=2000,
        threads=256,
        blocks_per_sm=1,
    ),
    *(
        Ceiling(
            f"fma_loads_{4 * floats}",
            f"FP32 multiply-adds on registers, and 6 shared loads of {4 * floats} bytes to 128",
            "fma_loads",
            "fp32",
            "TFLOPS",
            {"FFMA": 128, load: 6},
            work_per_trip=2 * 128,
            trips=8000,
            macros={"FLOATS": floats},
        )
        for floats, load in ((1, "LDS"), (2, "LDS.64"), (4, "LDS.128"))
    ),
    Ceiling(
        "shared",
        "shared memory, 16-byte loads",
        "shared",
        "shared",
        "GB/s",
        {"LDS.128": 8},
        work_per_trip=8 * 16,
        trips=4000,
        macros={"SHARING": 1},
        bytes_per_sm_clock=128,
    ),
    Ceiling(
        "shared_pairs",
        "shared memory, 16-byte loads, pairs of lanes share an address",
        "shared",
        "shared",
        "GB/s",
        {"LDS.128": 8},
        work_per_trip=8 * 16,
        trips=8000,
        macros={"SHARING": 2},
        # A wavefront still brings 128 different bytes, each to two lanes.
        bytes_per_sm_clock=256,
    ),
    Ceiling(
        "l1",
        "L1, 16-byte loads",
        "read",
        "l1",
        "GB/s",
        {"LDG.128": 4},
        work_per_trip=4 * 16,
        trips=4000,
        macros={"L1": 1},
        bytes_per_sm_clock=128,
    ),
    Ceiling(
        "l2",
        "L2, 16-byte loads that pass by L1",
        "read",
        "l2",
        "GB/s",
        {"LDG.128": 4},
        work_per_trip=4 * 16,
        trips=2000,
        macros={"L1": 0},
        step=1,
        bytes_per_sm_clock=64,
    ),
    Ceiling(
        "dram_read",
        "DRAM, read only",
        "read",
        "dram",
        "GB/s",
        {"LDG.128": 4},
        work_per_trip=4 * 16,
        trips=4,
        macros={"L1": 0},
        step=1,
    ),
    Ceiling(
        "copy",
        "DRAM, copy (read and write)",
        "copy",
        "dram",
        "GB/s",
        {"LDG.128": 4, "STG.128": 4},
        work_per_trip=2 * 4 * 16,
        trips=4,
        step=1,
    ),
)


# --- machine code ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Code:
    """The machine code of a ceiling and what its timed loop holds."""

    cubin: bytes
    source_sha256: str
    counts: Mapping[str, int]
    """The instructions that the number is made of, in one trip of the timed loop."""
    loop_instructions: int
    """All instructions of the timed loop."""
    fault: tuple[Status, str] | None
    """Why a rate of this code would mean nothing; None if it is what the source says."""


def compile_ceiling(ceiling: Ceiling, folder: Path, architecture: str) -> Code:
    """Compile a ceiling and read its machine code."""
    source, header = (folder / f"{ceiling.source}.cu").read_text(), folder / "ceiling.cuh"
    digest = hashlib.sha256((source + header.read_text()).encode()).hexdigest()

    def failed(status: Status, words: str, cubin: bytes = b"") -> Code:
        return Code(cubin, digest, {}, 0, (status, words))

    problem = compiler_problem()
    if problem:
        return failed(Status.SKIPPED_UNSUPPORTED, problem)
    options = [
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        f"--include-path={folder}",
        *[f"--define-macro={name}={value}" for name, value in sorted(ceiling.macros.items())],
    ]
    cubin, log = run_nvrtc(source, f"{ceiling.source}.cu", options)
    if cubin is None:
        return failed(Status.COMPILE_FAILED, log.strip().splitlines()[0])
    try:
        program = sass.load(cubin, ENTRY_POINT)
    except EmulatorError as error:
        return failed(Status.SKIPPED_UNSUPPORTED, f"the machine code is not readable: {error}")
    counts, length = timed_loop(program, ceiling.loop)
    code = Code(cubin, digest, counts, length, None)
    if counts != dict(ceiling.loop):
        found = ", ".join(f"{counts.get(name, 0)} {name}" for name in ceiling.loop)
        wanted = ", ".join(f"{count} {name}" for name, count in ceiling.loop.items())
        words = f"the timed loop holds {found} where the source has {wanted}"
        return Code(cubin, digest, counts, length, (Status.IMPLAUSIBLE, words))
    return code


def timed_loop(program: sass.Program, wanted: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Of all loops of a kernel the one with most of the wanted instructions.

    Returns:
        The wanted instructions in one trip of it by name, and the number of all its instructions.
    """
    best: tuple[dict[str, int], int] = {}, 0
    for index, item in enumerate(program.instructions):
        if item.opcode[0] != "BRA":
            continue
        named = [text for operand in item.operands for text in _labels_in(operand)]
        starts = [program.labels[name] for name in named if name in program.labels]
        for start in starts:
            if start > index:
                continue
            body = program.instructions[start : index + 1]
            counts = {name: sum(1 for other in body if _is(other, name)) for name in wanted}
            if sum(counts.values()) > sum(best[0].values()):
                best = counts, len(body)
    return best


def _labels_in(operand: str) -> list[str]:
    return [operand.strip("`()")] if ".L" in operand else []


def _is(instruction: sass.Instruction, name: str) -> bool:
    """Whether an instruction is of a kind: `LDG.128` is any LDG of 128 bits."""
    first, *modifiers = name.split(".")
    return instruction.opcode[0] == first and set(modifiers) <= set(instruction.opcode)


# --- launches -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CeilingLaunch:
    """How a ceiling runs on one GPU, and what that does."""

    blocks: int
    trips: int
    step: int
    chunks: int
    in_bytes: int
    out_bytes: int
    work: float
    """Flop or bytes of one launch."""


def launch_of(ceiling: Ceiling, gpu: GpuIdentity) -> CeilingLaunch:
    """Geometry, buffers and work of a ceiling on a GPU."""
    blocks = gpu.sm_count * ceiling.blocks_per_sm
    footprint = {
        "l1": blocks * CHUNK_BYTES,
        "l2": gpu.l2_bytes // _L2_SHARE,
        "dram": _DRAM_TIMES_L2 * gpu.l2_bytes,
    }.get(ceiling.level, _TILE_BYTES)
    chunks = max(1, footprint // CHUNK_BYTES)
    trips = ceiling.trips
    if ceiling.level == "dram":
        trips *= math.ceil(chunks / blocks)
    in_bytes = max(chunks * CHUNK_BYTES, _TILE_BYTES)
    results = blocks * ceiling.threads * 16
    return CeilingLaunch(
        blocks=blocks,
        trips=trips,
        step=blocks * ceiling.step % chunks,
        chunks=chunks,
        in_bytes=in_bytes,
        out_bytes=max(results, in_bytes if ceiling.name == "copy" else 0),
        work=float(blocks) * ceiling.threads * trips * ceiling.work_per_trip,
    )


def hardware_limit(ceiling: Ceiling, gpu: GpuIdentity, sm_clock_mhz: float) -> float | None:
    """What the hardware could do at a clock, in the unit of the ceiling; None if unknown.

    FP32: SMs x lanes x 2 x clock. Shared memory and L1 deliver 128 bytes per SM and clock, L2 64
    (NVIDIA's tuning guides). DRAM: width of the bus x 2 transfers per clock of the memory.
    """
    if ceiling.level == "fp32":
        return fp32_peak_tflops(gpu.sm_count, gpu.compute_capability, sm_clock_mhz)
    if ceiling.bytes_per_sm_clock:
        return gpu.sm_count * ceiling.bytes_per_sm_clock * sm_clock_mhz * 1e6 / 1e9
    return gpu.memory_bus_bits / 8 * 2 * gpu.max_memory_clock_mhz * 1e6 / 1e9 or None


# --- measuring ------------------------------------------------------------------------------------


def measure_ceilings(
    config: Config, *, builds_root: Path, out: Path | None, root: Path
) -> tuple[Path, list[dict[str, Any]]]:
    """Measure every ceiling of the GPU that the configuration selects, and write the table.

    Args:
        builds_root: folder of the builds; the CUBINs go to `<architecture>/ceilings` there.
        out: result folder; None for the GPU's own.
        root: project root, with `kernels/ceilings`.

    Returns:
        The table's path and its rows.

    Raises:
        UserError: if no GPU answers, it is in use, or the worker does not start.
    """
    gpu = select(expected(detect(), config.gpu.expect), config.gpu.select)[0]
    architecture = gpu.architecture(config.architectures)
    out = out or Path("results") / Target(gpu.name, architecture).slug
    monitor = open_monitor(gpu.uuid)
    others_on(gpu, monitor, config)
    codes = {item.name: compile_ceiling(item, root / FOLDER, architecture) for item in CEILINGS}
    cubins = {}
    for name, code in codes.items():
        cubins[name] = builds_root / architecture / "ceilings" / f"{name}.cubin"
        cubins[name].parent.mkdir(parents=True, exist_ok=True)
        cubins[name].write_bytes(code.cubin)
    header = run_header(config, root, "measured")
    now = datetime.now(UTC)
    common = {
        "source": "measured",
        "run_id": f"{now:%Y%m%dT%H%M%SZ}-ceilings-{secrets.token_hex(2)}",
        "ladder_version": header["ladder_version"],
        "git_commit": header["git_commit"],
        "git_dirty": header["git_dirty"],
        "compiler_version": None if compiler_problem() else compiler_version(),
        "gpu_uuid": gpu.uuid,
        "gpu_name": gpu.name,
        "gpu_sm_count": gpu.sm_count,
        "driver_version": str(monitor.facts().get("driver_version")),
        "architecture": architecture,
    }
    rows = []
    with Progress("ceilings", len(CEILINGS)) as progress, gpu_lock(gpu, progress.note):
        bench = _Bench(gpu, Telemetry(monitor), out)
        try:
            for ceiling in CEILINGS:
                code = codes[ceiling.name]
                row = bench.row(ceiling, code, cubins[ceiling.name])
                if row["status"] != Status.OK:
                    progress.note(f"{ceiling.name}: {row['status']}: {row['detail']}")
                rows.append(common | row)
                progress.step(ceiling.name)
        finally:
            bench.close()
    schema.write(out / TABLE, "ceilings", rows)
    return out / TABLE, rows


class _Bench:
    """The worker and the telemetry of one GPU while its ceilings are measured."""

    def __init__(self, gpu: GpuIdentity, telemetry: Telemetry, out: Path):
        self._gpu = gpu
        self._telemetry = telemetry
        self._telemetry.start()
        self._worker = LastingWorker(gpu, out, _TIMEOUT_S)
        self._warm = False

    def close(self) -> None:
        self._telemetry.stop()
        self._worker.close()

    def row(self, ceiling: Ceiling, code: Code, cubin: Path) -> dict[str, Any]:
        """One row of the `ceilings` table, without what all rows share."""
        launch = launch_of(ceiling, self._gpu)
        row: dict[str, Any] = {
            "name": ceiling.name,
            "title": ceiling.title,
            "level": ceiling.level,
            "unit": ceiling.unit,
            "work_per_launch": launch.work,
            "source_sha256": code.source_sha256,
            "cubin_sha256": hashlib.sha256(code.cubin).hexdigest() if code.cubin else None,
            "loop_counts": json.dumps(dict(code.counts)),
            "loop_instructions": code.loop_instructions or None,
        }
        if code.fault:
            return {**row, "status": str(code.fault[0]), "detail": code.fault[1]}
        reply = self._worker.ask(
            "ceiling",
            cubin=str(cubin),
            entry=ENTRY_POINT,
            grid=launch.blocks,
            block=ceiling.threads,
            arguments=[launch.trips, launch.step, launch.chunks],
            in_bytes=launch.in_bytes,
            out_bytes=launch.out_bytes,
            warmup_ns=_WARMUP_NS if self._warm else _FIRST_WARMUP_NS,
            sample_ns=_SAMPLE_NS,
            samples=_SAMPLES,
        )
        row["measured_at"] = datetime.now(UTC)
        self._warm = self._warm and not reply["lost"]
        if reply["status"] != Status.OK:
            return {**row, "status": str(reply["status"]), "detail": reply["detail"]}
        self._warm = True
        return row | self._judged(ceiling, launch.work, reply["chunks"])

    def _judged(
        self, ceiling: Ceiling, work: float, chunks: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        times = sorted(time_ns for chunk in chunks for time_ns in chunk["times_ns"])
        readings = self._telemetry.between(
            min(chunk["started_monotonic_ns"] for chunk in chunks),
            max(chunk["finished_monotonic_ns"] for chunk in chunks),
        )
        clock = mean([reading.sm_clock_mhz for reading in readings])
        assumed = clock or self._gpu.max_sm_clock_mhz
        # flop per ns are 1e9 flop/s, bytes per ns are GB/s
        scale = 1e-3 if ceiling.unit == "TFLOPS" else 1.0
        median = times[len(times) // 2]
        value = scale * work / median
        limit = hardware_limit(ceiling, self._gpu, assumed)
        verdict: dict[str, Any] = {"status": str(Status.OK), "detail": None}
        if limit is not None and not value <= PLAUSIBLE_SHARE * limit:
            words = f"{value:.1f} {ceiling.unit}; the hardware could do {limit:.1f} at this clock"
            verdict = {"status": str(Status.IMPLAUSIBLE), "detail": words}
        return verdict | {
            "value": value,
            "value_min": scale * work / times[-1],
            "value_max": scale * work / times[0],
            "samples": len(times),
            "launches_per_sample": chunks[0]["launches"],
            "time_median_ns": median,
            "per_sm_clock": work / median * 1e3 / (self._gpu.sm_count * assumed),
            "hardware_limit": limit,
            "sm_clock_mean_mhz": clock,
            "sm_clock_min_mhz": extreme([reading.sm_clock_mhz for reading in readings], min),
            "memory_clock_mean_mhz": mean([reading.memory_clock_mhz for reading in readings]),
            "power_mean_w": mean([reading.power_w for reading in readings]),
            "temperature_max_c": extreme([reading.temperature_c for reading in readings], max),
            "throttle_reasons": json.dumps(throttle_shares(readings)),
        }
