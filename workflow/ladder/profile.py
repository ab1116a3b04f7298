"""The profiling step: hardware counters of chosen points, read by Nsight Compute.

One profiler process takes many points, since its start takes seconds. Its launches are told apart
by their order, and each must be of the kernel, grid and block that the point has; else the point is
an error and gets no number. The kernels of cuBLAS are not known beforehand, so such a point has a
process alone.

What cannot be counted is a row with a reason. What was counted is kept by its content, as timings
are, and not counted again. No time is read: a profiled launch runs many times, between cache
flushes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import ncu, schema
from .config import Config, Profile
from .device import GpuIdentity, LaunchSpec, detect, expected, select
from .documents import UserError
from .emulator.compiled import INSTRUCTIONS
from .hardware import Counter, Launch, Value, names_asked, values_of_point
from .manifest import ENTRY_POINT, Kernel, compute_capability
from .measure import gpu_lock, worker_environment
from .ncu import Dimensions, ProfiledLaunch, Profiler, TableError
from .plan import Fault, Point, read_config
from .progress import Progress
from .status import RANKED, Status
from .store import Environment
from .telemetry import open_monitor
from .tensor_maps import mapped_matrices
from .work import WorkItem, work_item

FORMAT = 1
"""Of the files that keep what was counted; another number counts everything anew."""
TABLE = "hardware.parquet"
_PERMISSION = (
    "this user may not read the GPU's hardware counters (ERR_NVGPUCTRPERM). An administrator allows"
    " it with the option NVreg_RestrictProfilingToAdminUsers=0 of the kernel module nvidia, in a"
    " file of /etc/modprobe.d, and a restart; a container needs the capability SYS_ADMIN on top"
)
_SILENT = "nothing came from the profiler any more (profile.timeout_s); it was stopped"
_FRUITLESS_RUNS = 4
"""So many profiler runs in a row that give errors and no launch, and the rest is not tried."""


class CannotProfileError(Exception):
    """No point can be profiled on this machine as it is."""

    def __init__(self, fault: Fault):
        super().__init__(fault[1])
        self.fault = fault


@dataclass(frozen=True)
class Summary:
    """What a profiling run did."""

    points: int
    counted: int
    """Counted in this run."""
    kept: int
    """Found counted before."""
    failed: dict[str, int]
    """Points without counters, by status."""


def profile(plan: Path, kernels: Mapping[str, Kernel], *, builds_root: Path, out: Path) -> Summary:
    """Count what is chosen by `profile` of the configuration, and write `hardware.parquet`.

    Args:
        plan: the plan's file.
        kernels: the kernels it names.
        builds_root: folder of the builds.
        out: result folder with the tables of what was measured.

    Raises:
        UserError: if no GPU answers, nothing was measured, or `profile.use` is `required` and the
            counters cannot be read.
    """
    config = read_config(plan)
    gpu = select(expected(detect(), config.gpu.expect), config.gpu.select)[0]
    architecture = gpu.architecture(config.architectures)
    environment = Environment(
        gpu.uuid,
        str(open_monitor(gpu.uuid).facts().get("driver_version")),
        _cublas_version(out),
    )
    items = [
        work_item(
            point, None, kernels[point.kernel], config, builds_root, architecture, environment
        )
        for point in choose(_read(out / "points.parquet", "points"), config.profile)
    ]
    session = Session(gpu, config, out)
    if items:
        session.count(items)
        if session.obstacle and config.profile.use == "required":
            raise UserError(f"profile.use: required, but {session.obstacle[1]}")
    rows = [row for item in items for row in session.rows(item, architecture)]
    schema.write(out / TABLE, "counters", rows)
    return session.summary(items)


def _read(path: Path, name: str) -> list[dict[str, Any]]:
    if not path.exists():
        raise UserError(f"{path}: does not exist; points are profiled after `ladder measure`")
    rows: list[dict[str, Any]] = schema.read(path, name).to_pylist()
    return rows


def _cublas_version(out: Path) -> str:
    runs = _read(out / "runs.parquet", "runs")
    return str(max(runs, key=lambda run: run["started_at"])["cublas_version"]) if runs else ""


def choose(rows: Sequence[Mapping[str, Any]], settings: Profile) -> list[Point]:
    """The points to profile, of those that were measured and are right.

    At each of the sizes the fastest parameter set of every kernel, or all sets of a kernel.
    """
    times: dict[Point, float] = {}
    for row in rows:
        point = Point(row["kernel"], row["params"], row["m"], row["n"], row["k"], row["cache_mode"])
        if row["status"] in RANKED and point.cache_mode == "rotating":
            times[point] = min(row["time_median_ns"], times.get(point, row["time_median_ns"]))
    chosen: set[Point] = set()
    for m, n, k in settings.sizes:
        here = [point for point in times if point.shape == (m, n, k)]
        for kernel in {point.kernel for point in here}:
            own = [point for point in here if point.kernel == kernel]
            every = kernel in settings.every_set
            chosen.update(own if every else [min(own, key=lambda point: (times[point], point))])
    return sorted(chosen)


def expected_launches(
    spec: LaunchSpec, shape: tuple[int, int, int]
) -> list[tuple[str, Dimensions, Dimensions]] | None:
    """Kernel, grid and block of every launch of a point in order; None for a library's own."""
    if spec.cubin is None:
        return None
    mapped = mapped_matrices(spec.tensor_maps, *shape) if spec.tensor_maps else ()
    helpers = [helper for matrix in mapped for helper in matrix.launches]
    return [
        *((helper.entry, helper.grid, helper.block) for helper in helpers),
        (ENTRY_POINT, spec.grid, spec.block),
    ]


