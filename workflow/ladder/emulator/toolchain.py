"""The machine's C++ compiler, and files that are compiled once and kept by content."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..documents import UserError

RUNTIME = Path(__file__).resolve().parents[2] / "emulator"
"""The C++ side: `include/`, which kernels see, and `runtime/`."""
HEADER = RUNTIME / "include" / "emulated_cuda.h"
"""Included before every kernel."""

# What the compilers must not do, so that one source access stays one call site that all lanes
# reach: vectorise, clone loops by a condition of the lane, split paths, merge equal statements (two
# barriers, say) of two branches, or share one static array between two libraries of a process (the
# "unique" symbols of g++). Contraction to FMA is what nvcc does too.
_COMMON = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden"]
_KERNEL = [
    "-O2",
    "-g1",
    "-gdwarf-4",
    "-fno-strict-aliasing",
    "-ffp-contract=fast",
    "-fsanitize=thread",
    "-Wno-unknown-pragmas",
    "-Wno-attributes",
]
_KERNEL_OF = {
    "gcc": [
        "-fno-tree-vectorize",
        "-fno-unswitch-loops",
        "-fno-gnu-unique",
        "-fno-extern-tls-init",
        "-fno-thread-jumps",
        "-fno-split-paths",
        "-fno-split-loops",
        "-fno-tree-loop-distribute-patterns",
        "--param=tsan-instrument-func-entry-exit=0",
    ],
    "clang": [
        "-fno-vectorize",
        "-fno-slp-vectorize",
        "-Wno-unknown-attributes",
        "-mllvm",
        "-tsan-instrument-func-entry-exit=0",
        "-mllvm",
        "-tsan-instrument-read-before-write=1",
        "-mllvm",
        "-simplifycfg-sink-common=false",
        "-mllvm",
        "-simplifycfg-hoist-common=false",
    ],
}
_RUNTIME_FLAGS = ["-O2", "-ftree-vectorize", "-Wall", "-Wextra"]


class EmulatorError(UserError):
    """The emulator cannot do what was asked; the message says why and what would be right."""


class NoCompilerError(EmulatorError):
    """No C++ compiler that the emulator can use is on this machine."""


class UnsupportedKernelError(EmulatorError):
    """The kernel uses what the emulator does not have, such as inline PTX."""


class KernelCompileError(EmulatorError):
    """The C++ compiler refused the kernel; the message holds its words."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its path, its family and what it says of its version."""

    path: str
    family: Literal["gcc", "clang"]
    version: str


def find_compiler(name: str | None = None) -> Compiler:
    """The compiler called `name`, else the one in the variable CXX, else g++ or clang++.

    Raises:
        NoCompilerError: if there is none, or the machine is one that the runtime cannot switch
            stacks on.
    """
    if not sys.platform.startswith("linux"):
        raise NoCompilerError(
            f"the emulator runs on Linux only, not on {sys.platform}"
            + ("; use the Windows Subsystem for Linux" if sys.platform == "win32" else "")
        )
    if platform.machine() not in ("x86_64", "aarch64"):
        raise NoCompilerError(f"the emulator runs on x86-64 and arm64, not on {platform.machine()}")
    wanted = name or os.environ.get("CXX")
    candidates = [wanted] if wanted else ["g++", "clang++"]
    for candidate in candidates:
        path = shutil.which(candidate)
        if path:
            return _identify(path)
    raise NoCompilerError(
        f"no C++ compiler found (looked for {' and '.join(candidates)}); "
        "install g++ or clang++, or name one in the variable CXX"
    )


@functools.cache
def _identify(path: str) -> Compiler:
    shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    if shown.returncode:
        raise NoCompilerError(f"{path} --version failed: {shown.stderr.strip()}")
    family: Literal["gcc", "clang"] = "clang" if "clang" in shown.stdout else "gcc"
    return Compiler(path, family, shown.stdout.splitlines()[0].strip())


