"""A result set as the figures and the report see it: one GPU and driver, usable rows, labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from .. import gpus, schema, stats, traffic
from ..documents import UserError
from ..language import _
from ..manifest import CublasLaunch, Kernel
from ..status import RANKED

Kind = Literal["rung", "tensor", "reference", "tf32"]
FP32_LADDER: tuple[Kind, ...] = ("rung", "reference")
"""What the FP32 ladder's figures rank and compare; other families are never mixed into it."""
ALIGNED_TO = 32
PROJECTED = "RTX 5080"
"""The article's GPU: what its datasheet bounds is drawn, and nothing more is said of it."""
KEY = ["kernel", "params", "m", "n", "k", "cache_mode"]
_ACCURACY_COLUMNS = schema.ACCURACY.names
_TRIAL_COLUMNS = ["kernel", "params", "m", "n", "k", "tflops"]


@dataclass(frozen=True)
class Results:
    """The tables of one result set, reduced to one GPU and driver."""

    runs: pd.DataFrame
    builds: pd.DataFrame
    points: pd.DataFrame
    """Rows of the chosen GPU and driver, and rows that were never sent to a GPU."""
    samples: pd.DataFrame
    """Undisturbed timing samples (phase `sample`, not superseded) of the chosen GPU."""
    kernels: Mapping[str, Kernel]
    run: dict[str, Any] | None
    """The newest run of the chosen GPU, driver and cuBLAS; without any GPU the newest run."""
    sheet: gpus.Datasheet | None
    others: list[tuple[str, int]] = field(default_factory=list)
    """GPU, driver and cuBLAS of the environments that were left out, and their points."""
    counted: list[traffic.Point] = field(default_factory=list)
    """The `counters` table: what theory, emulator, machine code and hardware counted."""
    ceilings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Rows of the `ceilings` table that count, by name, of a card of the chosen GPU's model."""
    accuracy: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=_ACCURACY_COLUMNS))
    """The `accuracy` table of a card of the chosen GPU's model: errors, and special values."""
    public: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Rows of `config/public.csv` of this GPU's model: other projects' kernels, timed elsewhere."""
    trials: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=_TRIAL_COLUMNS))
    """Sets that searches of this GPU measured, with their TFLOPS."""
    projected: gpus.Datasheet | None = None
    """The GPU that the rooflines are projected to; None if it is the one that was measured."""

    @property
    def ranked(self) -> pd.DataFrame:
        """The rows that may be drawn, compared and ranked."""
        usable = self.points["status"].isin(RANKED) & self.points["tflops"].notna()
        return self.points[usable & (self.points["tflops"] > 0)]

    @cached_property
    def samples_by_point(self) -> dict[tuple[Any, ...], pd.DataFrame]:
        """The samples of each point, by its values of `KEY`."""
        return {tuple(key): own for key, own in self.samples.groupby(KEY, sort=False)}

    @property
    def replayed(self) -> bool:
        """Whether any number here was measured elsewhere."""
        return bool((self.points["source"] == "replayed").any())

    @property
    def gpu_name(self) -> str:
        """The GPU's name as its driver reports it."""
        return str((self.run or {}).get("gpu_name") or "unknown GPU")

    @property
    def peak_tflops(self) -> float | None:
        """FP32 peak at the maximum SM clock, TFLOPS, of the GPU as its driver describes it."""
        run = self.run or {}
        sms, capability = run.get("gpu_sm_count"), run.get("gpu_compute_capability")
        clock = run.get("gpu_max_sm_clock_mhz")
        if not (sms and capability and clock):
            return None
        try:
            return gpus.fp32_peak_tflops(int(sms), str(capability), float(clock))
        except ValueError:
            return None

    def kind(self, kernel: str) -> Kind:
        """A rung of the FP32 or the tensor-core ladder, the reference, or not FP32 accurate."""
        known = self.kernels.get(kernel)
        if known is None:
            return "reference" if kernel == "cublas_fp32" else "rung"
        launch = known.manifest.launch
        if known.manifest.accuracy == "tf32":
            return "tf32"
        if isinstance(launch, CublasLaunch) and launch.compute == "fp32_pedantic":
            return "reference"
        return "tensor" if known.manifest.family == "tensor" else "rung"

    def title(self, kernel: str) -> str:
        """Name in figures: the rung's number and the manifest's title."""
        known = self.kernels.get(kernel)
        title = known.manifest.title if known else kernel
        number = kernel.split("_", 1)[0]
        if number.isdigit() and known:
            return f"{int(number)} {title}"
        equal = sum(other.manifest.title == title for other in self.kernels.values())
        return f"{title} ({kernel})" if equal > 1 else title

    def order(self) -> list[str]:
        """Kernels that were measured: the configured ones in their order, then any others."""
        present = {*self.points["kernel"], *self.accuracy["kernel"]}
        return [name for name in self.kernels if name in present] + sorted(
            present - set(self.kernels)
        )

    def counted_rungs(self) -> list[str]:
        """The kernels of the ladder that have counts or were to have them, in order."""
        present = {point.kernel for point in self.counted if point.lead or point.status}
        names = [*self.kernels, *sorted(present - set(self.kernels))]
        return [name for name in names if name in present and self.kind(name) == "rung"]

    def tflops(self) -> dict[traffic.Key, float]:
        """Throughput with rotating buffers of every point that has a valid time."""
        rows = self.ranked[self.ranked["cache_mode"] == "rotating"]
        keys = zip(*(rows[name] for name in ("kernel", "params", "m", "n", "k")), strict=True)
        return dict(zip(keys, rows["tflops"], strict=True))

    def rungs(self) -> list[str]:
        """The kernels of the ladder in order, without baselines."""
        return [name for name in self.order() if self.kind(name) == "rung"]

    def reference(self) -> str | None:
        """The FP32 baseline of every speed-up; None if it has no points."""
        return next((name for name in self.order() if self.kind(name) == "reference"), None)


