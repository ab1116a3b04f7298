"""Runs CUDA C++ kernels on a CPU: results, findings, and the memory requests a GPU would count.

`library` builds a kernel with the machine's C++ compiler, `emulation` runs it, `result` names what
came out, `sampling` lets a few blocks stand for a large grid, `sass` and `compiled` count what
NVIDIA's compiler made of the source, `point` judges it all, and `command` is the command line.
docs/emulator.md says why the numbers are exact and where they are not.
"""

from .emulation import emulate
from .library import KernelLibrary, build_library
from .result import EmulationResult, Finding, Site
from .tensor_map import TensorMap2D
from .toolchain import (
    Compiler,
    EmulatorError,
    NoCompilerError,
    UnsupportedKernelError,
    find_compiler,
)

__all__ = [
    "Compiler",
    "EmulationResult",
    "EmulatorError",
    "Finding",
    "KernelLibrary",
    "NoCompilerError",
    "Site",
    "TensorMap2D",
    "UnsupportedKernelError",
    "build_library",
    "emulate",
    "find_compiler",
]
