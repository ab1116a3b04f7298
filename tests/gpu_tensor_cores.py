"""What test_gpu.py runs in a process of its own: kernels of the emulator's tests of tensor cores.

A GPU must read fragments, descriptors and swizzles as the emulator does.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import cupy
import numpy as np

from ladder.compile import run_nvrtc
from ladder.device import detect
from ladder.driver import KernelLaunch, encode_tensor_map
from project import ROOT

KERNELS = ROOT / "tests/emulator/kernels"
TRUNCATED = np.uint32(0xFFFFE000)
"""The bits of a float that a tensor core reads of a TF32 operand."""


def function(name: str, macros: Mapping[str, int], architecture: str) -> Any:
    options = [f"--gpu-architecture={architecture}", "--std=c++17"]
    options += [f"--include-path={ROOT / 'kernels/include'}"]
    options += [f"--define-macro={macro}={value}" for macro, value in macros.items()]
    source = KERNELS / f"{name}.cu"
    cubin, log = run_nvrtc(source.read_text(), source.name, options)
    assert cubin, log
    module = cupy.cuda.function.Module()
    module.load(cubin)
    return module.get_function("gemm")


def run(kernel: Any, grid: tuple[int, int, int], threads: int, arguments: Sequence[Any]) -> None:
    values = [
        ctypes.c_int(value)
        if isinstance(value, int)
        else ctypes.c_void_p(value.data.ptr)
        if isinstance(value, cupy.ndarray)
        else value
        for value in arguments
    ]
    stream = cupy.cuda.get_current_stream().ptr
    KernelLaunch(kernel.ptr, grid, (threads, 1, 1), values, stream=stream)()
    cupy.cuda.runtime.deviceSynchronize()


def small_integers(rows: int, columns: int, seed: int) -> cupy.ndarray:
    values = np.random.default_rng(seed).integers(-4, 5, (rows, columns))
    return cupy.asarray(values.astype(np.float32))


def product(a: cupy.ndarray, b: cupy.ndarray) -> cupy.ndarray:
    return a.astype(cupy.float64) @ b.astype(cupy.float64)


def cut_off(matrix: cupy.ndarray) -> cupy.ndarray:
    return (matrix.view(cupy.uint32) & TRUNCATED).view(cupy.float32)


def fragments_lie_where_the_instruction_has_them(architecture: str) -> None:
    m, n, k = 32, 24, 48
    a, b = small_integers(m, k, 1), small_integers(k, n, 2)
    for half in (0, 1):
        kernel = function("mma_tiles", {"HALF": half}, architecture)
        for ldmatrix in (0, 1):
            c = cupy.full((m, n), np.nan, cupy.float32)
            run(kernel, (n // 8, m // 16, 1), 32, [a, b, c, m, n, k, ldmatrix, 0])
            assert bool((c == product(a, b)).all()), f"HALF={half} ldmatrix={ldmatrix}"


def the_low_bits_of_tf32_operands_are_ignored(architecture: str) -> None:
    a, b = (cupy.random.uniform(-1, 1, shape, cupy.float32) for shape in ((16, 16), (16, 8)))
    kernel = function("mma_tiles", {"HALF": 0}, architecture)
    c = cupy.full((16, 8), np.nan, cupy.float32)
    run(kernel, (1, 1, 1), 32, [a, b, c, 16, 8, 16, 0, 0])
    assert float(abs(c - product(cut_off(a), cut_off(b))).max()) < 1e-5
    assert float(abs(c - product(a, b)).max()) > 1e-4


def tiles_of_tma_are_read_in_every_swizzle() -> None:
    m, k = 100, 76
    for columns, swizzle in ((64, 128), (128, 64), (192, 64), (256, 32)):
        n, depth = 2 * columns - 8, swizzle // 4
        kernel = function("wgmma_tiles", {"COLUMNS": columns, "SWIZZLED": swizzle}, "sm_90a")
        a, b = small_integers(m, k, 1), small_integers(n, k, 2)
        maps = [
            encode_tensor_map(
                matrix.data.ptr, rows=len(matrix), columns=k, pitch_bytes=4 * k, box=(depth, rows),
                swizzle=f"{swizzle}B",  # type: ignore[arg-type]
            )
            for matrix, rows in ((a, 64), (b, columns))
        ]  # fmt: skip
        for a_registers, rounded in itertools.product((0, 1), (0, 1)):
            c = cupy.full((m, n), np.nan, cupy.float32)
            flags = [a_registers, rounded, 0]
            run(kernel, (-(-n // columns), -(-m // 64), 1), 160, [*maps, c, m, n, k, *flags])
            assert bool((c == product(a, b.T)).all()), f"{columns} {swizzle} {flags}"


def every_layout_of_operands_is_read_as_the_descriptor_says() -> None:
    a, b = small_integers(64, 64, 1), small_integers(64, 64, 2)
    kernel = function("wgmma_layouts", {}, "sm_90a")
    for layout in itertools.product((0, 32, 64, 128), (0, 1), (0, 1), (0, 1)):
        c = cupy.full((64, 64), np.nan, cupy.float32)
        run(kernel, (1, 1, 1), 128, [a, b, c, *layout, 0])
        assert bool((c == product(a, b)).all()), f"width, A, B transposed, A in registers: {layout}"


if __name__ == "__main__":
    gpu = detect()[0]
    own = gpu.architecture(["sm_90a"])
    fragments_lie_where_the_instruction_has_them(own)
    the_low_bits_of_tf32_operands_are_ignored(own)
    if own == "sm_90a":
        tiles_of_tma_are_read_in_every_swizzle()
        every_layout_of_operands_is_read_as_the_descriptor_says()
    print(f"tensor cores of {own}: as the emulator has them")
