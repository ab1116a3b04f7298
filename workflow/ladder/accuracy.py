"""How accurate the kernels are: errors by distribution and K, and what becomes of special values.

Errors are those of the first parameter set that can run and is meant for the size, as cuBLAS
chooses among its kernels too; where a manifest does not tell sets apart, they add the same terms in
much the same order. Special values are given to the first that can run. The step takes seconds, so
that it keeps no journal and writes its whole table each time. A kernel that fails has rows which
say so; one that costs the worker, by a fault or by hanging, is not asked again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import schema
from .config import Config
from .device import GpuIdentity, detect, expected, select
from .documents import UserError
from .manifest import Kernel, canonical
from .measure import LastingWorker, gpu_lock, others_on, run_header
from .plan import Fault, Point, planned_point, read_config
from .progress import Progress
from .special_values import CASES, SIDE
from .status import Status
from .store import Environment
from .telemetry import open_monitor
from .work import WorkItem, work_item

TABLE = "accuracy.parquet"
SEED = 1
"""Of the data sets; A and B are unrelated all the same."""

Row = dict[str, Any]


def measure_accuracy(
    plan: Path, kernels: Mapping[str, Kernel], *, builds_root: Path, out: Path, root: Path
) -> list[Row]:
    """Measure errors and special values on the GPU that the plan's configuration selects.

    Args:
        plan: the plan's file, whose configuration counts and whose points do not.
        kernels: the kernels it names.
        builds_root: folder of the builds.
        out: result folder; the table goes there.
        root: project root, for provenance.

    Returns:
        The rows of the table.

    Raises:
        UserError: if no GPU answers, it is in use, or the worker does not start.
    """
    config = read_config(plan)
    gpu = select(expected(detect(), config.gpu.expect), config.gpu.select)[0]
    monitor = open_monitor(gpu.uuid)
    others_on(gpu, monitor, config)
    names = config.accuracy.kernels or list(config.kernels)
    # A kernel that selects others has their results.
    chosen = [kernels[name] for name in names if not kernels[name].candidates]
    asked = len(list(_data_sets(config))) + len(CASES)
    worker = LastingWorker(gpu, out, config.protocol.timeout_s)
    with Progress("accuracy", asked * len(chosen)) as progress, gpu_lock(gpu, progress.note):
        try:
            hello = worker.ask("hello")
            if hello["status"] != Status.OK:
                raise UserError(f"{gpu.name}: the worker does not start: {hello['detail']}")
            driver = str(monitor.facts().get("driver_version"))
            environment = Environment(gpu.uuid, driver, str(hello["cublas_version"]))
            study = _Study(config, chosen, gpu, environment, builds_root, worker, progress)
            common = _provenance(config, gpu, environment, root)
            rows = [common | row for row in study.rows()]
        finally:
            worker.close()
    schema.write(out / TABLE, "accuracy", rows)
    return rows


def _provenance(config: Config, gpu: GpuIdentity, environment: Environment, root: Path) -> Row:
    header = run_header(config, root, "measured")
    now = datetime.now(UTC)
    return {
        "source": "measured",
        "run_id": f"{now:%Y%m%dT%H%M%SZ}-accuracy-{secrets.token_hex(2)}",
        "ladder_version": header["ladder_version"],
        "git_commit": header["git_commit"],
        "git_dirty": header["git_dirty"],
        "gpu_name": gpu.name,
        "architecture": gpu.architecture(config.architectures),
        **asdict(environment),
    }


def _data_sets(config: Config) -> Iterator[tuple[tuple[int, int, int], str]]:
    """Size and distribution of each data set; equal sizes follow each other."""
    for side in config.accuracy.sides:
        for depth in config.accuracy.depths:
            for distribution in config.accuracy.distributions:
                yield (side, side, depth), distribution


class _Study:
    """Asks the worker about every kernel and data set, and makes rows of its replies."""

    def __init__(
        self,
        config: Config,
        kernels: Sequence[Kernel],
        gpu: GpuIdentity,
        environment: Environment,
        builds_root: Path,
        worker: LastingWorker,
        progress: Progress,
    ):
        self._config = config
        self._kernels = kernels
        self._architecture = gpu.architecture(config.architectures)
        self._environment = environment
        self._builds_root = builds_root
        self._worker = worker
        self._progress = progress
        self._items: dict[tuple[str, tuple[int, int, int]], list[tuple[WorkItem, bool]]] = {}
        """By kernel and size: parameter sets that can run, and whether they are meant for it."""
        self._given_up: dict[str, Fault] = {}
        """What cost the worker, by kernel."""

    def rows(self) -> Iterator[Row]:
        """Rows of the `accuracy` table, without what all rows share.

        All kernels of a data set in a row, so that its FP64 product is computed once.
        """
        for shape, distribution in _data_sets(self._config):
            for kernel in self._kernels:
                m, n, k = shape
                item = self._item(kernel, shape, meant=True)
                reply = self._ask(item, "errors", m=m, n=n, k=k, kind=distribution, seed=SEED)
                yield self._row(item, reply) | {"distribution": distribution}
        for case in CASES:
            for kernel in self._kernels:
                item = self._item(kernel, (SIDE, SIDE, SIDE), meant=False)
                reply = self._ask(item, "special_values", accuracy=item.accuracy, case=case)
                yield self._row(item, reply) | {"special": case}

    def _item(self, kernel: Kernel, shape: tuple[int, int, int], *, meant: bool) -> WorkItem:
        """The first parameter set that can run at a size and, if so asked, is meant for it.

        If none is meant for it, the first that can run, and if none can, the first of all.
        """
        key = kernel.name, shape
        if key not in self._items:
            self._items[key] = self._candidates(kernel, shape)
        candidates = self._items[key]
        fitting = [item for item, suits in candidates if suits or not meant]
        return fitting[0] if fitting else candidates[0][0]

    def _candidates(
        self, kernel: Kernel, shape: tuple[int, int, int]
    ) -> list[tuple[WorkItem, bool]]:
        able: list[tuple[WorkItem, bool]] = []
        others: list[tuple[WorkItem, bool]] = []
        for params in self._config.parameter_sets(kernel):
            point = Point(kernel.name, canonical(params), *shape)
            item = work_item(
                point,
                planned_point(kernel, point).fault,
                kernel,
                self._config,
                self._builds_root,
                self._architecture,
                self._environment,
            )
            suits = kernel.unsuited(params, *shape) is None
            (others if item.fault else able).append((item, suits))
        return able or others[:1]

    def _ask(self, item: WorkItem, operation: str, **request: Any) -> Row:
        """The worker's reply about a kernel that can run; of another one, why it cannot."""
        name = item.point.kernel
        fault = item.fault or self._given_up.get(name)
        if fault:
            self._progress.step(name)
            return {"status": fault[0], "detail": fault[1]}
        assert item.spec is not None
        reply = self._worker.ask(operation, spec=asdict(item.spec), **request)
        if reply["lost"]:
            self._given_up[name] = Status(reply["status"]), reply["detail"]
        if reply["status"] != Status.OK:
            self._progress.note(f"{name}: {reply['status']}: {reply['detail']}")
        self._progress.step(name)
        return reply | {"measured_at": datetime.now(UTC)}

    def _row(self, item: WorkItem, reply: Row) -> Row:
        m, n, k = item.point.shape
        kept = ("status", "detail", "measured_at", "eta_max", "eta_rms", "eta_rms_se", "bias",
                "bias_se", "shrinkage", "shrinkage_se", "outcome", "differing")  # fmt: skip
        return {
            "kernel": item.point.kernel,
            "params": item.point.params,
            "m": m,
            "n": n,
            "k": k,
            "family": item.family,
            "elements": m * n,
            "source_sha256": item.build["source_sha256"] if item.build else None,
            "cubin_sha256": item.build["cubin_sha256"] if item.build else None,
            **{name: reply.get(name) for name in kept},
        }
