"""The names of a manifest's closed forms: what each says of a launch, its unit and its metric.

A manifest gives a value to the forms that depend on its kernel; what follows from M, N and K alone,
or from other forms, is in `theory` and is stated nowhere else. Counts are those of all launches of
one product, helpers included, as the emulator's and the hardware's are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClosedForm:
    """One closed form of a launch."""

    metric: str
    """Its name in the `counters` table: NVIDIA's where a hardware counter counts the same."""
    unit: str
    meaning: str


CLOSED_FORMS: dict[str, ClosedForm] = {
    "requested_load_bytes": ClosedForm(
        "requested_load_bytes", "byte", "what threads ask of global memory, cp.async included"
    ),
    "requested_store_bytes": ClosedForm(
        "requested_store_bytes", "byte", "what threads store to global memory"
    ),
    "unique_load_bytes": ClosedForm(
        "unique_load_bytes", "byte", "the same as loads, an address that lanes share counted once"
    ),
    "tma_load_bytes": ClosedForm(
        "tma_load_bytes", "byte", "what copies of TMA bring, the inside of the matrices alone"
    ),
    "tma_load_sectors": ClosedForm(
        "tma_load_sectors", "sector", "32-byte sectors that copies of TMA touch"
    ),
    "cluster_load_bytes": ClosedForm(
        "cluster_load_bytes", "byte", "what threads read of the cluster's shared memory"
    ),
    "global_load_requests": ClosedForm(
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
        "request",
        "global loads of whole warps, cp.async included",
    ),
    "global_load_sectors": ClosedForm(
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
        "sector",
        "32-byte sectors that these touch",
    ),
    "global_store_requests": ClosedForm(
        "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
        "request",
        "global stores of whole warps",
    ),
    "global_store_sectors": ClosedForm(
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
        "sector",
        "32-byte sectors that these touch",
    ),
    "async_copies": ClosedForm(
        "smsp__inst_executed_op_ldgsts.sum", "inst", "cp.async instructions of whole warps"
    ),
    "shared_loads": ClosedForm(
        "smsp__sass_inst_executed_op_shared_ld.sum", "inst", "shared loads of whole warps"
    ),
    "shared_load_bytes": ClosedForm(
        "shared_load_bytes", "byte", "what threads read of their block's shared memory"
    ),
    "shared_load_wavefronts": ClosedForm(
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
        "wavefront",
        "passes over the banks that shared loads take",
    ),
    "shared_load_conflicts": ClosedForm(
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
        "conflict",
        "passes beyond those that their width costs",
    ),
    "shared_stores": ClosedForm(
        "smsp__sass_inst_executed_op_shared_st.sum", "inst", "shared stores of whole warps"
    ),
    "shared_store_bytes": ClosedForm(
        "shared_store_bytes", "byte", "what threads write to shared memory, cp.async left out"
    ),
    "shared_store_wavefronts": ClosedForm(
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
        "wavefront",
        "passes over the banks that shared stores take",
    ),
    "shared_store_conflicts": ClosedForm(
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
        "conflict",
        "passes beyond those that their width costs",
    ),
    "fma": ClosedForm(
        "sm__sass_thread_inst_executed_op_ffma_pred_on.sum",
        "inst",
        "multiply-adds of single threads, those on the zeros around a matrix included",
    ),
    "tensor_core_flops": ClosedForm(
        "tensor_core_flops",
        "flop",
        "multiplications and additions of tensor cores, those on zeros around a matrix included",
    ),
    "mma_instructions": ClosedForm("mma_instructions", "inst", "mma.sync of whole warps"),
    "wgmma_instructions": ClosedForm(
        "wgmma_instructions", "inst", "wgmma, one for each of the four warps of a warpgroup"
    ),
    "ldmatrix_instructions": ClosedForm("ldmatrix_instructions", "inst", "ldmatrix of whole warps"),
}
"""By the name that a manifest uses."""

LAUNCH_NAMES = ("blocks", "threads")
"""What conditional forms may name beside M, N, K and parameters: blocks of the grid, and threads of
a block."""
