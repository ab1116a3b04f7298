"""``python -m ladder emulate``: run a kernel on the CPU and show what it asks of memory."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..builds import cubin_path
from ..config import Config
from ..documents import UserError
from ..manifest import (
    Kernel,
    Params,
    canonical,
    expand,
    included_headers,
    parameter_fault,
    parse_slug,
)
from ..processes import in_processes
from ..status import RETRIED
from . import sass
from .compiled import CompiledCounts
from .point import EmulatedPoint, counter_rows, emulate_within
from .result import Site
from .sass import Program
from .toolchain import (
    RUNTIME,
    EmulatorError,
    content_key,
    default_cache,
    files_content,
    find_compiler,
    keep,
    machine_flags,
)

POINT_LIMIT_S = 600.0
"""Seconds until a size of a planned set counts as hung."""
# Modules beside the emulator that decide what it counts and how a result is judged.
_JUDGES = ("correctness", "expressions", "manifest", "tensor_maps")
FAULT_FOUND = 1
"""Exit code when the kernel has a fault or a wrong result."""


def run(kernel: Kernel, arguments: argparse.Namespace) -> int:
    """Emulate the points asked for; 0 if all are right or went to a table, 1 if one has a fault.

    Args:
        arguments: as `ladder.__main__` reads them.

    Raises:
        UserError: if a name or a value is wrong, or (without --out) a point cannot run.
    """
    if not arguments.size:
        raise UserError("--size: say M, N and K, as in --size 256 256 256")
    if not kernel.needs_build:
        raise UserError(f"{kernel.name} is a baseline; it has no source to emulate")
    params = _params(kernel, arguments)
    compiler = find_compiler(arguments.compiler) if arguments.compiler else None
    for m, n, k in arguments.size:
        if min(m, n, k) < 1:
            raise UserError(f"--size {m} {n} {k}: each must be at least 1")
    programs = _programs(kernel, params, arguments)  # read once for all sizes
    points = []
    for m, n, k in arguments.size:
        points.append(
            emulate_within(
                arguments.timeout,
                kernel,
                params,
                m,
                n,
                k,
                sample={"auto": None, "always": True, "never": False}[arguments.sample],
                checks=not arguments.no_checks,
                most_fma=arguments.most_fma,
                compiler=compiler,
                cache=arguments.cache,
                programs=programs,
            )
        )
    if arguments.out:
        # Not before: pyarrow starts a thread, and a process of several cannot be forked.
        from .. import schema

        schema.write(
            arguments.out, "counters", [row for point in points for row in counter_rows(point)]
        )
    else:
        for point in points:
            if point.result is None:
                raise UserError(
                    f"{kernel.name} at {point.m}x{point.n}x{point.k} was not emulated "
                    f"({point.status}): {point.detail}"
                )
    if arguments.json:
        shown = [as_json(point) for point in points]
        print(json.dumps(shown[0] if len(shown) == 1 else shown, indent=2, allow_nan=False))
    else:
        print("\n\n".join(as_text(point, kernel) for point in points))
    if arguments.out:
        return 0
    faulty = [point for point in points if point.result is not None and not point.correct]
    return FAULT_FOUND if faulty else 0


def run_planned(
    config: Config, kernels: Mapping[str, Kernel], arguments: argparse.Namespace
) -> int:
    """Emulate every set of a configuration and write one table; what is wrong is a row of it.

    The rows of a set stay in the cache, by all that they depend on: only what is new is run.

    Args:
        arguments: as `ladder.__main__` reads them.

    Raises:
        UserError: if it is not said where the table goes.
    """
    if not arguments.out:
        raise UserError("--out: say where the table of the whole configuration goes")
    tasks = [
        (kernel, params, config, arguments.builds, arguments.cache or default_cache())
        for kernel, params in config.emulated_sets(kernels)
    ]
    rows = []
    for own, shown in in_processes(_emulate_or_keep, tasks, arguments.workers):
        rows += own
        print(shown, end="\n\n")
    # Not before: pyarrow starts a thread, and a process of several cannot be forked.
    from .. import schema

    schema.write(arguments.out, "counters", rows)
    return 0


def _emulate_or_keep(
    kernel: Kernel, params: Params, config: Config, builds: Path, cache: Path
) -> tuple[list[dict[str, Any]], str]:
    """Rows of the `counters` table of one set at the emulator's sizes, and words for the log."""
    # Machine code is counted for one architecture: reading it takes longer than counting.
    architecture = config.architectures[0]
    path = cubin_path(builds, architecture, kernel.name, params)
    cubin = path.read_bytes() if path.exists() else b""
    kept = cache / f"counters-{_key(kernel, params, config, cubin)}.json"
    if kept.exists():
        rows = json.loads(kept.read_text(encoding="utf-8"))
        return rows, f"{kernel.name} {canonical(params)}: kept in {kept}"
    programs = _read_all({architecture: cubin} if cubin else {})
    points = [
        emulate_within(
            POINT_LIMIT_S,
            kernel,
            params,
            *size,
            most_fma=config.emulator.most_fma,
            cache=cache,
            programs=programs,
        )
        for size in config.emulator.sizes
    ]
    rows = [row for point in points for row in counter_rows(point)]
    if not any(point.status in RETRIED for point in points):
        keep(kept, lambda part: _write_text(part, json.dumps(rows)))
    return rows, "\n\n".join(as_text(point, kernel) for point in points)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _key(kernel: Kernel, params: Params, config: Config, cubin: bytes) -> str:
    """What the rows of a set depend on. Findings name lines, so that a comment counts too."""
    assert kernel.source_path is not None, "baselines are not emulated"
    package = Path(__file__).parents[1]
    code = [
        *package.glob("emulator/*.py"),
        *[package / f"{name}.py" for name in _JUDGES],
        *[path for path in RUNTIME.glob("*/*") if path.is_file()],
    ]
    try:
        compiler = f"{find_compiler()} {machine_flags()}"
    except EmulatorError as error:
        compiler = str(error)
    return content_key(
        files_content([kernel.source_path, *included_headers(kernel.source_path)]),
        kernel.manifest_path.read_bytes(),
        canonical(params),
        config.emulator.model_dump_json(exclude={"use"}),
        config.architectures[0],
        cubin,
        files_content(code),
        compiler,
        f"{sass.find_nvdisasm()}",
    )