def default_cache() -> Path:
    """Where compiled kernels are kept: under the user's cache folder, or the temporary folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base and os.environ.get("HOME"):
        base = str(Path(os.environ["HOME"]) / ".cache")
    folder = Path(base or tempfile.gettempdir()) / "gemm-ladder" / "emulator"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK)
    except OSError:
        usable = False
    if usable:
        return folder
    fallback = Path(tempfile.gettempdir()) / f"gemm-ladder-{os.getuid()}"
    fallback.mkdir(mode=0o700, parents=True, exist_ok=True)
    return fallback


def content_key(*parts: str | bytes) -> str:
    """A short name for content: the first 20 hex digits of a SHA-256."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:20]


def files_content(paths: Iterable[Path]) -> bytes:
    """Names and contents of files, for a key."""
    return b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in sorted(paths))


@functools.cache
def machine_flags() -> tuple[str, ...]:
    """Flags for this machine's instructions: to round as a GPU does, kernels need a fused
    multiply-add.

    Raises:
        NoCompilerError: on an x86-64 machine without FMA.
    """
    if platform.machine() == "aarch64":
        return ()
    try:
        flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        flags = None
    have = set(flags[1].split()) if flags else set()
    if "fma" not in have:
        raise NoCompilerError("the emulator needs a processor with FMA to round as a GPU does")
    return ("-mfma", "-mavx2") if "avx2" in have else ("-mfma",)


def run_tool(command: Sequence[str]) -> str:
    """The standard output of a program.

    Raises:
        EmulatorError: if it is missing or fails; the message holds its last words.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise EmulatorError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        raise EmulatorError(f"{command[0]} failed:\n{done.stderr.strip()[-4000:]}")
    return done.stdout


def keep(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, made by `make(temporary)` and renamed if it is not there yet.

    Two processes that want one file at once both make it; either result serves.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part{path.suffix}")
    try:
        make(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def kernel_flags(compiler: Compiler) -> list[str]:
    """Options that compile a kernel with one hook call before each of its accesses."""
    flags = [*_COMMON, *_KERNEL, *_KERNEL_OF[compiler.family]]
    if platform.machine() == "x86_64":
        flags.append("-mfma")
    return flags


def runtime_object(compiler: Compiler, cache: Path) -> Path:
    """The compiled runtime, which every kernel's library contains."""
    sources = [*(RUNTIME / "runtime").iterdir(), *(RUNTIME / "include").iterdir()]
    flags = [*_COMMON, *_RUNTIME_FLAGS, *machine_flags()]
    key = content_key(files_content(sources), compiler.path, compiler.version, repr(flags))

    def make(temporary: Path) -> None:
        run_tool(
            [
                compiler.path,
                *flags,
                f"-I{RUNTIME / 'include'}",
                f"-I{RUNTIME / 'runtime'}",
                "-c",
                str(RUNTIME / "runtime" / "runtime.cpp"),
                "-o",
                str(temporary),
            ]
        )

    return keep(cache / f"runtime-{key}.o", make)


def precompiled_header(compiler: Compiler, cache: Path) -> Path:
    """A header to be included before a kernel, with its precompiled form beside it.

    It stands for `emulated_cuda.h`, whose standard headers take a compiler longer than most
    kernels. Compilers take `NAME.gch` for an included `NAME` where its options are theirs.
    """
    flags = kernel_flags(compiler)
    key = content_key(
        str(HEADER), HEADER.read_bytes(), compiler.path, compiler.version, repr(flags)
    )
    stand_in = cache / f"header-{key}" / HEADER.name

    def make(temporary: Path) -> None:
        run_tool([compiler.path, *flags, "-x", "c++-header", str(HEADER), "-o", str(temporary)])

    keep(stand_in.with_name(f"{HEADER.name}.gch"), make)
    return keep(stand_in, lambda temporary: _write(temporary, f'#include "{HEADER}"\n'))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
