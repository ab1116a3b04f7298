"""Searching the space that a kernel's manifest declares for the fastest parameters on this GPU.

Sets that cannot run are pruned before they are compiled, sets that spill registers after. What is
left is checked and timed as points of a sweep are, by the same worker under the same protocol, and
kept in the same journal: no set is measured twice, and a search that was interrupted goes on where
it ended. A space of no more sets than the budget is tried out; a larger one is searched by Optuna's
tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011), for each size on its own.

A search repeats: its seed and the results that it has seen decide which sets come next.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import schema
from .collect import newest_point_rows
from .compile import compile_to_files, compiler_version
from .config import CacheModes, Config, KernelChoice, Sizes
from .device import GpuIdentity, Target, detect, expected, select
from .documents import UserError
from .gpus import Datasheet
from .manifest import Kernel, Params, canonical
from .measure import measure
from .plan import (
    Fault,
    Point,
    block_fault,
    build_fault,
    launch_fault,
    requirement_fault,
    write_plan,
)
from .status import RANKED, Status
from .tuned import Winner, keep_winners
from .work import cubin_path, read_build, record_path

Size = tuple[int, int, int]
BATCH = 10
"""Sets that a search chooses at a time; each batch starts a worker and lets the clock settle."""
LARGEST_SPACE = 100_000
"""Sets of a space, at most: each is looked at, whether it can run or not."""
_ASKS_PER_TRIAL = 50
"""Proposals that cannot run or are known, after which a search takes any set instead."""

TRIALS = pa.schema(
    [
        *[(name, pa.string()) for name in ("kernel", "params")],
        *[(name, pa.int64()) for name in "mnk"],
        ("status", pa.string()),
        ("detail", pa.string()),
        ("tflops", pa.float64()),  # null: not measured
        ("registers_per_thread", pa.int32()),
        ("measured_at", pa.timestamp("ms", tz="UTC")),
        *[(name, pa.string()) for name in ("run_id", "gpu_name", "gpu_uuid", "driver_version")],
    ]
)
schema.TABLES["trials"] = TRIALS


def candidates(kernel: Kernel) -> list[dict[str, int]]:
    """Every set of the declared space, in the order written.

    Raises:
        UserError: if the manifest declares none.
    """
    space = kernel.manifest.tune
    if not space:
        raise UserError(
            f"{kernel.manifest_path}: tune: {kernel.name} declares no space to search; write a "
            "list of values for every parameter"
        )
    count = math.prod(map(len, space.values()))
    if count > LARGEST_SPACE:
        raise UserError(
            f"{kernel.manifest_path}: tune: {count:,} sets; at most {LARGEST_SPACE:,} can be "
            "looked at, so leave values out"
        )
    return [
        dict(sorted(zip(space, values, strict=True)))
        for values in itertools.product(*space.values())
    ]


def fault_before_compiling(
    kernel: Kernel, params: Params, size: Size, architecture: str
) -> Fault | None:
    """Why a set cannot run at a size, as far as manifest and architecture tell."""
    fault = requirement_fault(kernel, Point(kernel.name, canonical(params), *size))
    if fault:
        return fault
    launch = kernel.launch(params, *size)
    assert launch is not None, "a kernel with parameters has a launch"
    return (
        block_fault(launch)
        or launch_fault(launch)
        # what the compiler will add is not known yet
        or build_fault(architecture, launch, registers=0, static_shared_memory_bytes=0)
    )


def fault_of_build(build: Mapping[str, Any]) -> Fault | None:
    """Why a compiled set is not worth measuring."""
    if build["status"] not in RANKED:
        return Status(build["status"]), build["detail"]
    spilled = build["spill_store_bytes"] + build["spill_load_bytes"]
    if spilled:
        return (
            Status.SKIPPED_SPILLS,
            f"{build['spill_store_bytes']:,} bytes of registers are spilled by stores and "
            f"{build['spill_load_bytes']:,} fetched again, at {build['registers_per_thread']} "
            "registers per thread",
        )
    return None


@dataclass
class Tuning:
    """One search: what is searched, where, and what came out so far."""

    kernel: Kernel
    config: Config
    sizes: Sequence[Size]
    budget: int
    """Sets to try at a size, at most."""
    seed: int
    gpu: GpuIdentity
    builds_root: Path
    out: Path
    root: Path
    gpus: Sequence[Datasheet]
    workers: int
    """Processes that compile."""
    note: Callable[[str], None] = print
    trials: dict[tuple[Size, str], dict[str, Any]] = field(default_factory=dict)
    """Rows of the `trials` table by size and canonical set."""

    @property
    def architecture(self) -> str:
        return self.gpu.architecture(self.config.architectures)

    @property
    def trials_path(self) -> Path:
        return self.out / "tune" / f"{self.kernel.name}.parquet"

    def run(self) -> list[Winner]:
        """Search, and write `tune/KERNEL.parquet` and `tuned.yaml` of the result folder.

        Returns:
            The fastest set of each size that has one.

        Raises:
            UserError: if no set of the space can run, or the GPU cannot be used.
        """
        feasible = {size: self._prune(size) for size in self.sizes}
        self._write_trials()
        if not any(feasible.values()):
            first = next(iter(self.trials.values()))
            raise UserError(
                f"{self.kernel.name}: no set of its space can run; the first, {first['params']}, "
                f"is {first['status']}: {first['detail']}"
            )
        small = {size: sets for size, sets in feasible.items() if len(sets) <= self.budget}
        for sets, sizes in _by_sets(small):
            self.note(f"{_names(sizes)}: every one of {len(sets)} sets is tried")
            self._try(sets, sizes)
        for size, sets in feasible.items():
            if size not in small:
                self.note(f"{_names([size])}: {self.budget} of {len(sets)} sets are searched")
                self._search(sets, size)
        winners = [winner for size in self.sizes if (winner := self._winner(size))]
        if winners:
            keep_winners(self.out / "tuned.yaml", self.kernel.name, winners)
        return winners

    # --- which sets -----------------------------------------------------------------------------

    def _prune(self, size: Size) -> list[dict[str, int]]:
        """The sets that may run at a size; the others become rows with their reason."""
        kept = []
        for params in candidates(self.kernel):
            fault = fault_before_compiling(self.kernel, params, size, self.architecture)
            if fault:
                self._prune_set(size, params, fault)
            else:
                kept.append(params)
        return kept

    def _search(self, sets: list[dict[str, int]], size: Size) -> None:
        """Let Optuna choose `budget` sets for a size, a batch at a time."""
        for batch in propose(
            self.kernel.manifest.tune,
            sets,
            budget=self.budget,
            seed=self.seed,
            outcome=lambda params: self._tflops(size, params),
        ):
            self._try(batch, [size])
            best = self._winner(size)
            tried = sum(self._outcome_known(size, params) for params in sets)
            if best:
                self.note(f"{tried} sets: {best.tflops:g} TFLOPS by {canonical(best.params)}")

    def _outcome_known(self, size: Size, params: Params) -> bool:
        return (size, canonical(params)) in self.trials

    def _tflops(self, size: Size, params: Params) -> float | None:
        """What a tried set reached; None if it cannot run or is not right."""
        row = self.trials.get((size, canonical(params)), {})
        return row["tflops"] if row.get("status") in RANKED else None

    # --- trying sets ----------------------------------------------------------------------------

    def _try(self, sets: Sequence[dict[str, int]], sizes: Sequence[Size]) -> None:
        """Compile sets, and measure at every size those that are worth it."""
        good, builds = [], self._compile(sets)
        for params, build in zip(sets, builds, strict=True):
            fault = fault_of_build(build)
            if not fault:
                good.append(params)
                continue
            for size in sizes:
                self._prune_set(size, params, fault, build["registers_per_thread"])
        if good:
            registers = {row["params"]: row["registers_per_thread"] for row in builds}
            for row in self._measure(good, sizes):
                known = {name: row.get(name) for name in TRIALS.names}
                known["registers_per_thread"] = registers[row["params"]]
                self.trials[(row["m"], row["n"], row["k"]), row["params"]] = known
        self._write_trials()

    def _compile(self, sets: Sequence[dict[str, int]]) -> list[dict[str, Any]]:
        """The build record of each set, made anew only where code, compiler or launch differ."""
        tasks = [(self.kernel, params, self.architecture, self.builds_root) for params in sets]
        if self.workers == 1:
            return [build_or_keep(*task) for task in tasks]
        with ProcessPoolExecutor(self.workers, mp_context=get_context("spawn")) as pool:
            return list(pool.map(build_or_keep, *zip(*tasks, strict=True)))

    def _measure(
        self, sets: Sequence[dict[str, int]], sizes: Sequence[Size]
    ) -> list[dict[str, Any]]:
        """Rows of the `points` table, from the store where it has them."""
        config = self.config.model_copy(
            update={
                "sizes": Sizes(shapes=[list(size) for size in sizes]),
                "kernels": {self.kernel.name: KernelChoice(sweep=list(sets))},
                "cache_modes": CacheModes(),
                "gpu": self.config.gpu.model_copy(update={"select": self.gpu.uuid}),
            }
        )
        kernels = {self.kernel.name: self.kernel}
        plan = self.out / "tune" / f"{self.kernel.name}.plan.parquet"
        write_plan(plan, config, kernels)
        measure(plan, kernels, builds_root=self.builds_root, out=self.out, root=self.root)
        return newest_point_rows(
            plan, kernels, builds_root=self.builds_root, out=self.out, gpus=self.gpus
        )

    # --- results --------------------------------------------------------------------------------

    def _prune_set(
        self, size: Size, params: Params, fault: Fault, registers: int | None = None
    ) -> None:
        m, n, k = size
        status, detail = fault
        self.trials[size, canonical(params)] = {
            "kernel": self.kernel.name, "params": canonical(params), "m": m, "n": n, "k": k,
            "status": status, "detail": detail, "registers_per_thread": registers,
        }  # fmt: skip

    def _write_trials(self) -> None:
        schema.write(self.trials_path, "trials", self.trials.values())

    def _winner(self, size: Size) -> Winner | None:
        """The fastest correct set at a size."""
        ranked = [
            row
            for (at, _), row in self.trials.items()
            if at == size and row["status"] in RANKED and row.get("tflops")
        ]
        if not ranked:
            return None
        best = max(ranked, key=lambda row: float(row["tflops"]))
        return Winner.of(best)


def _by_sets(
    feasible: Mapping[Size, list[dict[str, int]]],
) -> Iterator[tuple[list[dict[str, int]], list[Size]]]:
    """Sizes at which the same sets can run, together: one plan measures them."""
    left = dict(feasible)
    while left:
        sets = next(iter(left.values()))
        sizes = [size for size, others in left.items() if others == sets]
        for size in sizes:
            del left[size]
        if sets:
            yield sets, sizes


def _names(sizes: Iterable[Size]) -> str:
    return ", ".join("x".join(map(str, size)) for size in sizes)


def build_or_keep(
    kernel: Kernel, params: Params, architecture: str, builds_root: Path
) -> dict[str, Any]:
    """The build record of a set; compiles only what is not there as it would be made now."""
    record = record_path(builds_root, architecture, kernel.name, params)
    cubin = cubin_path(builds_root, architecture, kernel.name, params)
    if record.exists() and cubin.exists():
        row = read_build(record)
        launch = kernel.launch(params, 1, 1, 1)
        assert launch is not None
        now = (
            kernel.source_sha256(),
            compiler_version(),
            launch.threads,
            launch.dynamic_shared_memory_bytes,
        )
        then = (
            row["source_sha256"],
            row["compiler_version"],
            row["threads_per_block"],
            row["dynamic_shared_memory_bytes"],
        )
        if now == then:
            return row
    compile_to_files(kernel, params, architecture, cubin, record)
    return read_build(record)


def propose(
    space: Mapping[str, Sequence[int]],
    sets: Sequence[dict[str, int]],
    *,
    budget: int,
    seed: int,
    outcome: Callable[[Params], float | None],
) -> Iterator[list[dict[str, int]]]:
    """Batches of sets to try next, `budget` sets in all.

    Args:
        space: the values of each parameter, in the order in which neighbours resemble each other.
        sets: those that can run.
        outcome: what a set of the last batch reached, asked once the next batch is wanted; None if
            it turned out that it cannot run.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.IntDistribution(0, len(values) - 1)
        for name, values in space.items()
    }
    untried = {canonical(params): params for params in sets}
    known: dict[str, float | None] = {}
    others = random.Random(seed)

    def tell(trial: optuna.Trial, value: float | None) -> None:
        if value is None:  # teaches the sampler to stay away
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, value)

    def ask() -> tuple[optuna.Trial | None, str]:
        for _ in range(_ASKS_PER_TRIAL):
            trial = study.ask(distributions)
            name = canonical({key: space[key][trial.params[key]] for key in space})
            if name in untried:
                return trial, name
            tell(trial, known.get(name))
        return None, others.choice(sorted(untried))

    while untried and len(known) < budget:
        asked: list[tuple[optuna.Trial | None, str, dict[str, int]]] = []
        while untried and len(asked) < min(BATCH, budget - len(known)):
            trial, name = ask()
            asked.append((trial, name, untried.pop(name)))
        yield [params for _, _, params in asked]
        for trial, name, params in asked:
            known[name] = outcome(params)
            if trial:
                tell(trial, known[name])


def tune(
    kernel: Kernel,
    config: Config,
    *,
    sizes: Sequence[Size],
    budget: int,
    builds_root: Path,
    out: Path | None,
    root: Path,
    gpus: Sequence[Datasheet],
    workers: int,
    note: Callable[[str], None] = print,
) -> tuple[Tuning, list[Winner]]:
    """Tune a kernel on the first GPU that the configuration selects.

    Args:
        out: result folder; by default that of the GPU.

    Returns:
        The search with all its trials, and the winner of each size.

    Raises:
        UserError: if no GPU answers, or the kernel has no space to search.
    """
    if not kernel.needs_build:
        raise UserError(f"{kernel.name} is a baseline; it has no parameters to tune")
    candidates(kernel)  # a kernel without a space is told so before a GPU is looked for
    gpu = select(expected(detect(), config.gpu.expect), config.gpu.select)[0]
    target = Target(gpu.name, gpu.architecture(config.architectures))
    tuning = Tuning(
        kernel,
        config,
        sizes,
        budget,
        config.protocol.seed,
        gpu,
        builds_root,
        out or Path("results") / target.slug,
        root,
        gpus,
        workers,
        note,
    )
    return tuning, tuning.run()