def load_results(tables_dir: Path, kernels: Mapping[str, Kernel], gpus_path: Path) -> Results:
    """Read a result set; a table without a file is empty.

    If the points come from several GPUs, drivers or cuBLAS versions, those of the newest session
    are kept and the others are named in `Results.others`: such numbers are never mixed.

    Raises:
        ValueError: if a file holds another table or another schema version.
        UserError: if `gpus_path` is wrong, or `public.csv` beside it.
    """
    runs, builds, points = (_frame(tables_dir, name) for name in ("runs", "builds", "points"))
    runs = runs.sort_values("started_at", kind="stable", na_position="first")
    points = points.sort_values("measured_at", kind="stable", na_position="first")
    of_run = {run.run_id: _Environment.of(run) for run in runs.itertuples()}
    of_point = [of_run.get(row.run_id) or _Environment.of(row) for row in points.itertuples()]
    newest = _newest_environment(list(of_run.values()), of_point)
    # One command may use several cards, each for sizes of its own; they belong together.
    sessions = {run.session_id for run in runs.itertuples() if of_run[run.run_id] == newest}
    together = runs[runs["session_id"].isin(sessions) & runs["session_id"].notna()]
    chosen = {newest, *(of_run[run_id] for run_id in together["run_id"])} - {None}
    # Rows without a GPU were refused by the plan, whatever the GPU.
    here = [environment in chosen or environment is None for environment in of_point]
    left_out = Counter(item for item in of_point if item is not None and item not in chosen)
    own_runs = [run_id for run_id, environment in of_run.items() if environment in chosen]
    own = runs[runs["run_id"].isin(own_runs)] if chosen else runs
    run = as_record(own.iloc[-1]) if len(own) else None
    samples = _frame(
        tables_dir,
        "samples",
        [*KEY, "run_id", "round", "index", "superseded", "phase", "time_per_launch_ns"],
    )
    good = (samples["phase"] == "sample") & ~samples["superseded"].fillna(False).astype(bool)
    good &= samples["run_id"].isin(own_runs) & (samples["time_per_launch_ns"] > 0)
    sheets = gpus.load(gpus_path)
    sheet, projected = (
        gpus.lookup((run or {}).get("gpu_name"), sheets),
        gpus.lookup(PROJECTED, sheets),
    )
    models = {environment.gpu_name for environment in chosen if environment}
    accuracy = _frame(tables_dir, "accuracy")
    return Results(
        runs=runs.reset_index(drop=True),
        builds=builds,
        points=points.loc[np.array(here, dtype=bool)]
        .drop_duplicates(KEY, keep="last")
        .reset_index(drop=True),
        samples=samples[good],
        kernels=kernels,
        run=run,
        sheet=sheet,
        others=[(environment.describe(), count) for environment, count in sorted(left_out.items())],
        counted=traffic.gather(_frame_rows(tables_dir, "counters")),
        ceilings={
            row["name"]: row
            for row in _frame_rows(tables_dir, "ceilings")
            if row["status"] in RANKED and row["gpu_name"] in models
        },
        accuracy=accuracy[accuracy["gpu_name"].isin(models)].reset_index(drop=True),
        trials=_trials(tables_dir / "tune", models),
        public=_public(gpus_path.with_name("public.csv"), models),
        projected=None if projected == sheet else projected,
    )


