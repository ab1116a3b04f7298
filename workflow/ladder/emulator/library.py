"""One CUDA source and one set of macros as a library that this process can run."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from .tensor_map import TensorMap2D
from .toolchain import (
    HEADER,
    RUNTIME,
    Compiler,
    EmulatorError,
    KernelCompileError,
    UnsupportedKernelError,
    content_key,
    default_cache,
    files_content,
    find_compiler,
    keep,
    kernel_flags,
    precompiled_header,
    run_tool,
    runtime_object,
)

MOST_SHARED_BYTES = 232_448
"""The most shared memory of a block on any GPU so far (227 KiB, sm_90): the window's size."""
MOST_SHARED_ARRAYS = 254
MOST_CLUSTER_BLOCKS = 16

Argument = np.ndarray | TensorMap2D | int | float
"""An array is passed as a pointer, a tensor map as CUDA's 128 bytes, numbers as int and float."""

# --- mirrors of workflow/emulator/runtime/api.h ---------------------------------------------------

_u32, _u64, _i32, _i64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64


class RawSite(ctypes.Structure):
    """EmulatorSite."""

    _fields_ = [
        ("pc", _u64),
        ("space", _u32),
        ("bytes", _u32),
        ("kind", _u32),
        ("array", _u32),
        ("requests", _u64),
        ("lanes", _u64),
        ("sectors", _u64),
        ("unique_bytes", _u64),
        ("wavefronts", _u64),
        ("least_wavefronts", _u64),
        ("most_sectors", _u64),
        ("most_wavefronts", _u64),
    ]


class RawFinding(ctypes.Structure):
    """EmulatorFinding."""

    _fields_ = [
        ("kind", _u32),
        ("space", _u32),
        ("pc", _u64),
        ("other_pc", _u64),
        ("array", _i32),
        ("thread", _u32),
        ("other_thread", _u32),
        ("bytes", _u32),
        ("block", _u64),
        ("offset", _i64),
        ("count", _u64),
    ]


class RawTotals(ctypes.Structure):
    """EmulatorTotals."""

    _fields_ = [
        ("threads", _u64),
        ("blocks", _u64),
        ("accesses", _u64),
        ("switches", _u64),
        ("barriers", _u64),
        ("unmatched_requests", _u64),
        ("tma_load_bytes", _u64),
        ("tma_load_sectors", _u64),
        ("cluster_load_bytes", _u64),
        ("mma_instructions", _u64),
        ("wgmma_instructions", _u64),
        ("tensor_core_flops", _u64),
        ("aborted", _u64),
        ("seconds", ctypes.c_double),
    ]


class RawBlockCounts(ctypes.Structure):
    """EmulatorBlockCounts."""

    _fields_ = [
        ("block", _u64),
        ("requests", _u64),
        ("sectors", _u64),
        ("unique_bytes", _u64),
        ("wavefronts", _u64),
    ]


class RawTensorMap(ctypes.Structure):
    """EmulatorTensorMap."""

    _fields_ = [
        ("mark", _u64),
        ("base", _u64),
        ("rows", _u32),
        ("columns", _u32),
        ("pitch", _u64),
        ("box_rows", _u32),
        ("box_columns", _u32),
        ("swizzle", _u32),
        ("unused", _u32 * 21),
    ]


_TENSOR_MAP_MARK = 0x70616D2D726F736E
_TENSOR_MAP_ALIGNMENT = 64


