"""Every default set of every rung once on the GPU: what `test_gpu_rungs.py` runs.

``python gpu_rungs.py FOLDER M N K [M N K ...]``; FOLDER holds, or gets, the CUBINs. Prints a line
for each result that is not exact, and fails if there is one.
"""

from __future__ import annotations

import hashlib
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ladder.compile import compile_build
from ladder.device import LaunchSpec, detect
from ladder.manifest import Kernel, KernelLaunch, canonical, expand, load_all
from ladder.plan import architecture_fault
from project import ROOT


def rungs() -> list[tuple[Kernel, dict[str, Any]]]:
    """The kernels that have code of their own and are for this GPU, and their default sets."""
    return [
        (kernel, params)
        for kernel in load_all(ROOT / "kernels").values()
        if isinstance(kernel.manifest.launch, KernelLaunch)
        and architecture_fault(kernel, architecture()) is None
        for params in expand(kernel.manifest.sweep)
    ]


def architecture() -> str:
    return detect()[0].architecture(["sm_90a", "sm_120"])


def cubin_of(folder: Path, kernel: Kernel, params: dict[str, Any]) -> Path:
    name = hashlib.sha256(canonical(params).encode()).hexdigest()[:16]
    return folder / f"{kernel.name}-{name}.cubin"


def build(folder: Path, kernel: Kernel, params: dict[str, Any], architecture: str) -> None:
    row, code = compile_build(kernel, params, architecture)
    assert code is not None, row
    cubin_of(folder, kernel, params).write_bytes(code)


def build_all(folder: Path) -> None:
    """Compile what FOLDER lacks, in parallel."""
    missing = [
        (folder, kernel, params, architecture())
        for kernel, params in rungs()
        if not cubin_of(folder, kernel, params).exists()
    ]
    if missing:
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            list(pool.map(build, *zip(*missing, strict=True)))


def main() -> None:
    folder, numbers = Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]
    sizes = list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))
    build_all(folder)

    import cupy

    from ladder import correctness
    from ladder.cuda_device import CudaDevice

    device = CudaDevice()
    wrong = 0
    for m, n, k in sizes:
        a, b = cupy.empty(m * k, cupy.float32), cupy.empty(k * n, cupy.float32)
        correctness.fill_inputs(cupy, a, b, "exact", 1)
        # On the host: a sanitizer would look at every access of a product on the GPU too.
        expected = (
            a.get().reshape(m, k).astype(float) @ b.get().reshape(k, n).astype(float)
        ).ravel()
        for kernel, params in rungs():
            launch = kernel.launch(params, m, n, k)
            assert launch is not None
            spec = LaunchSpec(
                kernel.manifest.launch.kind, str(cubin_of(folder, kernel, params)), launch.grid,
                launch.block, launch.dynamic_shared_memory_bytes, cluster=launch.cluster,
                tensor_maps=launch.tensor_maps, scratch_bytes=launch.scratch_bytes,
            )  # fmt: skip
            c = cupy.full(m * n, cupy.nan, cupy.float32)
            device.launcher(spec, m, n, k)(a, b, c)
            device.synchronize()
            if not (c.get() == expected).all():
                wrong += 1
                print(f"wrong: {kernel.name} {canonical(params)} at {m}x{n}x{k}")
    print(f"{len(rungs())} sets at {len(sizes)} sizes, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
