"""The one vocabulary of outcomes, used by every table.

Only `OK` and `OK_NOISY` feed figures; every other status is counted and explained by the report.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """What became of one build, check or measurement."""

    OK = "ok"
    OK_NOISY = "ok_noisy"
    WRONG_RESULT = "wrong_result"
    NONFINITE = "nonfinite"
    GUARD_VIOLATION = "guard_violation"
    RACE = "race"
    NONDETERMINISTIC = "nondeterministic"
    IMPLAUSIBLE = "implausible"
    TIMING_MISMATCH = "timing_mismatch"
    COMPILE_FAILED = "compile_failed"
    INFEASIBLE_REGISTERS = "infeasible_registers"
    INFEASIBLE_SMEM = "infeasible_smem"
    INFEASIBLE_THREADS = "infeasible_threads"
    INFEASIBLE_GRID = "infeasible_grid"
    INFEASIBLE_CLUSTER = "infeasible_cluster"
    INFEASIBLE_BOX = "infeasible_box"
    SKIPPED_PRECONDITION = "skipped_precondition"
    SKIPPED_INT32_INDEX = "skipped_int32_index"
    SKIPPED_OOM_PREDICTED = "skipped_oom_predicted"
    SKIPPED_CONSTRAINT = "skipped_constraint"
    SKIPPED_SPILLS = "skipped_spills"
    SKIPPED_UNSUPPORTED = "skipped_unsupported"
    OOM = "oom"
    LAUNCH_FAILED = "launch_failed"
    ILLEGAL_ADDRESS = "illegal_address"
    MISALIGNED = "misaligned"
    TIMEOUT = "timeout"
    WORKER_CRASH = "worker_crash"
    NO_PERMISSION = "no_permission"
    MISSING_METRIC = "missing_metric"


RANKED = frozenset({Status.OK, Status.OK_NOISY})
"""The statuses whose times may be drawn, compared and ranked."""

EXPLANATIONS: dict[Status, str] = {
    Status.OK: "correct, and the median's 95 % interval is within the configured width",
    Status.OK_NOISY: "correct, but the interval stayed wider than asked or the rounds disagree",
    Status.WRONG_RESULT: "the output differs from the FP64 reference, or elements were not written",
    Status.NONFINITE: "the output holds NaN or infinity where the reference is finite",
    Status.GUARD_VIOLATION: "memory around a matrix was overwritten, or an input was changed",
    Status.RACE: "the emulator saw two threads touch one word without synchronisation",
    Status.NONDETERMINISTIC: "repeated runs on equal inputs gave different bits",
    Status.IMPLAUSIBLE: "faster than the arithmetic peak at the measured clock allows",
    Status.TIMING_MISMATCH: "device time and wall time disagree by more than 5 %",
    Status.COMPILE_FAILED: "the compiler refused the source; its words are in the build's log",
    Status.INFEASIBLE_REGISTERS: "registers x threads exceed the register file",
    Status.INFEASIBLE_SMEM: "shared memory exceeds what a block may have on this architecture",
    Status.INFEASIBLE_THREADS: "more threads per block than the hardware allows",
    Status.INFEASIBLE_GRID: "the grid exceeds the launch limits",
    Status.INFEASIBLE_CLUSTER: "the cluster is too large for the GPU, or does not divide the grid",
    Status.INFEASIBLE_BOX: "a tile is not one that a single tensor copy can bring",
    Status.SKIPPED_PRECONDITION: "the kernel's manifest excludes this size",
    Status.SKIPPED_INT32_INDEX: "a matrix has 2^31 elements or more; the kernel indexes with int",
    Status.SKIPPED_OOM_PREDICTED: "the buffers would not fit into the GPU's free memory",
    Status.SKIPPED_CONSTRAINT: "the parameters violate a constraint of the kernel's manifest",
    Status.SKIPPED_SPILLS: "tuning only: the compiler had to move many registers to memory",
    Status.SKIPPED_UNSUPPORTED: "the kernel does not support this architecture or machine",
    Status.OOM: "the GPU ran out of memory",
    Status.LAUNCH_FAILED: "the driver refused the launch, or the kernel failed while running",
    Status.ILLEGAL_ADDRESS: "the kernel accessed memory outside every allocation",
    Status.MISALIGNED: "a vector access was not aligned to its size",
    Status.TIMEOUT: "the worker did not answer in time and was stopped",
    Status.WORKER_CRASH: "the worker process died",
    Status.NO_PERMISSION: "the hardware counters may not be read by this user",
    Status.MISSING_METRIC: "the profiler does not offer this metric, or nothing counts it exactly",
}

RETRIED = frozenset({Status.OOM, Status.SKIPPED_OOM_PREDICTED, Status.WORKER_CRASH, Status.TIMEOUT})
"""Failures that may be the machine's rather than the kernel's: tried again by the next run."""
