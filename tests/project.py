"""A throw-away project: the real workflow and package, other kernels and configuration."""

from __future__ import annotations

import atexit
import compileall
import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import yaml

from warm_steps import Server

ROOT = Path(__file__).resolve().parent.parent

QUICK = {
    "settle_s": 0,
    "sentinel_size": 64,
    "warmup_ms": 1,
    "minimum_total_ms": 2,
    "sample_us": 200,
}
"""Protocol constants that keep a test short."""

GEMM = (
    'extern "C" __global__ void gemm(const float* A, const float* B, float* C, int M, int N, int K)'
)
NAIVE_BODY = """{
    const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
    float acc = 0.0f;
    for (int k = 0; k < K; ++k) acc += A[row * K + k] * B[k * N + col];
    C[row * N + col] = acc;
}"""
MANIFEST: dict[str, Any] = {
    "title": "A user's kernel",
    "idea": "Whatever the test needs.",
    "launch": {"kind": "cuda", "block": [16, 16], "grid": ["cdiv(N, 16)", "cdiv(M, 16)"]},
}


def with_default_signals() -> None:
    """For `preexec_fn`: a test run in the background hands down ignored signals."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@functools.cache
def _workflow() -> Path:
    """The workflow with its package compiled, for all projects of this process to copy: else each
    of their processes would compile it anew."""
    folder = Path(tempfile.mkdtemp(prefix="ladder-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    skip = shutil.ignore_patterns("__pycache__")
    copy = Path(shutil.copytree(ROOT / "workflow", folder / "workflow", ignore=skip))
    compileall.compile_dir(copy / "ladder", quiet=1)
    return copy


@functools.cache
def _server() -> Server:
    server = Server()
    atexit.register(server.close)
    return server


class Project:
    """A copy of the project's moving parts in a folder of its own."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], *, kernels: list[str] | None = None
    ):
        self.folder = folder
        shutil.copytree(_workflow(), folder / "workflow")
        shutil.copytree(ROOT / "profiles", folder / "profiles")
        shutil.copy(ROOT / "Snakefile", folder)
        (folder / "config").mkdir()
        for name in ("gpus.yaml", "public.csv"):
            shutil.copy(ROOT / "config" / name, folder / "config")
        shutil.copytree(ROOT / "kernels", folder / "kernels")
        if kernels is not None:
            for path in (folder / "kernels").glob("*.*"):
                if path.stem not in kernels:
                    path.unlink()
        self.configure(config)
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LADDER_", "SNAKEMAKE"))
        } | {
            "PYTHONPATH": os.pathsep.join(
                [
                    str(folder / "workflow"),
                    str(ROOT / "tests"),
                    *filter(None, [os.environ.get("PYTHONPATH")]),
                ]
            ),
            "LADDER_LOCK_DIR": str(folder),
        }

    def configure(self, config: Mapping[str, Any]) -> None:
        (self.folder / "config" / "config.yaml").write_text(yaml.safe_dump(dict(config)))

    def fake_gpu(self, **settings: Any) -> None:
        """From now on a GPU is there: the fake one, with faults as `fake_gpu` describes."""
        path = self.folder / "fake_gpu.json"
        path.write_text(json.dumps(settings))
        self.environment |= {"LADDER_DEVICE_MODULE": "fake_gpu", "LADDER_FAKE_GPU": str(path)}

    def add_kernel(self, name: str, source: str | None = None, **manifest: Any) -> None:
        """Drop in a kernel by its two files."""
        body = source if source is not None else f"{GEMM} {NAIVE_BODY}"
        (self.folder / "kernels" / f"{name}.cu").write_text(body)
        (self.folder / "kernels" / f"{name}.yaml").write_text(yaml.safe_dump(MANIFEST | manifest))

    def ladder(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`python -m ladder ...` in the project."""
        return self._run("ladder", arguments, check)

    def snakemake(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`snakemake --cores 1 ...` in the project: other tests use the other cores, and drawing
        by two processes takes another start of Matplotlib."""
        return self._run("snakemake", ("--cores", "1", "--nocolor", *arguments), check)

    def _run(
        self, program: Literal["ladder", "snakemake"], arguments: tuple[str, ...], check: bool
    ) -> subprocess.CompletedProcess[str]:
        done = _server().run(program, list(arguments), self.folder, self.environment)
        if check and done.returncode != 0:
            raise AssertionError(f"{done.args} failed:\n{done.stdout}\n{done.stderr}")
        return done

    def compile_all(self, architecture: str = "sm_90a") -> None:
        """Compile every planned build, without Snakemake."""
        self.ladder("compile", "--architecture", architecture)

    def pretend_compiled(self, architecture: str = "sm_90a") -> None:
        """Build records without a compiler, for the fake GPU, which never looks into a CUBIN."""
        import hashlib

        from ladder import schema
        from ladder.builds import cubin_path, record_path
        from ladder.config import load
        from ladder.plan import plan_builds

        config, kernels = load([self.folder / "config/config.yaml"], self.folder)
        root = self.folder / "results" / "build"
        for build in plan_builds(config, kernels, [architecture]):
            params = json.loads(build.params)
            code = f"{kernels[build.kernel].source_sha256()}{build.params}".encode()
            cubin = cubin_path(root, architecture, build.kernel, params)
            cubin.parent.mkdir(parents=True, exist_ok=True)
            cubin.write_bytes(code)
            row = {
                "kernel": build.kernel,
                "params": build.params,
                "architecture": architecture,
                "status": "ok",
                "source_sha256": kernels[build.kernel].source_sha256(),
                "cubin_sha256": hashlib.sha256(code).hexdigest(),
                "registers_per_thread": 32,
                "static_shared_memory_bytes": 0,
            }
            schema.write(record_path(root, architecture, build.kernel, params), "builds", [row])

    def measure(
        self, out: str = "results/fake-gpu", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Plan and measure, without Snakemake."""
        self.ladder("plan")
        return self.ladder("measure", "--out", out, check=check)

    def table(self, name: str, out: str = "results/fake-gpu") -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(
            self.folder / out / f"{name}.parquet", partitioning=None
        ).to_pylist()
        return rows

    def statuses(self, out: str = "results/fake-gpu") -> dict[str, set[str]]:
        """The statuses of each kernel's points."""
        found: dict[str, set[str]] = {}
        for row in self.table("points", out):
            found.setdefault(row["kernel"], set()).add(row["status"])
        return found
