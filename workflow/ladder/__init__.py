"""gemm-ladder: compile, check, measure and explain FP32 matrix multiplication on NVIDIA GPUs.

Data flows one way, and a module imports only from modules earlier in the flow:

    expressions, status, schema      the vocabulary
    manifest, gpus, config           what the user wrote
    plan                             which builds and which points follow from it
    compile, occupancy               CUDA source -> CUBIN and what it needs to run
    correctness                      inputs, references and the correctness protocol
    device, timing, worker           one GPU, driven by a process that may die
    store, telemetry, measure        the supervisor: what is missing gets measured and kept
    emulator                         the same kernels on a CPU: checked and counted
    collect, counters, replay        journals, counts or published results -> tables
    stats, figures, report           tables -> pictures and the report

No module here knows Snakemake; ``python -m ladder --help`` runs every step by hand.
"""

__version__ = "0.1.0"