@dataclass(frozen=True)
class Traces:
    """What one profiler run left: how far the program came, and the launches counted."""

    run: ncu.Run
    states: Mapping[int, Mapping[str, Any]]
    """The last word of the program on each point that it began."""
    launches: Sequence[ProfiledLaunch]
    items: Sequence[WorkItem]

    @property
    def ended(self) -> int:
        """How many points ended before the first that did not."""
        done = 0
        while done in self.states and self.states[done]["state"] == "ended":
            done += 1
        return done

    @property
    def whole(self) -> bool:
        """Whether the program came to its end."""
        return self.ended == len(self.items)

    @property
    def stopped_at(self) -> Fault | None:
        """Why the program did not come to its end in the point behind those that ended."""
        state = self.states.get(self.ended)
        if state is None:
            return None
        if state["state"] == "failed":
            return Status(state["status"]), state["detail"]
        if self.run.exit_code is None:
            return Status.TIMEOUT, _SILENT
        words = "; ".join(self.run.errors) or f"exit code {self.run.exit_code}"
        return Status.WORKER_CRASH, f"the profiled program ended in this point ({words})"


class Session:
    """The profiling of points on one GPU, with what is kept of earlier runs."""

    def __init__(self, gpu: GpuIdentity, config: Config, out: Path):
        self._gpu = gpu
        self._settings = config.profile
        self._out = out
        architecture = gpu.architecture(config.architectures)
        self._asked = names_asked(compute_capability(architecture))
        self._all_names = list(self._asked)
        self._refused: dict[str, str] = {}
        self._values: dict[str, list[Value]] = {}
        self._faults: dict[str, Fault] = {}
        self._kept: set[str] = set()
        self._fruitless = 0
        self._profiler: Profiler | None = None
        self.obstacle: Fault | None = None
        """Why nothing more can be profiled on this machine."""

    # --- results --------------------------------------------------------------------------------

    def rows(self, item: WorkItem, architecture: str) -> list[dict[str, Any]]:
        """Rows of the `counters` table for one point."""
        common = {
            **{name: item.point.row()[name] for name in ("kernel", "params", "m", "n", "k")},
            "architecture": architecture,
            "source": "hardware",
        }
        fault = item.fault or self._faults.get(item.check_key)
        if fault:
            return [{**common, "metric": "profile", "status": fault[0], "detail": fault[1]}]
        names = {counter.name: name for name, counter in self._asked.items()}
        return [
            {
                **common,
                "metric": value.name,
                "value": value.value,
                "unit": value.unit,
                "status": Status.MISSING_METRIC if value.value is None else Status.OK,
                "detail": _detail(value, names.get(value.name, value.name)),
            }
            for value in self._values[item.check_key]
        ]

    def summary(self, items: Sequence[WorkItem]) -> Summary:
        failed: dict[str, int] = {}
        for item in items:
            fault = item.fault or self._faults.get(item.check_key)
            if fault:
                failed[fault[0]] = failed.get(fault[0], 0) + 1
        kept = sum(item.check_key in self._kept for item in items)
        return Summary(len(items), len(items) - kept - sum(failed.values()), kept, failed)

    # --- what is kept ---------------------------------------------------------------------------

    def _path(self, item: WorkItem) -> Path:
        """Where the counters of a point are kept: by code, launch, size, GPU, driver and profiler.

        Points of equal code share it, such as those of a kernel that selects others.
        """
        assert self._profiler is not None
        content = [FORMAT, item.check_key, self._profiler.version, self._all_names]
        key = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return self._out / "profile" / f"{key}.json"

    def _load(self, item: WorkItem) -> bool:
        try:
            kept = json.loads(self._path(item).read_text())
            self._values[item.check_key] = [Value(**value) for value in kept["values"]]
        except (OSError, ValueError, KeyError, TypeError):
            return False  # not there, or cut off by a crash: counted again
        self._kept.add(item.check_key)
        return True

    def _keep(self, item: WorkItem, values: list[Value]) -> None:
        self._values[item.check_key] = values
        path = self._path(item)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"point": item.point.row(), "values": [asdict(value) for value in values]}
        temporary = path.with_suffix(".part")
        temporary.write_text(json.dumps(kept, indent=1))
        temporary.replace(path)

    # --- counting -------------------------------------------------------------------------------

    def count(self, items: Sequence[WorkItem]) -> None:
        """Count all points that can run and are not kept; afterwards each has values or a fault."""
        runnable = list({item.check_key: item for item in items if not item.fault}.values())
        try:
            found = ncu.find()
            if isinstance(found, str):
                raise CannotProfileError((Status.SKIPPED_UNSUPPORTED, found))
            self._profiler = found
            missing = [item for item in runnable if not self._load(item)]
            if missing:
                with (
                    Progress("profile", len(missing)) as progress,
                    gpu_lock(self._gpu, progress.note),
                ):
                    for batch in _batches(missing):
                        self._count_batch(batch, progress)
        except CannotProfileError as error:
            self.obstacle = error.fault
            for item in runnable:
                if item.check_key not in self._values:
                    self._faults.setdefault(item.check_key, error.fault)

    def _count_batch(self, batch: list[WorkItem], progress: Progress) -> None:
        """Run the profiler as often as it takes: a point that fails costs only itself."""
        while batch:
            traces = self._run(batch)
            run = traces.run
            words = "; ".join(run.errors) or f"exit code {run.exit_code}"
            if run.forbidden:
                raise CannotProfileError((Status.NO_PERMISSION, _PERMISSION))
            if run.unusable:
                raise CannotProfileError(
                    (Status.SKIPPED_UNSUPPORTED, f"Nsight Compute cannot profile here: {words}")
                )
            refused = run.refused(list(self._asked.keys() - self._refused.keys()))
            self._refused |= refused
            if refused and not traces.launches:
                continue  # without them it goes on
            settled = self._decide(traces)
            if not settled and traces.whole:
                for item in batch:  # alone, no launch can be taken for that of another point
                    self._count_batch([item], progress)
                return
            for index, outcome in settled.items():
                self._settle(batch[index], outcome, progress)
            batch = [item for index, item in enumerate(batch) if index not in settled]
            useful = bool(traces.launches or not run.errors)
            self._fruitless = 0 if useful else self._fruitless + 1
            if self._fruitless >= _FRUITLESS_RUNS:
                raise CannotProfileError(
                    (Status.SKIPPED_UNSUPPORTED, f"Nsight Compute profiles nothing here: {words}")
                )
            if useful and not settled:
                fault = Status.WORKER_CRASH, f"the profiled program came to no point ({words})"
                for item in batch:
                    self._settle(item, fault, progress)
                return

    def _decide(self, traces: Traces) -> dict[int, list[Value] | Fault]:
        """Values or a fault for each point that this run decides; the others are tried again."""
        settled: dict[int, list[Value] | Fault] = {}
        found = self._attribute(traces)
        if isinstance(found, dict):
            settled.update(found)
        elif traces.whole and (len(traces.items) == 1 or not traces.launches):
            silent = traces.run.exit_code is None
            fault = (Status.TIMEOUT, _SILENT) if silent else found
            settled.update(dict.fromkeys(range(len(traces.items)), fault))
        if traces.stopped_at:
            settled[traces.ended] = traces.stopped_at
        return settled

    def _settle(self, item: WorkItem, outcome: list[Value] | Fault, progress: Progress) -> None:
        name = f"{item.point.kernel} {item.point.m}x{item.point.n}x{item.point.k}"
        if isinstance(outcome, list):
            self._keep(item, outcome)
        else:
            self._faults[item.check_key] = outcome
            progress.note(f"{name}: {outcome[0]}: {outcome[1]}")
        progress.step(name)

    def _run(self, batch: list[WorkItem]) -> Traces:
        """One profiler process over some points."""
        assert self._profiler is not None
        logs, cache = self._out / "logs", (self._out / "cache").resolve()
        for folder in (logs, cache):
            folder.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="ladder-profile-") as temporary,
            (logs / "profile.log").open("ab") as output,
        ):
            items, progress, log = (
                Path(temporary) / name for name in ("items.json", "progress.jsonl", "ncu.log")
            )
            items.write_text(json.dumps([_request(item) for item in batch]))
            run = ncu.run(
                self._profiler,
                [name for name in self._asked if name not in self._refused],
                [sys.executable, "-m", f"{__package__}.profiled", str(items), str(progress)],
                environment=worker_environment(self._gpu, cache),
                progress=progress,
                log=log,
                output=output,
                silence_s=self._settings.timeout_s,
            )
            output.write(run.log.encode())
            lines = progress.read_text().splitlines() if progress.exists() else []
        states = {state["index"]: state for state in map(_record, lines) if state}
        try:
            launches = ncu.read_table(run.log)
        except TableError as error:
            if run.exit_code is None:
                return Traces(run, states, [], batch)  # stopped in the middle of a line
            words = f"what {self._profiler.program} printed cannot be read: {error}"
            raise CannotProfileError((Status.SKIPPED_UNSUPPORTED, words)) from None
        return Traces(run, states, launches, batch)

    def _attribute(self, traces: Traces) -> dict[int, list[Value]] | Fault:
        """The values of the points that ended; or why the launches cannot be told apart.

        A launch that the profiler left out would shift all behind it, and kernels of equal geometry
        could then stand for each other. So the whole table is as it must be, or none of it is used.
        """
        ended = traces.items[: traces.ended]
        if not ended:
            return {}
        if not traces.launches:
            return (
                Status.MISSING_METRIC,
                "Nsight Compute profiled no launch, although the program ran",
            )
        plans = [
            expected_launches(item.spec, item.point.shape)
            or [(launch.kernel, launch.grid, launch.block) for launch in traces.launches]
            for item in ended
            if item.spec
        ]
        fault = _table_fault(traces, [launch for plan in plans for launch in plan])
        if fault:
            return fault
        rest = iter(traces.launches)
        return {
            index: self._values_of(list(itertools.islice(rest, len(plan))))
            for index, plan in enumerate(plans)
        }

    def _values_of(self, launches: Sequence[ProfiledLaunch]) -> list[Value]:
        """The metrics of one point from its launches, the last of which is `gemm`.

        Of a library's launches the one with the most instructions stands for the point.
        """
        read = [self._read_launch(launch) for launch in launches]
        counts = [launch.get(INSTRUCTIONS) for launch in read]
        main = len(read) - 1
        if launches[-1].kernel.split("(")[0] != ENTRY_POINT:
            known = [-1.0 if isinstance(count, str) or count is None else count for count in counts]
            main = known.index(max(known))
        return values_of_point(self._asked.values(), read, main)

    def _read_launch(self, launch: ProfiledLaunch) -> Launch:
        return {counter.name: self._cell(name, counter, launch)
                for name, counter in self._asked.items()}  # fmt: skip

    def _cell(self, name: str, counter: Counter, launch: ProfiledLaunch) -> float | str:
        if name in self._refused:
            return f"Nsight Compute does not collect {name} on this GPU: {self._refused[name]}"
        if name not in launch.cells:
            return f"Nsight Compute printed no column {name}"
        return ncu.read_value(counter.unit, *launch.cells[name])