_PUBLIC_COLUMNS = [
    "gpu_name", "series", "source", "kernel", "m", "n", "k", "samples", "time_median_ns"
]  # fmt: skip


def _trials(folder: Path, models: set[str]) -> pd.DataFrame:
    """What the searches of a result folder measured on a GPU of one of these models."""
    tables = [pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))
              if not path.name.endswith(".plan.parquet")]  # fmt: skip
    if not tables:
        return pd.DataFrame(columns=_TRIAL_COLUMNS)
    rows = pd.concat(tables)
    good = rows["tflops"].notna() & rows["status"].isin(RANKED) & rows["gpu_name"].isin(models)
    return rows.loc[good, _TRIAL_COLUMNS].reset_index(drop=True)


def _public(path: Path, models: set[str]) -> pd.DataFrame:
    """Times of other projects' kernels on a GPU of one of these models; none without the file."""
    if not path.is_file():
        return pd.DataFrame(columns=_PUBLIC_COLUMNS)
    table = pd.read_csv(path, comment="#")
    if list(table.columns) != _PUBLIC_COLUMNS:
        raise UserError(
            f"{path}: the columns are {', '.join(table.columns)};"
            f" they must be {', '.join(_PUBLIC_COLUMNS)}"
        )
    return table[table["gpu_name"].isin(models)].reset_index(drop=True)


class _Environment(NamedTuple):
    """What must agree for two times to be comparable."""

    gpu_uuid: str
    gpu_name: str
    driver: str
    cublas: str

    @classmethod
    def of(cls, row: Any) -> _Environment | None:
        """The environment of a row of `runs` or `points`; None for a machine without a GPU."""
        if not isinstance(row.gpu_uuid, str):
            return None
        texts = (
            getattr(row, name, "") for name in ("gpu_name", "driver_version", "cublas_version")
        )
        return cls(row.gpu_uuid, *(text if isinstance(text, str) else "" for text in texts))

    def describe(self) -> str:
        cublas = f", cuBLAS {self.cublas}" if self.cublas else ""
        return f"{self.gpu_name or 'unknown GPU'} ({self.gpu_uuid}), driver {self.driver}{cublas}"


