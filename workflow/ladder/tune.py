"""Searching the space that a kernel's manifest declares for the fastest parameters on this GPU.

Sets that cannot run are pruned before they are compiled, sets that spill many registers after. What
is left is checked and timed as points of a sweep are, by the same worker under the same protocol,
and kept in the same journal: no set is measured twice, and a search that was interrupted goes on
where it ended. A space of no more sets than the budget is tried out; a larger one is searched by
Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011), for each size on its own.

A search repeats: its seed and the results that it has seen decide which sets come next.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from . import schema
from .collect import newest_point_rows
from .compile import build_all
from .config import CacheModes, Config, KernelChoice, Sizes
from .device import GpuIdentity, Target, detect, expected, select
from .documents import UserError
from .expressions import names_in
from .gpus import Datasheet
from .manifest import Kernel, KernelLaunch, Params, canonical
from .measure import measure
from .plan import (
    Fault,
    Point,
    architecture_fault,
    block_fault,
    build_fault,
    launch_fault,
    requirement_fault,
    write_plan,
)
from .status import RANKED, Status
from .tuned import Winner, keep_winners

Size = tuple[int, int, int]
BATCH = 10
"""Sets that a search chooses at a time; each batch starts a worker and lets the clock settle."""
MOST_SPILLED_BYTES = 64
"""Per thread: a few words that are put by outside the loop cost nothing, spills inside it do."""
LARGEST_SPACE = 2_000_000
"""Sets of a space, at most: each is looked at, whether it can run or not."""

TRIALS = pa.schema(
    [
        ("kernel", pa.string()),
        ("params", pa.string()),  # canonical JSON; of several sets the first
        ("sets", pa.int64()),  # that were left out for this one reason
        *[(name, pa.int64()) for name in "mnk"],  # null: at any size
        ("status", pa.string()),
        ("detail", pa.string()),
        ("tflops", pa.float64()),  # null: not measured
        ("registers_per_thread", pa.int32()),
        ("measured_at", pa.timestamp("ms", tz="UTC")),
        *[(name, pa.string()) for name in ("run_id", "gpu_name", "gpu_uuid", "driver_version")],
    ]
)
schema.TABLES["trials"] = TRIALS


def candidates(kernel: Kernel) -> Iterator[dict[str, int]]:
    """Every set of the declared space, names sorted.

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
    names = sorted(space)
    combinations = itertools.product(*(space[name] for name in names))
    return (dict(zip(names, values, strict=True)) for values in combinations)


def narrowed(kernel: Kernel, choices: Iterable[str]) -> Kernel:
    """The kernel with a part of its space.

    Args:
        choices: ``NAME=V,V``: of this parameter's list only these values, in the list's order.

    Raises:
        UserError: if a choice is not of this form, or its name or a value is not in the space.
    """
    space = dict(kernel.manifest.tune)
    for choice in choices:
        name, _, text = choice.partition("=")
        if name not in space:
            searched = ", ".join(sorted(space)) or "nothing"
            raise UserError(f"--values {choice}: {kernel.name} searches {searched}; write NAME=V,V")
        wanted = text.split(",")
        listed = [str(value) for value in space[name]]
        if not set(wanted) <= set(listed):
            raise UserError(
                f"--values {choice}: {kernel.manifest_path}: tune.{name} lists {', '.join(listed)}"
            )
        space[name] = [value for value in space[name] if str(value) in wanted]
    return replace(kernel, manifest=kernel.manifest.model_copy(update={"tune": space}))


def deciding_parameters(kernel: Kernel) -> list[str]:
    """The parameters that decide, or whose values tell, whether a set can run before it compiles.

    Many of a large space differ in others alone, such as an order of loops.
    """
    manifest = kernel.manifest
    assert isinstance(manifest.launch, KernelLaunch)
    texts = [*manifest.launch.grid, *manifest.launch.parameter_expressions().values()]
    rules = [*manifest.constraints, *manifest.preconditions]
    names = set().union(*map(names_in, [*texts, *(rule.require for rule in rules)]))
    for rule in rules:
        names |= set(re.findall(r"{(\w+)}", rule.message))
    return sorted(names & set(manifest.parameters))


def fault_before_compiling(kernel: Kernel, params: Params, architecture: str) -> Fault | None:
    """Why a set can run at no size, as far as manifest and architecture tell."""
    message = kernel.violated_constraint(params)
    if message:
        return Status.SKIPPED_CONSTRAINT, message
    # Block and shared memory depend on the parameters alone, so any size serves.
    launch = kernel.launch(params, 1, 1, 1)
    assert launch is not None, "a kernel with parameters has a launch"
    # What the compiler will add is not known yet.
    return block_fault(launch) or build_fault(
        architecture, launch, registers=0, static_shared_memory_bytes=0
    )


def fault_at_size(kernel: Kernel, params: Params, size: Size) -> Fault | None:
    """Why a set that may run cannot do so at a size."""
    fault = requirement_fault(kernel, Point(kernel.name, canonical(params), *size))
    launch = None if fault else kernel.launch(params, *size)
    return fault or (launch_fault(launch) if launch else None)


