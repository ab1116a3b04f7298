"""Building: cached by content, safe for two processes, and clear about what it cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from emulator.support import COMPILERS, PLANTED, RUNGS, each_compiler, needs_compiler
from ladder.emulator import (
    Compiler,
    EmulatorError,
    NoCompilerError,
    UnsupportedKernelError,
    build_library,
    emulate,
    find_compiler,
)
from ladder.emulator.library import _plain_name
from ladder.emulator.toolchain import KernelCompileError, default_cache, precompiled_header
from ladder.manifest import Launch


def test_a_machine_without_a_compiler_gets_a_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        NoCompilerError, match=r"no C\+\+ compiler found.*install g\+\+ or clang\+\+"
    ):
        find_compiler()


def test_other_systems_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(NoCompilerError, match="Subsystem for Linux"):
        find_compiler()


@needs_compiler
def test_the_same_kernel_is_built_once_and_another_anew(tmp_path: Path, fresh_cache: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text((PLANTED / "unguarded.cu").read_text())
    first = build_library(source, {}, cache=fresh_cache)
    built = first.path.stat().st_mtime_ns
    again = build_library(source, {}, cache=fresh_cache)
    assert again.path == first.path and again.path.stat().st_mtime_ns == built
    other = build_library(source, {"EXTRA": 1}, cache=fresh_cache)
    source.write_text(source.read_text() + "\n// changed\n")
    edited = build_library(source, {}, cache=fresh_cache)
    assert len({first.path, other.path, edited.path}) == 3
    assert not [path for path in fresh_cache.iterdir() if ".part" in path.name]


@needs_compiler
@each_compiler
def test_a_precompiled_header_that_no_longer_serves_refuses_no_kernel(
    compiler: Compiler, fresh_cache: Path
) -> None:
    (precompiled,) = precompiled_header(compiler, fresh_cache).parent.glob("*.gch")
    precompiled.write_bytes(precompiled.read_bytes()[:1000])
    source = PLANTED / "unguarded.cu"
    assert build_library(source, {}, cache=fresh_cache, compiler=compiler).path.is_file()


@needs_compiler
def test_an_edited_header_builds_anew(tmp_path: Path, fresh_cache: Path) -> None:
    (tmp_path / "include").mkdir()
    header, source = tmp_path / "include" / "value.cuh", tmp_path / "kernel.cu"
    source.write_text(
        '#include "value.cuh"\nextern "C" __global__ void gemm(float* C) { C[0] = VALUE; }\n'
    )
    seen = []
    for value in (1.0, 2.0):
        header.write_text(f"#define VALUE {value}f\n")
        out = np.zeros(1, np.float32)
        build_library(source, {}, cache=fresh_cache).run((1,), (1,), [out])
        seen.append(out[0])
    assert seen == [1.0, 2.0]


@needs_compiler
def test_two_processes_may_build_at_once(fresh_cache: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ladder.emulator import build_library; "
        "print(build_library(Path(sys.argv[1]), {'TILE': 8}, cache=Path(sys.argv[2])).path)"
    )
    command = [sys.executable, "-c", code, str(RUNGS / "03_shared_tile.cu"), str(fresh_cache)]
    environment = {**os.environ, "PYTHONPATH": str(RUNGS.parent / "workflow")}
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    paths = {process.communicate()[0].strip() for process in both}
    assert all(process.returncode == 0 for process in both)
    assert len(paths) == 1 and Path(paths.pop()).is_file()


def test_the_cache_needs_no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert os.access(default_cache(), os.W_OK)
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    assert os.access(default_cache(), os.W_OK)


@needs_compiler
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "inline PTX"),
        (
            'extern "C" __global__ void gemm(float* C) { nvcuda::wmma::fill(C); }',
            "matrix fragments",
        ),
        (
            'extern "C" __global__ void gemm(float* C) { other<<<1, 1>>>(C); }',
            "launch from the device",
        ),
        ('extern "C" __global__ void gemm(const CUtensorMap map) {}', "tensor maps"),
        (
            'extern "C" __global__ void gemm(float* C) { extern __shared__ float a[]; '
            "extern __shared__ float b[]; a[0] = C[0]; C[1] = b[0]; }",
            "several extern __shared__",
        ),
    ],
)
def test_what_is_not_supported_is_named(
    source: str | None, words: str, tmp_path: Path, fresh_cache: Path
) -> None:
    path = PLANTED / "inline_ptx.cu"
    if source is not None:
        path = tmp_path / "unsupported.cu"
        path.write_text(source + "\n")
    with pytest.raises(UnsupportedKernelError, match=words):
        build_library(path, {}, cache=fresh_cache)


@needs_compiler
def test_a_wrong_kernel_gives_the_compilers_words(tmp_path: Path, fresh_cache: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text('extern "C" __global__ void gemm(float* C) { C[0] = undeclared; }\n')
    with pytest.raises(KernelCompileError, match=r"wrong\.cu: .*undeclared"):
        build_library(source, {}, cache=fresh_cache)


@needs_compiler
def test_libraries_of_both_compilers_live_in_one_process(fresh_cache: Path) -> None:
    """They share no state: neither the runtime's nor the kernels' shared arrays."""
    libraries = [
        build_library(
            RUNGS / "03_shared_tile.cu",
            {"TILE": 8},
            cache=fresh_cache,
            compiler=find_compiler(name),
        )
        for name in COMPILERS
    ]
    for library in [*libraries, *libraries[::-1]]:
        out = np.zeros(64, np.float32)
        library.run(
            (1, 1), (8, 8), [np.ones(64, np.float32), np.ones(64, np.float32), out, 8, 8, 8]
        )
        assert (out == 8).all()


@needs_compiler
def test_impossible_launches_are_refused(fresh_cache: Path) -> None:
    a = b = np.ones(4, np.float32)
    source, params = RUNGS / "01_naive.cu", {"BLOCK_X": 2, "BLOCK_Y": 2}
    with pytest.raises(EmulatorError, match="1 to 1024"):
        emulate(
            source, params, Launch((1, 1, 1), (2048, 1, 1), 0), 2, 2, 2, a=a, b=b, cache=fresh_cache
        )
    with pytest.raises(EmulatorError, match="b must hold 6 float32, found 4"):
        emulate(
            source, params, Launch((1, 1, 1), (2, 2, 1), 0), 2, 3, 2, a=a, b=b, cache=fresh_cache
        )


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZZ4gemmE6a_tile", "a_tile"),
        ("_ZZ4bodyILi8ELi16EEvPKfE2As", "As"),
        ("_ZZ4gemmE6a_tile_0", "a_tile"),
        ("a_tile.1", "a_tile"),
        ("shared", "shared"),
    ],
)
def test_shared_arrays_carry_their_names(symbol: str, name: str) -> None:
    assert _plain_name(symbol) == name