def _params(kernel: Kernel, arguments: argparse.Namespace) -> dict[str, int]:
    params = parse_slug(arguments.params) if arguments.params else {}
    for item in arguments.set:
        match = re.fullmatch(r"([A-Za-z_]\w*)=(-?\d+)", item)
        if match is None:
            raise UserError(f"--set {item}: write NAME=VALUE with a whole number")
        params[match[1]] = int(match[2])
    if not params:
        params = next(expand(kernel.manifest.sweep), {})
    fault = parameter_fault(kernel.manifest, params)
    if fault:
        raise UserError(f"--set: {fault}")
    return params


def _programs(
    kernel: Kernel, params: Mapping[str, int], arguments: argparse.Namespace
) -> dict[str, Program | str]:
    """Machine code by architecture, compiled now, or why it cannot be read."""
    cubins = {}
    for architecture in arguments.architecture or []:
        from ..compile import compile_build

        row, cubin = compile_build(kernel, params, architecture)
        if not cubin:
            raise UserError(f"{kernel.name} for {architecture}: {row['status']}: {row['detail']}")
        cubins[architecture] = cubin
    return _read_all(cubins)


def _read_all(cubins: Mapping[str, bytes]) -> dict[str, Program | str]:
    """Machine code by architecture, or why it cannot be read."""
    programs: dict[str, Program | str] = {}
    for architecture, cubin in cubins.items():
        try:
            programs[architecture] = sass.load(cubin)
        except EmulatorError as error:
            programs[architecture] = str(error)
    return programs


# --- showing --------------------------------------------------------------------------------------