def fault_of_build(build: Mapping[str, Any]) -> Fault | None:
    """Why a compiled set is not worth measuring."""
    if build["status"] not in RANKED:
        return Status(build["status"]), build["detail"]
    if build["spill_store_bytes"] + build["spill_load_bytes"] > MOST_SPILLED_BYTES:
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
    left_out: dict[tuple[Size | None, Fault], dict[str, Any]] = field(default_factory=dict)
    """Rows of the `trials` table for sets that were not compiled, one for each size and reason."""
    trials: dict[tuple[Size, str], dict[str, Any]] = field(default_factory=dict)
    """Rows of the sets that were, by size and canonical set."""

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
        fault = architecture_fault(self.kernel, self.architecture)
        if fault:
            raise UserError(f"{self.kernel.name} {fault[1]}; {self.gpu.name} has "
                            f"{self.gpu.compute_capability}")  # fmt: skip
        possible = self._sift(
            candidates(self.kernel),
            lambda params: fault_before_compiling(self.kernel, params, self.architecture),
        )
        feasible = {size: self._sift_at(possible, size) for size in self.sizes}
        self._write_trials()
        if not any(feasible.values()):
            most = max(self.left_out.values(), key=lambda row: int(row["sets"]))
            raise UserError(
                f"{self.kernel.name}: no set of its space can run; the most frequent reason: "
                f"{most['detail']}"
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

    def _sift(
        self,
        sets: Iterable[dict[str, int]],
        fault_of: Callable[[Params], Fault | None],
        size: Size | None = None,
    ) -> list[dict[str, int]]:
        """The sets without a fault; the others are counted by their reason."""
        deciding = deciding_parameters(self.kernel)
        known: dict[tuple[int, ...], Fault | None] = {}
        kept = []
        for params in sets:
            values = tuple(params[name] for name in deciding)
            if values not in known:
                known[values] = fault_of(params)
            fault = known[values]
            if fault is None:
                kept.append(params)
            elif (size, fault) in self.left_out:
                self.left_out[size, fault]["sets"] += 1
            else:
                self.left_out[size, fault] = self._row(size, params, fault)
        return kept

    def _sift_at(self, sets: list[dict[str, int]], size: Size) -> list[dict[str, int]]:
        return self._sift(sets, lambda params: fault_at_size(self.kernel, params, size), size)

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
                row = self._row(size, params, fault)
                row["registers_per_thread"] = build["registers_per_thread"]
                self.trials[size, canonical(params)] = row
        if good:
            registers = {row["params"]: row["registers_per_thread"] for row in builds}
            for row in self._measure(good, sizes):
                known = {name: row.get(name) for name in TRIALS.names} | {"sets": 1}
                known["registers_per_thread"] = registers[row["params"]]
                self.trials[(row["m"], row["n"], row["k"]), row["params"]] = known
        self._write_trials()

    def _compile(self, sets: Sequence[dict[str, int]]) -> list[dict[str, Any]]:
        """The build record of each set, made anew only where code, compiler or launch differ."""
        tasks = [(self.kernel, params, self.architecture, self.builds_root) for params in sets]
        return [row for row, _ in build_all(tasks, self.workers)]

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

    def _row(self, size: Size | None, params: Params, fault: Fault) -> dict[str, Any]:
        """A row of the `trials` table for a set that is not measured."""
        m, n, k = size or (None, None, None)
        status, detail = fault
        return {
            "kernel": self.kernel.name, "params": canonical(params), "sets": 1,
            "m": m, "n": n, "k": k, "status": status, "detail": detail,
        }  # fmt: skip

    def _write_trials(self) -> None:
        schema.write(self.trials_path, "trials", [*self._earlier, *self.rows()])

    @functools.cached_property
    def _earlier(self) -> list[dict[str, Any]]:
        """Rows of earlier searches at other sizes: their winners stay in `tuned.yaml`, too."""
        if not self.trials_path.exists():
            return []
        rows = schema.read(self.trials_path, "trials").to_pylist()
        others = [row for row in rows if row["m"] is not None]
        return [row for row in others if (row["m"], row["n"], row["k"]) not in set(self.sizes)]

    def rows(self) -> list[dict[str, Any]]:
        """Of the `trials` table this search's rows: what was left out, then what was tried."""
        return [*self.left_out.values(), *self.trials.values()]

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


def propose(
    space: Mapping[str, Sequence[int]],
    sets: Sequence[dict[str, int]],
    *,
    budget: int,
    seed: int,
    outcome: Callable[[Params], float | None],
) -> Iterator[list[dict[str, int]]]:
    """Batches of sets to try next, `budget` sets in all.

    Few of the combinations of a space can run. So the sampler proposes any combination, the nearest
    set that can run and is not known yet is tried, and that is what the sampler learns from.

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
    positions = [{value: i for i, value in enumerate(values)} for values in space.values()]
    places = np.array(
        [
            [position[params[name]] for name, position in zip(space, positions, strict=True)]
            for params in sets
        ],
        dtype=np.int16,
    )
    shares = np.array([1 / max(1, len(values) - 1) for values in space.values()], np.float32)
    tried = np.zeros(len(sets), dtype=bool)

    def nearest(proposal: Mapping[str, int]) -> int:
        """Index of the untried set that takes the least steps, each as a share of its range."""
        steps = np.abs(places - np.array([proposal[name] for name in space], np.int16))
        return int(np.where(tried, np.inf, steps @ shares).argmin())

    def learn(index: int) -> None:
        value = outcome(sets[index])
        state = optuna.trial.TrialState
        study.add_trial(
            optuna.trial.create_trial(
                state=state.PRUNED if value is None else state.COMPLETE,
                value=value,
                params=dict(zip(space, places[index].tolist(), strict=True)),
                distributions=distributions,
            )
        )

    left = min(budget, len(sets))
    while left:
        asked = []
        for _ in range(min(BATCH, left)):
            # Until it is told, a proposal keeps the next ones of its batch away from itself.
            trial = study.ask(distributions)
            index = nearest(trial.params)
            tried[index] = True
            asked.append((trial, index))
        left -= len(asked)
        yield [sets[index] for _, index in asked]
        for trial, index in asked:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            learn(index)


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
