"""Terms that the page uses."""

from __future__ import annotations

GLOSSARY: list[tuple[str, str]] = [
    (
        "Arithmetic intensity",
        "Floating-point operations per byte moved at a stated level: bytes"
        " that threads request, bytes through L2, or bytes from DRAM.",
    ),
    (
        "Bank conflict",
        "Shared memory has 32 banks of 4 bytes; lanes of a warp that need different"
        " words of one bank wait for each other.",
    ),
    (
        "Compulsory traffic",
        "4(MK + KN + MN) bytes: every matrix moved once. No kernel can move less"
        " through DRAM from a cold cache.",
    ),
    (
        "Machine balance, ridge",
        "Peak arithmetic rate over memory bandwidth, flop/byte. Below it a"
        " kernel is bound by memory, above it by arithmetic.",
    ),
    (
        "Occupancy",
        "Warps resident on an SM as a share of the most it can hold; limited by registers,"
        " shared memory, threads or blocks. More of it hides latency, but is no goal in itself.",
    ),
    (
        "Redundancy",
        "How often the threads of a launch ask for an element of A or B on average. Tiles in shared"
        " memory and registers lower it.",
    ),
    ("Request", "One load or store instruction of one warp."),
    (
        "Rotating, hot, cold",
        "Condition of the caches. Rotating: launches alternate between buffers"
        " that together exceed twice the L2 cache. Hot: one set of buffers, so that what fits stays"
        " in L2. Cold: the L2 cache is cleared before each launch.",
    ),
    (
        "Sector",
        "32 bytes, the unit of traffic between caches. A request costs as many sectors as its"
        " lanes touch.",
    ),
    (
        "SM",
        "Streaming multiprocessor: the GPU's core, with its own registers, shared memory and"
        " arithmetic lanes.",
    ),
    (
        "TF32",
        "A tensor-core format with FP32's range and 10 bits of mantissa. Products are much"
        " faster and less accurate; it is no FP32 arithmetic.",
    ),
    ("TFLOPS", "10\u00b9\u00b2 floating-point operations per second: 2MNK over the median time."),
    ("Warp", "32 threads that execute together."),
    (
        "Wavefront",
        "One pass of a shared-memory request over the 32 banks. A request of 4 bytes a lane takes"
        " one; what it takes beyond its width is bank conflicts.",
    ),
]