def as_json(point: EmulatedPoint) -> dict[str, Any]:
    """A point as JSON values; counters are integers under NCU's names."""
    result = point.result
    shown: dict[str, Any] = {
        "kernel": point.kernel,
        "params": dict(point.params),
        "m": point.m,
        "n": point.n,
        "k": point.k,
        "status": point.status,
        "detail": point.detail,
        "eta_max": point.eta_max,
        "bitwise_hash": point.bitwise_hash,
    }
    if result is not None:
        shown |= {
            "counters": result.counters,
            "ratios": point.ratios,
            "inexact": result.inexact,
            "sampled_blocks": result.sampled_blocks,
            "wall_s": result.wall_s,
            "findings": [asdict(finding) for finding in result.findings],
            "sites": [asdict(site) for site in result.sites],
            "compiled": {
                name: counted if isinstance(counted, str) else counted.counters
                for name, counted in point.compiled.items()
            },
        }
    return shown


def as_text(point: EmulatedPoint, kernel: Kernel) -> str:
    """A point for the terminal: verdict, findings, counters, annotated source."""
    head = f"{point.kernel} {canonical(point.params)}, M = {point.m}, N = {point.n}, K = {point.k}"
    result = point.result
    if result is None:
        return f"{head}\n{point.status}: {point.detail}"
    which = (
        "all blocks"
        if result.sampled_blocks is None
        else f"{result.sampled_blocks} blocks that stand for all"
    )
    lines = [head, f"ran {which} in {result.wall_s:.2f} s"]
    lines.append(
        f"result: {point.status}"
        + (f" (largest eta {point.eta_max:.2f})" if point.eta_max is not None else "")
    )
    if point.bitwise_hash:
        lines.append(f"SHA-256 of C: {point.bitwise_hash}")
    if result.inexact:
        lines.append(f"the counters are not exact: {result.inexact}")
    lines += (
        ["", "findings: none"]
        if not result.findings
        else ["", "findings:", *[f"  {finding}" for finding in result.findings]]
    )
    if not result.findings and point.detail:
        lines.append(f"  {point.detail}")
    lines += ["", *_counter_table(point)]
    if kernel.source_path is not None:
        lines += ["", *_annotated(kernel.source_path, result.sites)]
    return "\n".join(lines)


def _counter_table(point: EmulatedPoint) -> list[str]:
    assert point.result is not None
    counted = {
        name: value for name, value in point.compiled.items() if isinstance(value, CompiledCounts)
    }
    metrics = [
        *point.result.counters,
        *(
            name
            for value in counted.values()
            for name in value.counters
            if name not in point.result.counters
        ),
    ]
    metrics = [
        name
        for name in dict.fromkeys(metrics)
        if point.result.counters.get(name) or any(v.counters.get(name) for v in counted.values())
    ]
    width = max((len(name) for name in metrics), default=10)
    table = [
        f"{'counter':<{width}} {'source':>16}"
        + "".join(f" {'compiled ' + name:>18}" for name in counted)
    ]
    for name in metrics:
        cells = [_number(point.result.counters.get(name))]
        others = [_number(value.counters.get(name)) for value in counted.values()]
        table.append(f"{name:<{width}} {cells[0]:>16}" + "".join(f" {cell:>18}" for cell in others))
    table += [f"{name:<{width}} {value:>16,.4g}" for name, value in point.ratios.items()]
    table += [
        f"machine code for {name}: {value}"
        for name, value in point.compiled.items()
        if isinstance(value, str)
    ]
    return table


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _annotated(source: Path, sites: list[Site]) -> list[str]:
    """The source lines that touch memory, each followed by what its accesses cost."""
    text = source.read_text(encoding="utf-8").splitlines()
    lines: list[str] = []
    last = 0
    for site in sites:
        if site.file == source.name and site.line != last and 0 < site.line <= len(text):
            lines.append(f"{site.line:>4} | {text[site.line - 1].rstrip()}")
            last = site.line
        if site.space == "global":
            cost = (
                f"{site.sectors:,} sectors, {site.sectors / site.requests:.2f} per request, "
                f"{site.unique_bytes / max(site.sectors, 1):.1f} bytes per sector"
            )
        else:
            cost = f"{site.wavefronts:,} wavefronts, {site.conflicts:,} bank conflicts"
        where = "" if site.file == source.name else f" ({site.file}:{site.line})"
        lines.append(
            f"     |   {site.space} {site.kind} of {site.bytes} bytes, {site.array}{where}: "
            f"{site.requests:,} requests, {cost}"
        )
    return lines
