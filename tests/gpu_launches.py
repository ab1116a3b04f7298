"""What test_gpu.py runs in a process of its own: its context would else be another user of the GPU.

``python gpu_launches.py FOLDER``; FOLDER is for CUBINs.
"""

from __future__ import annotations

import ctypes
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import yaml

from ladder import correctness
from ladder.compile import compile_build
from ladder.cuda_device import CudaDevice
from ladder.device import LaunchSpec, detect
from ladder.driver import KernelLaunch
from ladder.manifest import TensorMaps, load
from ladder.tensor_maps import MappedMatrix, mapped_matrices
from launch_kinds import KERNELS, ODD_SIZES
from project import MANIFEST, ROOT

SLOWEST_TRANSPOSE = 1.5
"""Times a plain copy of as many bytes at 4096 x 4096."""


def build(folder: Path, name: str, m: int, n: int, k: int) -> LaunchSpec:
    """The launch of a kernel of `launch_kinds`, compiled for this GPU."""
    source, manifest = KERNELS[name]
    kernels = folder / "kernels"
    if not kernels.exists():
        shutil.copytree(ROOT / "kernels/include", kernels / "include")
    (kernels / f"{name}.cu").write_text(source)
    (kernels / f"{name}.yaml").write_text(yaml.safe_dump(MANIFEST | manifest))
    kernel = load(kernels / f"{name}.yaml")
    [(parameter, [value])] = manifest["sweep"].items()
    row, code = compile_build(kernel, {parameter: value}, detect()[0].architecture(["sm_90a"]))
    assert row["status"] == "ok", row
    cubin = folder / f"{name}.cubin"
    cubin.write_bytes(code)
    launch = kernel.launch({parameter: value}, m, n, k)
    assert launch is not None
    return LaunchSpec(
        kernel.manifest.launch.kind, str(cubin), launch.grid, launch.block,
        launch.dynamic_shared_memory_bytes, cluster=launch.cluster, tensor_maps=launch.tensor_maps,
    )  # fmt: skip


def helper_launch(spec: LaunchSpec, mapped: MappedMatrix, read: Any, copy: Any) -> KernelLaunch:
    """One launch of a helper on arrays of our own."""
    helper = mapped.helper
    assert helper is not None
    function = cupy.RawModule(path=spec.cubin).get_function(helper.entry)
    sizes = [ctypes.c_int(size) for size in (helper.rows, helper.columns, mapped.pitch)]
    launch = KernelLaunch(
        function.kernel.ptr, helper.grid, helper.block,
        [ctypes.c_void_p(read.data.ptr), ctypes.c_void_p(copy.data.ptr), *sizes],
        stream=cupy.cuda.get_current_stream().ptr,
    )  # fmt: skip
    launch.kernel = function  # keeps the module loaded
    return launch


def helpers_copy_every_element_and_leave_the_padding(spec: LaunchSpec) -> None:
    # The last two need more blocks than a grid has along y.
    sizes = [(1, 1), (33, 65), (257, 255), (70_000, 3), (2, 2_100_001), (600_000, 5)]
    for rows, columns in sizes:
        matrix = cupy.arange(rows * columns, dtype=cupy.float32).reshape(rows, columns)
        turned, _ = mapped_matrices(TensorMaps((32, 8), (32, 8), True), rows, 4, columns)
        padded, _ = mapped_matrices(TensorMaps((32, 8), (32, 8), False), rows, 4, columns)
        for mapped, expected in ((turned, matrix.T), (padded, matrix)):
            if mapped.helper is None:
                continue
            copy = cupy.full((mapped.rows, mapped.pitch), -1, dtype=cupy.float32)
            helper_launch(spec, mapped, matrix, copy)()
            label = f"{mapped.helper.entry} of {rows} x {columns}"
            assert bool((copy[:, : mapped.columns] == expected).all()), label
            assert bool((copy[:, mapped.columns :] == -1).all()), f"padding of {label}"


def the_transposition_runs_near_the_speed_of_a_copy(device: CudaDevice, spec: LaunchSpec) -> None:
    side = 4096
    mapped, _ = mapped_matrices(TensorMaps((32, 8), (32, 8), True), side, side, side)
    # More than the L2 cache of any GPU, in turn.
    pairs = [
        (cupy.zeros((side, side), cupy.float32), cupy.empty((side, side), cupy.float32))
        for _ in range(4)
    ]
    launches = [helper_launch(spec, mapped, read, copy) for read, copy in pairs]

    def time_ns(run: Any) -> float:
        times = []
        for _ in range(10):
            start = device.record()
            run()
            stop = device.record()
            device.synchronize()
            times.append(device.elapsed_ns(start, stop) / len(pairs))
        return min(times)

    turning = time_ns(lambda: [launch() for launch in launches])
    copying = time_ns(lambda: [cupy.copyto(copy, read) for read, copy in pairs])
    rate = 8 * side * side / turning
    print(
        f"transpose_a {side}: {turning / 1e3:.1f} us, {rate:.0f} GB/s; copy {copying / 1e3:.1f} us"
    )
    assert turning < SLOWEST_TRANSPOSE * copying


def a_graph_gives_the_bits_of_single_launches(device: CudaDevice, folder: Path) -> None:
    for name in KERNELS:
        for m, n, k in ODD_SIZES:
            launch = device.launcher(build(folder, name, m, n, k), m, n, k)
            sets = []
            for seed in (1, 2):
                a, b = cupy.empty(m * k, cupy.float32), cupy.empty(k * n, cupy.float32)
                correctness.fill_inputs(cupy, a, b, "exact", seed)
                sets.append((a, b, cupy.full(m * n, np.nan, cupy.float32)))
            expected = [
                (a.reshape(m, k).astype(cupy.float64) @ b.reshape(k, n).astype(cupy.float64))
                for a, b, _ in sets
            ]
            launch(*sets[0])
            # The second set is met for the first time inside the capture.
            batch = device.batch([lambda s=s, launch=launch: launch(*s) for s in (*sets, *sets)])
            for repeat in range(2):
                if repeat:
                    for _, _, c in sets:
                        c.fill(np.nan)
                batch()
                device.synchronize()
                for (_, _, c), right in zip(sets, expected, strict=True):
                    same = c.reshape(m, n) == right.astype(cupy.float32)
                    assert bool(same.all()), f"{name} {m}x{n}x{k}"


def a_refused_cluster_is_an_error_of_the_launch(device: CudaDevice, folder: Path) -> None:
    spec = build(folder, "10_pair", 64, 64, 64)
    launch = device.launcher(replace(spec, cluster=(3, 1, 1)), 64, 64, 64)  # grid.x is 4
    arrays = [cupy.zeros(64 * 64, cupy.float32) for _ in range(3)]
    try:
        launch(*arrays)
        device.synchronize()
    except Exception as error:
        status, words, _ = device.classify(error)
        assert status == "launch_failed", (status, words)
        assert "cuLaunchKernelEx" in words, words
    else:
        raise AssertionError("a grid that is no whole number of clusters was launched")


def main() -> None:
    folder = Path(sys.argv[1])
    device = CudaDevice()
    maps = build(folder, "12_turned", 64, 64, 64)
    helpers_copy_every_element_and_leave_the_padding(maps)
    the_transposition_runs_near_the_speed_of_a_copy(device, maps)
    a_graph_gives_the_bits_of_single_launches(device, folder)
    a_refused_cluster_is_an_error_of_the_launch(device, folder)


if __name__ == "__main__":
    main()