class RawLaunch(ctypes.Structure):
    """EmulatorLaunch."""

    _fields_ = [
        ("grid", _u32 * 3),
        ("block", _u32 * 3),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("trace", _u32),
        ("check", _u32),
        ("reverse", _u32),
        ("shared_symbols", _u32),
        ("guard_symbols", _u32),
        ("cluster", _u32 * 3),
        ("shared_offsets", ctypes.c_void_p),
        ("shared_sizes", ctypes.c_void_p),
        ("blocks", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("block_count", _u64),
    ]


@dataclass(frozen=True)
class SharedArray:
    """A __shared__ array: its name, offset in the window and size, bytes."""

    name: str
    offset: int
    bytes: int
    dynamic: bool = False
    """Whether the launch decides the size."""


@dataclass
class RawRun:
    """What the runtime hands over after a launch."""

    sites: list[RawSite]
    findings: list[RawFinding]
    totals: RawTotals
    block_counts: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """(block, requests, sectors, unique bytes, wavefronts) of each block of a sample."""


def array_of(argument: Argument) -> np.ndarray | None:
    """The array that an argument points into; None for a number."""
    if isinstance(argument, TensorMap2D):
        return argument.array
    return argument if isinstance(argument, np.ndarray) else None


def array_key(array: np.ndarray) -> tuple[int, int]:
    """Equal for arrays that are one piece of memory."""
    return array.ctypes.data, array.nbytes


@dataclass
class _Buffers:
    """The global memory of one launch: a buffer for each array among its arguments."""

    library: ctypes.CDLL
    pointers: dict[tuple[int, int], int] = field(default_factory=dict)
    arrays: list[np.ndarray] = field(default_factory=list)

    def pointer(self, array: np.ndarray) -> int:
        if not array.flags.c_contiguous:
            raise EmulatorError("arrays must be contiguous")
        self.arrays.append(array)
        known = self.pointers.get(array_key(array))
        if known is not None:
            return known
        pointer: int | None = self.library.emulator_allocate(array.nbytes)
        if not pointer:
            raise EmulatorError(f"no room for a buffer of {array.nbytes:,} bytes")
        ctypes.memmove(pointer, array.ctypes.data, array.nbytes)
        self.pointers[array_key(array)] = pointer
        return pointer

    def copy_back(self) -> None:
        for array in self.arrays:
            if array.flags.writeable:
                ctypes.memmove(array.ctypes.data, self.pointers[array_key(array)], array.nbytes)


@dataclass
class KernelLibrary:
    """A loaded library; one launch at a time (its state is global to it)."""

    path: Path
    source: Path
    compiler: Compiler
    shared_arrays: list[SharedArray]
    guards: list[SharedArray] = field(default_factory=list)
    """Bytes that g++ adds to the window for shared arrays of vector types."""

    def __post_init__(self) -> None:
        self._library = ctypes.CDLL(str(self.path))
        self._library.emulator_allocate.restype = ctypes.c_void_p
        self._library.emulator_allocate.argtypes = [_u64]
        self._library.emulator_site_count.restype = _u64
        self._library.emulator_finding_count.restype = _u64
        self._library.emulator_block_counts.restype = _u64
        self._lines: dict[int, tuple[str, int]] = {}

    def run(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Argument],
        *,
        cluster: Sequence[int] = (1, 1, 1),
        dynamic_shared_memory_bytes: int = 0,
        check: bool = True,
        trace: bool = True,
        reverse: bool = False,
        blocks: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> RawRun:
        """Run the kernel; arrays are copied in and their contents copied back.

        Args:
            grid, block, cluster: up to three extents each; clusters in blocks.
            arguments: in the kernel's order; those that have one array share one buffer.
            check: look for faults; trace: count requests.
            reverse: run warps and lanes from the last to the first.
            blocks, weights: uint64 arrays; run only these linear block indices, and let each stand
                for that many blocks.

        Raises:
            EmulatorError: if the launch cannot be made.
        """
        library = self._library
        buffers = _Buffers(library)
        try:
            values = [_argument(argument, buffers) for argument in arguments]
            pointers = [ctypes.addressof(value) for value in values]
            launch = RawLaunch(trace=trace, check=check, reverse=reverse)
            launch.grid[:] = [*grid, 1, 1][:3]
            launch.block[:] = [*block, 1, 1][:3]
            launch.cluster[:] = [*cluster, 1, 1][:3]
            launch.arguments = (ctypes.c_void_p * len(pointers))(*pointers)
            arrays = [
                (array.offset, dynamic_shared_memory_bytes if array.dynamic else array.bytes)
                for array in [*self.shared_arrays, *self.guards]
            ]
            offsets = np.array([offset for offset, _ in arrays], dtype=np.uint64)
            sizes = np.array([size for _, size in arrays], dtype=np.uint64)
            launch.shared_symbols = len(self.shared_arrays)
            launch.guard_symbols = len(self.guards)
            launch.shared_offsets, launch.shared_sizes = offsets.ctypes.data, sizes.ctypes.data
            if blocks is not None:
                blocks = np.ascontiguousarray(blocks, dtype=np.uint64)
                launch.blocks, launch.block_count = blocks.ctypes.data, len(blocks)
                if weights is not None:
                    weights = np.ascontiguousarray(weights, dtype=np.uint64)
                    launch.weights = weights.ctypes.data
            code = library.emulator_launch(ctypes.byref(launch))
            if code < 0:
                raise EmulatorError(
                    {
                        -1: f"a block of {tuple(block)} threads cannot run: 1 to 1024 are possible",
                        -2: "no memory for the threads' stacks",
                        -3: f"{self.path}: its shared-memory segment was not found",
                        -4: f"a grid of {tuple(grid)} blocks cannot be divided into clusters of "
                        f"{tuple(cluster)}, or these have more than {MOST_CLUSTER_BLOCKS} blocks",
                        -5: "blocks of a cluster run together; run all blocks",
                    }.get(code, f"the launch failed with code {code}")
                )
            buffers.copy_back()
            return self._collect()
        finally:
            library.emulator_release()

    def _collect(self) -> RawRun:
        library = self._library
        sites = [RawSite() for _ in range(library.emulator_site_count())]
        for index, site in enumerate(sites):
            library.emulator_site(_u64(index), ctypes.byref(site))
        findings = [RawFinding() for _ in range(library.emulator_finding_count())]
        for index, finding in enumerate(findings):
            library.emulator_finding(_u64(index), ctypes.byref(finding))
        totals = RawTotals()
        library.emulator_totals(ctypes.byref(totals))
        pointer = ctypes.POINTER(RawBlockCounts)()
        count = library.emulator_block_counts(ctypes.byref(pointer))
        counts = [
            (
                pointer[i].block,
                pointer[i].requests,
                pointer[i].sectors,
                pointer[i].unique_bytes,
                pointer[i].wavefronts,
            )
            for i in range(count)
        ]
        return RawRun(sites, findings, totals, counts)

    def lines(self, program_counters: Sequence[int]) -> dict[int, tuple[str, int]]:
        """File and line of return addresses in the library.

        Where functions are inlined, the innermost line of the kernel's own file counts, then the
        innermost of a file that does not belong to the runtime.
        """
        missing = sorted({pc for pc in program_counters if pc and pc not in self._lines})
        if missing:
            # The call precedes its return address, hence the - 1.
            shown = run_tool(
                ["addr2line", "-a", "-i", "-e", str(self.path), *[hex(pc - 1) for pc in missing]]
            )
            for pc, frames in zip(missing, _frames(shown), strict=True):
                self._lines[pc] = self._choose(frames)
        return {pc: self._lines[pc] for pc in program_counters if pc}

    def _choose(self, frames: list[tuple[str, int]]) -> tuple[str, int]:
        own = [frame for frame in frames if Path(frame[0]).name == self.source.name]
        others = [frame for frame in frames if RUNTIME not in Path(frame[0]).parents]
        return (own or others or frames or [("?", 0)])[0]


def _argument(
    argument: Argument, buffers: _Buffers
) -> ctypes.c_void_p | ctypes.c_float | ctypes.c_int | RawTensorMap:
    if isinstance(argument, TensorMap2D):
        return _raw_tensor_map(argument, buffers.pointer(argument.array))
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(buffers.pointer(argument))
    return ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int(argument)


def _raw_tensor_map(tensor_map: TensorMap2D, pointer: int) -> RawTensorMap:
    size = ctypes.sizeof(RawTensorMap)
    room = ctypes.create_string_buffer(size + _TENSOR_MAP_ALIGNMENT)
    raw = RawTensorMap.from_buffer(room, -ctypes.addressof(room) % _TENSOR_MAP_ALIGNMENT)
    raw.mark = _TENSOR_MAP_MARK
    raw.base = pointer + 4 * tensor_map.offset
    raw.rows, raw.columns, raw.pitch = tensor_map.rows, tensor_map.columns, tensor_map.pitch
    raw.box_rows, raw.box_columns = tensor_map.box_rows, tensor_map.box_columns
    raw.swizzle = tensor_map.swizzle_bytes
    return raw


def _frames(text: str) -> list[list[tuple[str, int]]]:
    """addr2line's answer: for each address its (file, line) pairs, innermost first."""
    result: list[list[tuple[str, int]]] = []
    for line in text.splitlines():
        if line.startswith("0x"):
            result.append([])
            continue
        name, _, number = line.partition(" (discriminator")[0].rpartition(":")
        result[-1].append((name, int(number) if number.isdigit() else 0))
    return result


# --- building -------------------------------------------------------------------------------------

_UNSUPPORTED = {
    r"\basm\b": "inline PTX",
    r"<<<": "a kernel launch from the device",
    r"\bwmma\s*::": "CUDA's own matrix fragments (see mma.cuh)",
    r"\bcooperative_groups\b|\bcluster_group\b": "cooperative groups (see cluster.cuh)",
    r"\bcuda\s*::\s*(?:barrier|pipeline|atomic|ptx)": "libcu++ synchronisation objects",
    r"\bCUtensorMap\b": "CUDA's own tensor maps (see tma.cuh)",
}


def build_library(
    source: Path,
    params: Mapping[str, int],
    *,
    entry: str = "gemm",
    include: Sequence[Path] = (),
    compiler: Compiler | None = None,
    cache: Path | None = None,
) -> KernelLibrary:
    """Compile an unmodified .cu file for the CPU, or find it in the cache.

    Args:
        params: compile-time macros.
        entry: name of the `__global__` function.
        include: folders with the kernel's headers; `include/` beside the source is always one.

    Raises:
        NoCompilerError: if the machine has no compiler that serves.
        UnsupportedKernelError: if the kernel uses what the emulator does not have.
        KernelCompileError: if the compiler refuses the kernel.
    """
    compiler = compiler or find_compiler()
    cache = cache or default_cache()
    source = source.resolve()
    folders = [
        folder.resolve() for folder in (source.parent / "include", *include) if folder.is_dir()
    ]
    runtime = runtime_object(compiler, cache)
    unit = (
        f'#include "{source}"\n'
        f"EMULATED_ENTRY({entry})\n"
        # Aligned as the strictest swizzle wants it: offsets in the window stand for addresses.
        "static thread_local volatile char emulated_shared_marker "
        "__attribute__((aligned(1024)));\n"
        'extern "C" EMULATED_UNINSTRUMENTED void emulated_touch_shared() '
        "{ emulated_shared_marker = 1; }\n"
    )
    options = [
        *kernel_flags(compiler),
        f"-I{RUNTIME / 'include'}",
        *[f"-I{folder}" for folder in folders],
        f"-I{source.parent}",
        *[f"-D{name}={value}" for name, value in sorted(params.items())],
    ]
    headers = [path for folder in folders for path in folder.glob("**/*.cuh")]
    key = content_key(
        source.read_bytes(), files_content(headers), unit, repr(options), runtime.name
    )

    def make(temporary: Path) -> None:
        unit_path, kernel_object = temporary.with_suffix(".cpp"), temporary.with_suffix(".o")
        window, window_object = (
            temporary.with_suffix(".window.cpp"),
            temporary.with_suffix(".window.o"),
        )
        try:
            unit_path.write_text(unit)
            # What is precompiled may no longer serve, after an update of the system's headers say.
            # So it is the header itself that decides whether a kernel can be compiled.
            for header in (precompiled_header(compiler, cache), HEADER):
                command = [compiler.path, *options, "-include", str(header)]
                command += ["-c", str(unit_path), "-o", str(kernel_object)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    break
            else:
                raise _refusal(source, compiler, command, done.stderr)
            objects = [str(kernel_object), str(runtime)]
            dynamic = _undefined_shared(kernel_object)
            if len(dynamic) > 1:
                raise UnsupportedKernelError(
                    f"{source.name}: declares several extern __shared__ arrays "
                    f"({', '.join(dynamic)}); they would share one address, so declare one"
                )
            if dynamic:
                window.write_text(
                    f"thread_local __attribute__((aligned(1024))) char emulated_dynamic"
                    f'[{MOST_SHARED_BYTES}] __asm__("{dynamic[0]}");\n'
                )
                run_tool(
                    [
                        compiler.path,
                        "-std=c++17",
                        "-O1",
                        "-fPIC",
                        "-c",
                        str(window),
                        "-o",
                        str(window_object),
                    ]
                )
                objects.append(str(window_object))
            run_tool([compiler.path, "-shared", "-Wl,-z,defs", *objects, "-o", str(temporary)])
        finally:
            for path in (unit_path, kernel_object, window, window_object):
                path.unlink(missing_ok=True)

    path = keep(cache / f"{source.stem}-{key}.so", make)
    arrays = _window(path)
    return KernelLibrary(
        path,
        source,
        compiler,
        [array for array in arrays if not array.name.startswith(_GUARD)],
        [array for array in arrays if array.name.startswith(_GUARD)],
    )


def _refusal(source: Path, compiler: Compiler, command: list[str], words: str) -> EmulatorError:
    """Tells a kernel that the emulator cannot run from one that is wrong."""
    end = command.index("-c")
    shown = subprocess.run(
        [*command[:end], "-E", "-P", command[end + 1]], capture_output=True, text=True, check=False
    ).stdout
    own = shown[shown.rfind("emulated_entry") - 200_000 :] if shown else source.read_text()
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', own)
    for pattern, what in _UNSUPPORTED.items():
        if re.search(pattern, source.read_text()) or re.search(pattern, _after_headers(text)):
            return UnsupportedKernelError(
                f"{source.name}: uses {what}, which the emulator does not have; "
                "give it an emulated branch (LADDER_EMULATOR) or set `emulator: false`"
            )
    first = next((line for line in words.splitlines() if "error" in line), words[:400])
    return KernelCompileError(
        f"{source.name}: {Path(compiler.path).name} refused it: {first.strip()}"
    )


def _after_headers(preprocessed: str) -> str:
    """What follows the runtime's header in a preprocessed unit: the kernel and its own headers."""
    mark = preprocessed.find("__threadfence_block")
    return preprocessed[mark:] if mark >= 0 else preprocessed


def _undefined_shared(kernel_object: Path) -> list[str]:
    with kernel_object.open("rb") as stream:
        return [
            symbol.name
            for symbol in _tls_symbols(ELFFile(stream))
            if symbol["st_shndx"] == "SHN_UNDEF"
        ]


def _tls_symbols(elf: ELFFile) -> list[Any]:
    table = elf.get_section_by_name(".symtab")
    assert isinstance(table, SymbolTableSection)
    return [symbol for symbol in table.iter_symbols() if symbol["st_info"]["type"] == "STT_TLS"]


_GUARD = "guard of "


@functools.cache
def _window(library: Path) -> list[SharedArray]:
    """The __shared__ arrays of a library and the guards between them, by offset."""
    with library.open("rb") as stream:
        symbols = [
            (symbol.name, symbol["st_value"], symbol["st_size"])
            for symbol in _tls_symbols(ELFFile(stream))
            if symbol["st_shndx"] != "SHN_UNDEF"
        ]
    arrays: dict[int, SharedArray] = {}
    for name, offset, size in symbols:
        if "emulated_shared_marker" in name or not size:
            continue
        guard = name.startswith("_ZGV")
        shown = _GUARD + name if guard else _plain_name(name)
        arrays[offset] = SharedArray(shown, offset, size, size == MOST_SHARED_BYTES)
    if len(arrays) > MOST_SHARED_ARRAYS:
        raise UnsupportedKernelError(f"more than {MOST_SHARED_ARRAYS} shared arrays")
    return [arrays[offset] for offset in sorted(arrays)]


def _plain_name(symbol: str) -> str:
    """The variable's own name in a mangled symbol of a function-local variable.

    Such a symbol ends in a length and a name, perhaps after "E" and before a discriminator:
    ``_ZZ4gemmE6a_tile`` or ``_ZZ4bodyILi8EEvvE2As_0``.
    """
    if not symbol.startswith("_Z"):
        return re.split(r"\.\d+$", symbol)[0]  # g++ numbers statics of a C function: a_tile.1
    found = symbol
    for match in re.finditer(r"\d+", symbol):
        for start in range(match.start(), match.end()):
            length = int(symbol[start : match.end()])
            name = symbol[match.end() : match.end() + length]
            rest = symbol[match.end() + length :]
            if (
                len(name) == length
                and re.fullmatch(r"(?:_\d+|_|\.\d+)?", rest)
                and name.isidentifier()
            ):
                found = name
    return found
