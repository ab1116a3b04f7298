"""Terms that the page uses."""

from __future__ import annotations

from ..language import N_, _

_GLOSSARY: list[tuple[str, str]] = [
    (
        N_("Arithmetic intensity"),
        N_(
            "Floating-point operations per byte moved at a stated level: bytes that threads"
            " request, bytes through L2, or bytes from DRAM."
        ),
    ),
    (
        N_("Bank conflict"),
        N_(
            "Shared memory has 32 banks of 4 bytes; lanes of a warp that need different words"
            " of one bank wait for each other."
        ),
    ),
    (
        N_("Compulsory traffic"),
        N_(
            "4(MK + KN + MN) bytes: every matrix moved once. No kernel can move less through"
            " DRAM from a cold cache."
        ),
    ),
    (
        N_("Error, \u03b7"),
        N_(
            "|C - R| / (2\u207b\u00b2\u2074 |A||B|) with R the FP64 product: the error of an"
            " element in"
            " units of FP32's rounding, relative to what its terms allow."
        ),
    ),
    (
        N_("Machine balance, ridge"),
        N_(
            "Peak arithmetic rate over memory bandwidth, flop/byte. Below it a kernel is bound"
            " by memory, above it by arithmetic."
        ),
    ),
    (
        N_("Occupancy"),
        N_(
            "Warps resident on an SM as a share of the most it can hold; limited by registers,"
            " shared memory, threads or blocks. More of it hides latency, but is no goal in"
            " itself."
        ),
    ),
    (
        N_("Redundancy"),
        N_(
            "How often the threads of a launch ask for an element of A or B on average. Tiles"
            " in shared memory and registers lower it."
        ),
    ),
    (N_("Request"), N_("One load or store instruction of one warp.")),
    (
        N_("Roofline"),
        N_(
            "The lower of the arithmetic peak and of intensity times bandwidth: no kernel of that"
            " intensity can be faster."
        ),
    ),
    (
        N_("Rotating, hot, cold"),
        N_(
            "Condition of the caches. Rotating: launches alternate between buffers that"
            " together exceed twice the L2 cache. Hot: one set of buffers, so that what fits"
            " stays in L2. Cold: the L2 cache is cleared before each launch."
        ),
    ),
    (
        N_("Sector"),
        N_(
            "32 bytes, the unit of traffic between caches. A request costs as many sectors as"
            " its lanes touch."
        ),
    ),
    (
        "SM",
        N_(
            "Streaming multiprocessor: the GPU's core, with its own registers, shared memory"
            " and arithmetic lanes."
        ),
    ),
    (
        N_("TF32"),
        N_(
            "A tensor-core format with FP32's range and 10 bits of mantissa. Products are much"
            " faster and less accurate; it is no FP32 arithmetic."
        ),
    ),
    (
        "TFLOPS",
        N_("10\u00b9\u00b2 floating-point operations per second: 2MNK over the median time."),
    ),
    (N_("Warp"), N_("32 threads that execute together.")),
    (
        N_("Wavefront"),
        N_(
            "One pass of a shared-memory request over the 32 banks. A request of 4 bytes a lane"
            " takes one; what it takes beyond its width is bank conflicts."
        ),
    ),
]


def glossary() -> list[tuple[str, str]]:
    """Term and meaning, in the language spoken."""
    return [(_(term), _(meaning)) for term, meaning in _GLOSSARY]