def _frame(folder: Path, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    path = folder / f"{name}.parquet"
    if path.is_file():
        table = schema.read(path, name, columns)
    else:
        table = schema.TABLES[name].empty_table().select(list(columns or schema.TABLES[name].names))
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _frame_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / f"{name}.parquet"
    rows: list[dict[str, Any]] = schema.read(path, name).to_pylist() if path.is_file() else []
    return rows


def _newest_environment(
    of_runs: Sequence[_Environment | None], of_points: Sequence[_Environment | None]
) -> _Environment | None:
    """That of the newest run which has points, else of the newest point, else of the newest run.

    Both sequences are in the order of time.
    """
    with_points = set(of_points) - {None}
    newest_first = [*reversed(of_runs), *reversed(of_points)]
    chosen = next((item for item in newest_first if item in with_points), None)
    return chosen or next((item for item in newest_first if item is not None), None)


_WHOLE = frozenset(item.name for item in schema.RUNS if pa.types.is_integer(item.type))


def as_record(run: pd.Series) -> dict[str, Any]:
    """A row of `runs` as a dict of Python values in which everything unknown is None."""
    return {
        str(name): None if pd.isna(value) else int(value) if name in _WHOLE else value
        for name, value in run.items()
    }


def params_label(params: str, among: Iterable[str] | None = None) -> str:
    """Canonical JSON of a parameter set as a label: ``32x8``, ``TILE 16``, or nothing.

    A tile of C comes first: ``128x256x16, 8x16 each`` is the block's with its depth and a thread's.

    Args:
        among: the sets to tell apart. Beside a tile only what differs between them is named.
    """
    try:
        values: dict[str, Any] = json.loads(params or "{}")
        others = [json.loads(other or "{}") for other in among or []]
    except json.JSONDecodeError:
        return params
    if len(values) == 2 and all(name.startswith("BLOCK_") for name in values):
        return _product(values.values())
    parts = []
    if {"BM", "BN"} <= set(values):
        parts.append(_product(values.pop(name) for name in ("BM", "BN", "BK") if name in values))
        if {"TM", "TN"} <= set(values):
            tile = _product([values.pop("TM"), values.pop("TN")])
            parts.append(_("{tile} each").format(tile=tile))
        if among is not None:
            values = {
                name: value
                for name, value in values.items()
                if any(other.get(name) != value for other in others)
            }
    return ", ".join([*parts, *(f"{name} {value}" for name, value in values.items())])


def _product(sides: Iterable[Any]) -> str:
    return "\u00d7".join(str(side) for side in sides)


def params_order(params: str) -> tuple[Any, ...]:
    """Sorting key of a parameter set: its values as numbers."""
    try:
        values = json.loads(params or "{}")
    except json.JSONDecodeError:
        return ()
    return tuple(values[name] for name in sorted(values))


def shape_label(m: int, n: int, k: int) -> str:
    """A size as a label, squares by their side."""
    return str(n) if m == n == k else f"{m}\u00d7{n}\u00d7{k}"


def best(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest parameter set of each kernel, size and cache mode (the first one of equals)."""
    ordered = rows.sort_values(["tflops", "params"], ascending=[False, True], kind="stable")
    return ordered.drop_duplicates(["kernel", "m", "n", "k", "cache_mode"]).sort_index()


def squares(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with M = N = K."""
    return rows[(rows["m"] == rows["n"]) & (rows["n"] == rows["k"])]


def common_size(
    results: Results, preferred: int | None = None, kinds: Iterable[Kind] = FP32_LADDER
) -> int | None:
    """The largest square size at which most kernels of a ladder and its reference have a time.

    Sizes that fill whole tiles go first; `preferred` is taken if as many kernels have it.
    """
    rows = squares(results.ranked)
    among = rows["kernel"].map(results.kind).isin(list(kinds))
    rows = rows[(rows["cache_mode"] == "rotating") & among]
    if rows.empty:
        return None
    kernels_at = rows.groupby("n")["kernel"].nunique()
    candidates = kernels_at[kernels_at == kernels_at.max()].index
    if preferred in candidates:
        return preferred
    return int(max(candidates, key=lambda n: (n % ALIGNED_TO == 0, n)))


def times_of(results: Results, row: pd.Series) -> np.ndarray:
    """The timing samples of one point, ns per launch (shape: samples); may be empty."""
    own = results.samples_by_point.get(tuple(row[name] for name in KEY))
    return np.empty(0) if own is None else own["time_per_launch_ns"].to_numpy(dtype=float)


def speed_up(results: Results, baseline: pd.Series, row: pd.Series) -> stats.RatioInterval | None:
    """How much faster `row` is than `baseline`, from their samples; None without samples."""
    first, second = times_of(results, baseline), times_of(results, row)
    return stats.ratio_interval(first, second) if len(first) and len(second) else None


SERIES_COLUMNS = [
    "kind",
    "kernel",
    "series",
    "params",
    "m",
    "n",
    "k",
    "cache_mode",
    "best",
    "samples",
    "time_median_ns",
    "tflops",
    "tflops_ci_low",
    "tflops_ci_high",
]


def ladder_rows(results: Results, size: int | None, kinds: Iterable[Kind]) -> pd.DataFrame:
    """The fastest set of each kernel of some kinds at one square size, rotating buffers."""
    rows = squares(results.ranked)
    rows = rows[(rows["cache_mode"] == "rotating") & (rows["n"] == size)]
    rows = with_series(results, best(rows))
    return rows[rows["kind"].isin(list(kinds))].reset_index(drop=True)


def samples_of(results: Results, key: traffic.Key) -> float | None:
    rows = results.ranked
    rows = rows[rows["cache_mode"] == "rotating"]
    names = ("kernel", "params", "m", "n", "k")
    for name, value in zip(names, key, strict=True):
        rows = rows[rows[name] == value]
    return float(rows["samples"].iloc[0]) if len(rows) else None


def with_series(results: Results, rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` in the ladder's order, with the columns `kind`, `series` and `best`."""
    position = {name: index for index, name in enumerate(results.order())}
    chosen = best(rows).index
    rows = rows.assign(
        kind=rows["kernel"].map(results.kind),
        series=rows["kernel"].map(results.title),
        best=rows.index.isin(chosen),
        _position=rows["kernel"].map(position),
    )
    by = ["_position", "m", "n", "k", "cache_mode", "params"]
    return rows.sort_values(by, kind="stable").drop(columns="_position").reset_index(drop=True)