def _batches(items: Sequence[WorkItem]) -> list[list[WorkItem]]:
    """Points that share a profiler process: all with a CUBIN; each of a library alone."""
    ours = [item for item in items if item.spec and item.spec.cubin]
    return [*([ours] if ours else []), *([item] for item in items if item not in ours)]


def _request(item: WorkItem) -> dict[str, Any]:
    assert item.spec is not None
    m, n, k = item.point.shape
    return {"spec": asdict(item.spec), "m": m, "n": n, "k": k}


def _record(line: str) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError:
        return None  # cut off by a crash
    return record


def _table_fault(
    traces: Traces, wanted: Sequence[tuple[str, Dimensions, Dimensions]]
) -> Fault | None:
    """Why a table does not have the launches that it must have; None if it does."""
    for launch, (kernel, grid, block) in zip(traces.launches, wanted, strict=False):
        if not launch.is_of(kernel, grid, block):
            return (
                Status.MISSING_METRIC,
                f"Nsight Compute profiled {launch} where {kernel} with grid {grid} and block"
                f" {block} was expected",
            )
    counted = len(traces.launches)
    if counted != len(wanted):
        words = f"Nsight Compute profiled {counted} launches where {len(wanted)} were expected"
        if counted > len(wanted):
            words += f"; the first too many is {traces.launches[len(wanted)]}"
        return Status.MISSING_METRIC, words
    if traces.run.incomplete:
        return Status.MISSING_METRIC, "; ".join(traces.run.errors)
    return None


def _detail(value: Value, asked: str) -> str | None:
    if value.value is None:
        return f"{value.name}: {value.detail}"
    return f"asked for as {asked}" if asked != value.name else value.detail
