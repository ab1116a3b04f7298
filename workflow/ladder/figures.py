"""Tables -> figures: one pure function a figure, from a tidy table to a matplotlib Figure.

Every figure goes through three steps that can be used alone: a `*_table` function picks the rows
(and is what the CSV beside the figure holds), a drawing function turns them into a picture, and
`save` writes SVG, PDF and PNG that are byte-identical whenever the table is.

Only rows whose status is in `status.RANKED` are drawn, and only those of one GPU and driver: the
newest run's. Series are told apart by marker and dash as well as by colour, so that the figures
read in grey.
"""

from __future__ import annotations

import gc
import io
import json
import math
import multiprocessing
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
import pyarrow as pa
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from . import gpus, schema, stats, traffic
from .emulator.result import TMA_LOAD_SECTORS
from .expressions import ExpressionError, evaluate
from .manifest import CublasLaunch, Kernel
from .status import RANKED

Kind = Literal["rung", "reference", "tf32"]

SINGLE_COLUMN_IN = 3.5
DOUBLE_COLUMN_IN = 7.2
PNG_DPI = 300

INK = "#1f2328"
MUTED = "#59636e"
GRID = "#d8dee4"
MARK = "#9a3412"
PAPER = "#ffffff"
"""The colours that are not data. The report swaps them for its own in dark mode."""
ON_DARK = "#fefefe"
"""White writing on a dark shade, which stays white on any page."""

# Okabe & Ito's colours without yellow and black, which vanish on white or on a dark page.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "p", "d", "*", "8")
_DASHES: tuple[tuple[float, ...] | str, ...] = ("", (5, 1.5), (1.2, 1.2), (6, 1.5, 1.2, 1.5))
_ALIGNED_TO = 32
_KEY = ["kernel", "params", "m", "n", "k", "cache_mode"]


# --- what the tables hold -----------------------------------------------------------------------


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

    @property
    def ranked(self) -> pd.DataFrame:
        """The rows that may be drawn, compared and ranked."""
        usable = self.points["status"].isin(RANKED) & self.points["tflops"].notna()
        return self.points[usable & (self.points["tflops"] > 0)]

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
        """Whether a kernel is a rung, the FP32 reference, or not FP32 accurate."""
        known = self.kernels.get(kernel)
        if known is None:
            return "reference" if kernel == "cublas_fp32" else "rung"
        launch = known.manifest.launch
        if known.manifest.accuracy == "tf32":
            return "tf32"
        if isinstance(launch, CublasLaunch) and launch.compute == "fp32_pedantic":
            return "reference"
        return "rung"

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
        """Kernels that have points: the configured ones in their order, then any others."""
        present = set(self.points["kernel"])
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
        tables_dir, "samples", [*_KEY, "run_id", "superseded", "phase", "time_per_launch_ns"]
    )
    good = (samples["phase"] == "sample") & ~samples["superseded"].fillna(False).astype(bool)
    good &= samples["run_id"].isin(own_runs) & (samples["time_per_launch_ns"] > 0)
    return Results(
        runs=runs.reset_index(drop=True),
        builds=builds,
        points=points.loc[np.array(here, dtype=bool)]
        .drop_duplicates(_KEY, keep="last")
        .reset_index(drop=True),
        samples=samples[good],
        kernels=kernels,
        run=run,
        sheet=gpus.lookup((run or {}).get("gpu_name"), gpus.load(gpus_path)),
        others=[(environment.describe(), count) for environment, count in sorted(left_out.items())],
        counted=traffic.gather(_frame_rows(tables_dir, "counters")),
    )


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
            parts.append(f"{_product([values.pop('TM'), values.pop('TN')])} each")
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


def common_size(results: Results, preferred: int | None = None) -> int | None:
    """The largest square size at which most kernels of the ladder and the reference have a time.

    Sizes that fill whole tiles go first; `preferred` is taken if as many kernels have it.
    """
    rows = squares(results.ranked)
    rows = rows[(rows["cache_mode"] == "rotating") & (rows["kernel"].map(results.kind) != "tf32")]
    if rows.empty:
        return None
    kernels_at = rows.groupby("n")["kernel"].nunique()
    candidates = kernels_at[kernels_at == kernels_at.max()].index
    if preferred in candidates:
        return preferred
    return int(max(candidates, key=lambda n: (n % _ALIGNED_TO == 0, n)))


def times_of(results: Results, row: pd.Series) -> np.ndarray:
    """The timing samples of one point, ns per launch (shape: samples); may be empty."""
    table = results.samples
    same = np.ones(len(table), dtype=bool)
    for name in _KEY:
        same &= (table[name] == row[name]).to_numpy()
    return table[same]["time_per_launch_ns"].to_numpy(dtype=float)


def speed_up(results: Results, baseline: pd.Series, row: pd.Series) -> stats.RatioInterval | None:
    """How much faster `row` is than `baseline`, from their samples; None without samples."""
    first, second = times_of(results, baseline), times_of(results, row)
    return stats.ratio_interval(first, second) if len(first) and len(second) else None


# --- tidy tables, one a figure ------------------------------------------------------------------

_SERIES_COLUMNS = [
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


def tflops_by_size_table(results: Results) -> pd.DataFrame:
    """Square sizes with rotating buffers; `best` marks the fastest parameter set of a size.

    A row of kind `ceiling` holds the FP32 peak at the maximum clock.
    """
    rows = squares(results.ranked)
    rows = _with_series(results, rows[rows["cache_mode"] == "rotating"])
    peak = results.peak_tflops
    if len(rows) and peak is not None:
        clock = (results.run or {}).get("gpu_max_sm_clock_mhz")
        ceiling = {
            "kind": "ceiling",
            "series": f"FP32 peak at {clock:g} MHz",
            "tflops": peak,
            "best": False,
        }
        rows = pd.concat([rows, pd.DataFrame([ceiling])], ignore_index=True)
    return rows[_SERIES_COLUMNS]


def ladder_table(results: Results, size: int | None = None) -> pd.DataFrame:
    """Each rung's best parameter set, and the reference, at one square size.

    Ratios are speeds relative to the reference (`vs_reference`) and to the rung before
    (`vs_previous`), each with its 95 % bootstrap interval and verdict; null without samples.
    """
    size = common_size(results) if size is None else size
    rows = squares(results.ranked)
    at_size = rows[(rows["cache_mode"] == "rotating") & (rows["n"] == size)]
    rows = (
        _with_series(results, best(at_size))
        if len(at_size)
        else at_size.assign(kind=None, series=None, best=None)
    )
    rows = rows[rows["kind"] != "tf32"].reset_index(drop=True)
    reference = next((row for _, row in rows.iterrows() if row["kind"] == "reference"), None)
    previous: pd.Series | None = None
    ratios = []
    for _, row in rows.iterrows():
        is_rung = row["kind"] == "rung"
        ratios.append(
            {
                **_ratio_columns(results, "reference", reference if is_rung else None, row),
                **_ratio_columns(results, "previous", previous if is_rung else None, row),
            }
        )
        previous = row if is_rung else previous
    names = [
        f"{part}_{other}{end}"
        for other in ("reference", "previous")
        for part, end in (("vs", ""), ("vs", "_low"), ("vs", "_high"), ("verdict", ""))
    ]
    extra = pd.DataFrame(ratios, columns=names, index=rows.index)
    keep = [*_SERIES_COLUMNS, "pct_peak_max_clock", "pct_peak_measured_clock", "status", "run_id"]
    return pd.concat([rows[keep], extra], axis=1)


def _ratio_columns(
    results: Results, other: str, baseline: pd.Series | None, row: pd.Series
) -> dict[str, Any]:
    if baseline is None:
        return {}
    columns: dict[str, Any] = {f"vs_{other}": baseline["time_median_ns"] / row["time_median_ns"]}
    interval = speed_up(results, baseline, row)
    if interval is not None:
        columns[f"vs_{other}_low"] = interval.low
        columns[f"vs_{other}_high"] = interval.high
        columns[f"verdict_{other}"] = stats.verdict(interval)
    return columns


def block_shape_table(results: Results, kernel: str) -> pd.DataFrame:
    """Every parameter set of one kernel at every square size, rotating buffers.

    `pct_of_best` is the throughput relative to the best parameter set at that size, percent.
    """
    rows = squares(results.ranked)
    rows = rows[(rows["cache_mode"] == "rotating") & (rows["kernel"] == kernel)]
    rows = _with_series(results, rows)
    among = rows["params"].unique()
    rows["label"] = [params_label(params, among) for params in rows["params"]]
    rows["pct_of_best"] = 100 * (rows["tflops"] / rows.groupby("n")["tflops"].transform("max"))
    return rows[
        [
            "kernel",
            "series",
            "params",
            "label",
            "n",
            "samples",
            "time_median_ns",
            "tflops",
            "tflops_ci_low",
            "tflops_ci_high",
            "pct_of_best",
            "best",
        ]
    ]


def swept_kernels(results: Results) -> list[str]:
    """Kernels of which more than one parameter set was tried, and at least one has a time."""
    timed = set(squares(results.ranked)["kernel"])
    return [
        name
        for name in results.rungs()
        if results.points.loc[results.points["kernel"] == name, "params"].nunique() > 1
        and name in timed
    ]


_ROOFLINE_SHARED = [
    "kind",
    "kernel",
    "series",
    "params",
    "n",
    "samples",
    "tflops",
    "tflops_ci_low",
    "tflops_ci_high",
]
"""What the requested and the compulsory point of a kernel have in common."""


def roofline_table(results: Results, size: int | None = None) -> pd.DataFrame:
    """Each kernel's best point at one size by arithmetic intensity, and the roofs.

    Intensity is flop per byte: `requested` counts the bytes that threads and the copy engine ask
    for (the manifest's closed forms of ``requested_load_bytes``, ``tma_load_bytes`` and
    ``requested_store_bytes``), `compulsory` every matrix
    once, 4 (MK + KN + MN) bytes. Roofs: FP32 peak at the maximum clock, and the datasheet's DRAM
    bandwidth; `ridge` is where they meet.
    """
    size = common_size(results, preferred=4096) if size is None else size
    rows = squares(results.ranked)
    at_size = rows[(rows["cache_mode"] == "rotating") & (rows["n"] == size)]
    records: list[dict[str, Any]] = []
    for _, row in (_with_series(results, best(at_size)) if len(at_size) else at_size).iterrows():
        if row["kind"] == "tf32":
            continue
        shared = {name: row[name] for name in _ROOFLINE_SHARED}
        requested = _requested_bytes(results.kernels.get(row["kernel"]), row)
        if requested:
            intensity = row["flop"] / requested
            records.append({**shared, "traffic": "requested", "flop_per_byte": intensity})
        intensity = row["flop"] / row["bytes_min"]
        records.append({**shared, "traffic": "compulsory", "flop_per_byte": intensity})
    peak, sheet = results.peak_tflops, results.sheet
    if records and peak is not None:
        records.append({"kind": "roof", "series": "FP32 peak at maximum clock", "tflops": peak})
        if sheet is not None:
            ridge = peak * 1e3 / sheet.memory_gb_s
            records.append(
                {
                    "kind": "roof",
                    "series": "DRAM, datasheet",
                    "n": None,
                    "memory_gb_s": sheet.memory_gb_s,
                }
            )
            records.append(
                {"kind": "ridge", "series": "ridge", "tflops": peak, "flop_per_byte": ridge}
            )
    columns = [*_ROOFLINE_SHARED, "traffic", "flop_per_byte", "memory_gb_s"]
    return pd.DataFrame(records, columns=columns)


def _requested_bytes(kernel: Kernel | None, row: pd.Series) -> float | None:
    """Bytes that a launch asks for, loads, copies of TMA and stores; None if not stated."""
    theory = kernel.manifest.theory if kernel else {}
    if "requested_load_bytes" not in theory:
        return None
    names = {**json.loads(row["params"] or "{}"), "M": row["m"], "N": row["n"], "K": row["k"]}
    names = {name: int(value) for name, value in names.items()}
    try:
        parts = [
            evaluate(theory[metric], names)
            for metric in ("requested_load_bytes", "tma_load_bytes", "requested_store_bytes")
            if metric in theory
        ]
    except ExpressionError:
        return None
    return float(sum(parts)) or None


def shapes_table(results: Results) -> pd.DataFrame:
    """Rectangular sizes, and squares that fill no whole tile: speed relative to the reference."""
    rows = results.ranked
    odd = (rows["m"] != rows["n"]) | (rows["n"] != rows["k"]) | (rows["n"] % _ALIGNED_TO != 0)
    rows = rows[odd & (rows["cache_mode"] == "rotating")]
    rows = _with_series(results, best(rows))
    rows["shape"] = [shape_label(*key) for key in zip(rows["m"], rows["n"], rows["k"], strict=True)]
    base = rows[rows["kind"] == "reference"].set_index(["m", "n", "k"])["time_median_ns"]
    keys = pd.MultiIndex.from_frame(rows[["m", "n", "k"]])
    rows["pct_of_reference"] = 100 * base.reindex(keys).to_numpy() / rows["time_median_ns"]
    rows = rows[rows["kind"] == "rung"].dropna(subset=["pct_of_reference"])
    return rows[
        [
            "kind",
            "kernel",
            "series",
            "params",
            "shape",
            "m",
            "n",
            "k",
            "samples",
            "time_median_ns",
            "tflops",
            "pct_of_reference",
        ]
    ]


def cache_modes_table(results: Results) -> pd.DataFrame:
    """Points that were also measured with a hot or a cold cache, by the same parameter set.

    The set is the fastest one with rotating buffers; `pct_of_rotating` is throughput relative to
    that, percent.
    """
    rows = squares(results.ranked)
    rotating = best(rows[rows["cache_mode"] == "rotating"])
    chosen = rotating.set_index(["kernel", "params", "n"])["tflops"]
    keys = pd.MultiIndex.from_frame(rows[["kernel", "params", "n"]])
    rows = _with_series(results, rows[keys.isin(chosen.index)])
    keys = pd.MultiIndex.from_frame(rows[["kernel", "params", "n"]])
    rows["pct_of_rotating"] = 100 * rows["tflops"] / chosen.reindex(keys).to_numpy()
    modes = rows.groupby(["kernel", "n"])["cache_mode"].transform("nunique")
    return rows.loc[
        modes > 1,
        [
            "kind",
            "kernel",
            "series",
            "params",
            "n",
            "cache_mode",
            "samples",
            "time_median_ns",
            "tflops",
            "pct_of_rotating",
        ],
    ]


_TRAFFIC_COLUMNS = [
    "kernel",
    "series",
    "params",
    "label",
    "m",
    "n",
    "k",
    "source",
    "requests",
    "sectors",
    "sectors_per_request",
    "useful_bytes_per_sector",
    "bytes_per_flop",
    "samples",
    "tflops",
]


def traffic_table(results: Results) -> pd.DataFrame:
    """Loads of global memory at the size that most rungs were counted at.

    Every parameter set of the first rung, and of each other rung the fastest one (without times
    the one of fewest sectors). `bytes_per_flop` counts whole sectors, 32 bytes each, over 2MNK;
    `tflops` is null where the point has no valid time.
    """
    points = traffic.at_size(results.counted, traffic.common_size(results.counted))
    tflops = results.tflops()
    records = []
    for index, kernel in enumerate(results.counted_rungs()):
        if index == 0:
            chosen = sorted(
                (point for point in points if point.kernel == kernel),
                key=lambda point: params_order(point.params),
            )
        else:
            best_one = traffic.representative(kernel, points, tflops)
            chosen = [best_one] if best_one else []
        for point in chosen:
            requests, moved = traffic.requests(point), traffic.sectors(point)
            useful = traffic.useful_bytes(point.counts)
            if not requests or useful is None or point.lead is None:
                continue
            if TMA_LOAD_SECTORS in point.counts:  # a copy is no request of a warp
                continue
            records.append(
                {
                    "kernel": kernel,
                    "series": results.title(kernel),
                    "params": point.params,
                    "label": params_label(point.params, [other.params for other in chosen]),
                    "m": point.m,
                    "n": point.n,
                    "k": point.k,
                    "source": point.lead.kind,
                    "requests": requests,
                    "sectors": moved,
                    "sectors_per_request": moved / requests,
                    "useful_bytes_per_sector": useful,
                    "bytes_per_flop": traffic.SECTOR_BYTES * moved / (2 * math.prod(point.size)),
                    "samples": _samples_of(results, point.key),
                    "tflops": tflops.get(point.key),
                }
            )
    return pd.DataFrame(records, columns=_TRAFFIC_COLUMNS).astype({"tflops": float})


def _samples_of(results: Results, key: traffic.Key) -> float | None:
    rows = results.ranked
    rows = rows[rows["cache_mode"] == "rotating"]
    names = ("kernel", "params", "m", "n", "k")
    for name, value in zip(names, key, strict=True):
        rows = rows[rows[name] == value]
    return float(rows["samples"].iloc[0]) if len(rows) else None


def _with_series(results: Results, rows: pd.DataFrame) -> pd.DataFrame:
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


# --- looks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeriesStyle:
    """How one kernel looks in every figure."""

    colour: str
    marker: str
    dash: tuple[float, ...] | str
    """On-off lengths in points; empty for a solid line."""


@dataclass(frozen=True)
class Look:
    """What a drawing function needs besides its table."""

    width_in: float
    styles: Mapping[str, SeriesStyle]
    """By series name."""
    mark: str
    """Where and when the numbers were measured; stands in every figure."""
    replayed: bool = False

    @property
    def narrow(self) -> bool:
        """Whether the figure is for a single column."""
        return self.width_in < 5


def series_styles(results: Results) -> dict[str, SeriesStyle]:
    """A colour, marker and dash for every kernel; rungs keep theirs when others are added after."""
    styles = {}
    index = 0
    for name in dict.fromkeys([*results.order(), *results.counted_rungs()]):
        kind = results.kind(name)
        if kind == "reference":
            style = SeriesStyle(INK, "o", "")
        elif kind == "tf32":
            style = SeriesStyle(MUTED, "o", (4, 2))
        else:
            style = SeriesStyle(
                _COLOURS[index % len(_COLOURS)],
                _MARKERS[index % len(_MARKERS)],
                _DASHES[index // len(_COLOURS) % len(_DASHES)],
            )
            index += 1
        styles[results.title(name)] = style
    return styles


def origin(results: Results) -> str:
    """The mark of every figure: measured or replayed, GPU, driver, date."""
    run = results.run or {}
    if not run.get("gpu_name"):
        return "no GPU in this result set"
    parts = [results.gpu_name]
    if run.get("driver_version"):
        parts.append(f"driver {run['driver_version']}")
    dates = results.points["measured_at"].dropna()
    if len(dates):
        parts.append(f"{dates.max():%Y-%m-%d}")
    verb = "replayed: measured on" if results.replayed else "measured on"
    return f"{verb} {', '.join(parts)}"


def _rc() -> Any:  # of matplotlib's names, which only its stubs know as a type
    style = sns.axes_style("ticks")
    return {
        **style,
        "font.family": "DejaVu Sans",
        "font.size": 7.5,
        "axes.titlesize": 8,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": 7.5,
        "axes.labelcolor": INK,
        "axes.edgecolor": MUTED,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.facecolor": "none",
        "figure.facecolor": "white",
        "grid.color": GRID,
        "grid.linewidth": 0.5,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "legend.fontsize": 7,
        "legend.frameon": False,
        "lines.linewidth": 1.3,
        "lines.markersize": 4,
        "hatch.linewidth": 0.4,
        "svg.hashsalt": "gemm-ladder",
        "svg.fonttype": "path",
        "pdf.fonttype": 42,
    }


_MARK_IN = 0.17
_LEGEND_ROW_IN = 0.15


def _figure(look: Look, height_in: float, legend: Sequence[Line2D] = ()) -> Figure:
    """An empty figure with its mark and, between the mark and the axes, a legend.

    `height_in` does not count the legend, for which the figure grows.
    """
    longest = max((len(str(handle.get_label())) for handle in legend), default=0)
    columns = max(1, min(len(legend), int(look.width_in / (0.45 + 0.056 * longest))))
    rows = math.ceil(len(legend) / columns)
    mark_in = _MARK_IN + 0.11 * look.mark.count("\n")
    bottom = mark_in + rows * _LEGEND_ROW_IN + (0.05 if rows else 0.0)
    height_in += bottom - _MARK_IN
    figure = Figure(figsize=(look.width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    free = (0, bottom / height_in, 1, 1 - bottom / height_in)  # left, bottom, width, height
    engine.set(w_pad=0.04, h_pad=0.04, rect=free)
    if legend:
        box = figure.legend(
            handles=list(legend),
            loc="lower left",
            bbox_to_anchor=(0, mark_in / height_in),
            ncols=columns,
            handlelength=2.2,
            columnspacing=1.4,
            borderaxespad=0.1,
            labelspacing=0.35,
        )
        box.set_in_layout(False)
    figure.text(
        0.04 / look.width_in,
        0.05 / height_in,
        look.mark,
        fontsize=6,
        va="bottom",
        ha="left",
        color=MARK if look.replayed else MUTED,
        style="italic" if look.replayed else "normal",
        in_layout=False,
    )
    return figure


def message_figure(look: Look, sentence: str) -> Figure:
    """A figure that says in words why there is nothing to draw."""
    figure = _figure(look, 1.1)
    figure.text(0.5, 0.55, sentence, ha="center", va="center", color=MUTED, fontsize=8, wrap=True)
    return figure


def _size_axis(axes: Axes, sizes: Iterable[float], label: str = "N  (M = N = K)") -> None:
    """A logarithmic axis of matrix sizes with ticks at the powers of two in between."""
    low, high = min(sizes), max(sizes)
    axes.set_xscale("log", base=2)
    powers = [2**p for p in range(int(math.log2(low)) - 1, int(math.log2(high)) + 2)]
    ticks = [p for p in powers if low / 1.1 <= p <= high * 1.1] or [low]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(low / 1.15, high * 1.15)
    axes.set_xlabel(label)


def _spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions moved apart to at least `gap`, in their order, kept within [low, high]."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    placed = [min(max(positions[i], low), high) for i in order]
    for _ in range(200):
        moved = False
        for i in range(len(placed) - 1):
            overlap = gap - (placed[i + 1] - placed[i])
            if overlap > 1e-6:
                placed[i] -= overlap / 2
                placed[i + 1] += overlap / 2
                moved = True
        if placed and placed[0] < low:
            placed = [value + low - placed[0] for value in placed]
        if placed and placed[-1] > high:
            placed = [value + high - placed[-1] for value in placed]
        if not moved:
            break
    result = [0.0] * len(positions)
    for i, value in zip(order, placed, strict=True):
        result[i] = value
    return result


def _end_labels(
    axes: Axes, labels: Sequence[tuple[float, str, str, bool]], height_in: float
) -> None:
    """Names at the right end of lines: (y in data, text, colour, bold), moved apart.

    `height_in` is the height of the axes, about, in inches.
    """
    low, high = axes.get_ylim()
    fractions = [(y - low) / (high - low) for y, *_ in labels]
    placed = _spread(fractions, 0.115 / height_in, 0.0, 1.02)
    for (_, text, colour, bold), at, was in zip(labels, placed, fractions, strict=True):
        axes.annotate(
            text,
            xy=(1.0, was),
            xytext=(1.025, at),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            ha="left",
            fontsize=7,
            color=INK,
            fontweight="bold" if bold else "normal",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 1.0,
                "shrinkA": 0,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


def _handles(look: Look, series: Iterable[str], *, line: bool = True) -> list[Line2D]:
    handles = []
    for name in series:
        style = look.styles[name]
        handle = Line2D(
            [],
            [],
            color=style.colour,
            marker=style.marker,
            markersize=4.5,
            markeredgecolor="white",
            markeredgewidth=0.4,
            label=name,
        )
        if not line:
            handle.set_linestyle("none")
        elif style.dash:
            handle.set_dashes(style.dash)  # type: ignore[arg-type]
        handles.append(handle)
    return handles


# --- drawing ------------------------------------------------------------------------------------


def tflops_by_size(table: pd.DataFrame, look: Look) -> Figure:
    """TFLOPS against N; columns as `tflops_by_size_table` gives them.

    Bold lines join the sizes that are multiples of 32 and show the best parameter set at each;
    other sizes are markers of their own, since a line through 2047 and 2048 would only draw a
    saw tooth. Series that are not FP32 accurate have a strip and a scale of their own.
    """
    rows = table[table["kind"] != "ceiling"]
    if rows.empty:
        return message_figure(look, "No square size has a time that may be drawn.")
    has_tf32 = bool((rows["kind"] == "tf32").any())
    fp32 = rows[rows["kind"] != "tf32"]
    height = (3.3 if look.narrow else 3.4) + (0.85 if has_tf32 else 0)
    series = list(dict.fromkeys(fp32["series"]))
    figure = _figure(look, height, _handles(look, series) if look.narrow else ())
    if has_tf32:
        strip, main = figure.subplots(2, 1, sharex=True, height_ratios=[1, 3.4])
        _draw_tf32_strip(strip, rows[(rows["kind"] == "tf32") & rows["best"]], look)
    else:
        main = figure.subplots()
    if not look.narrow and len(series) <= 7:
        for (name, _), group in fp32[~fp32["best"] & (fp32["n"] % _ALIGNED_TO == 0)].groupby(
            ["series", "params"], sort=True
        ):
            main.plot(
                group["n"],
                group["tflops"],
                color=look.styles[str(name)].colour,
                linewidth=0.5,
                alpha=0.45,
                zorder=2,
            )
    _draw_series(main, fp32[fp32["best"]], look)
    ceiling = table[table["kind"] == "ceiling"]
    top = float(fp32["tflops"].max()) if len(fp32) else 0.0
    labels = []
    for _, row in ceiling.iterrows():
        main.axhline(row["tflops"], color=INK, linewidth=0.9, linestyle=(0, (1, 1.5)), zorder=1)
        top = max(top, float(row["tflops"]))
        labels.append((float(row["tflops"]), row["series"], INK, False))
    main.set_ylim(0, top * 1.06)
    main.set_ylabel("TFLOPS (FP32)")
    main.grid(axis="x", visible=False)
    _size_axis(main, rows["n"])
    if look.narrow:
        for y, text, _, _ in labels:
            main.annotate(
                text,
                xy=(0.01, y),
                xycoords=("axes fraction", "data"),
                xytext=(0, 2),
                textcoords="offset points",
                fontsize=6.5,
                va="bottom",
            )
        main.set_ylim(0, top * 1.12)
    else:
        for name in series:
            own = fp32[(fp32["series"] == name) & fp32["best"]]
            last = own.loc[own["n"].idxmax()]
            labels.append(
                (float(last["tflops"]), name, look.styles[name].colour, last["kind"] == "reference")
            )
        _end_labels(main, labels, 2.75)
    figure.align_ylabels()
    return figure


def _draw_tf32_strip(axes: Axes, rows: pd.DataFrame, look: Look) -> None:
    _draw_series(axes, rows, look)
    axes.set_ylim(0, float(rows["tflops"].max()) * 1.18)
    axes.set_ylabel("TFLOPS\n(TF32)")
    axes.grid(axis="x", visible=False)
    axes.tick_params(labelbottom=False)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    names = ", ".join(dict.fromkeys(rows["series"]))
    axes.set_title(
        f"{names}: not FP32 accurate, own scale",
        fontsize=7,
        color=MUTED,
        fontweight="normal",
        pad=2,
    )


def _draw_series(axes: Axes, rows: pd.DataFrame, look: Look) -> None:
    """Lines with markers and 95 % intervals; sizes that fill no whole tile are loose markers."""
    series = list(dict.fromkeys(rows["series"]))
    palette = {name: look.styles[name].colour for name in series}
    markers = {name: look.styles[name].marker for name in series}
    dashes = {name: look.styles[name].dash for name in series}
    aligned = rows[rows["n"] % _ALIGNED_TO == 0]
    if len(aligned):
        sns.lineplot(
            data=aligned,
            x="n",
            y="tflops",
            hue="series",
            style="series",
            hue_order=series,
            style_order=series,
            palette=palette,
            markers=markers,
            dashes=dashes,
            estimator=None,
            errorbar=None,
            legend=False,
            ax=axes,
            zorder=3,
            markersize=4.2,
            markeredgecolor="white",
            markeredgewidth=0.4,
        )
    for name in series:
        own = rows[rows["series"] == name]
        loose = own[own["n"] % _ALIGNED_TO != 0]
        axes.plot(
            loose["n"],
            loose["tflops"],
            linestyle="none",
            marker=markers[name],
            markersize=3.2,
            markerfacecolor="none",
            markeredgecolor=palette[name],
            markeredgewidth=0.8,
            zorder=3,
        )
        known = own.dropna(subset=["tflops_ci_low", "tflops_ci_high"])
        axes.vlines(
            known["n"],
            known["tflops_ci_low"],
            known["tflops_ci_high"],
            color=palette[name],
            linewidth=0.9,
            zorder=2,
        )


def ladder(table: pd.DataFrame, look: Look) -> Figure:
    """One bar a rung, TFLOPS of its best parameter set; columns as `ladder_table` gives them."""
    if table.empty:
        return message_figure(look, "No square size has a time that may be drawn.")
    names = [_rung_label(row, look) for _, row in table.iterrows()]
    figure = _figure(look, 0.62 + (0.27 if look.narrow else 0.235) * len(table))
    axes = figure.subplots()
    palette = [look.styles[name].colour for name in table["series"]]
    positions = [str(index) for index in range(len(names))]  # two shortened names may be equal
    sns.barplot(
        x=table["tflops"].to_numpy(),
        y=positions,
        hue=positions,
        palette=palette,
        legend=False,
        errorbar=None,
        width=0.62,
        saturation=1,
        ax=axes,
    )
    for index, (_, row) in enumerate(table.iterrows()):
        if row["kind"] == "reference":
            axes.patches[index].set(facecolor=GRID, edgecolor=INK, hatch="////", linewidth=0.6)
        if pd.notna(row["tflops_ci_low"]) and pd.notna(row["tflops_ci_high"]):
            axes.hlines(
                index,
                row["tflops_ci_low"],
                row["tflops_ci_high"],
                color=INK,
                linewidth=1.4,
                zorder=4,
            )
        share = "" if pd.isna(row["vs_reference"]) else f"   ({_percent(row['vs_reference'])})"
        axes.annotate(
            f"{_short(row['tflops'])}{share}",
            xy=(row["tflops"], index),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )
    reference = table[table["kind"] == "reference"]
    if len(reference):
        axes.axvline(
            reference["tflops"].iloc[0], color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1
        )
    longest = max(len(line) for name in names for line in name.splitlines())
    axes_in = max(1.1, look.width_in - 0.057 * longest - 0.15)  # about, before the layout
    axes.set_xlim(0, float(table["tflops"].max()) / (1 - 0.78 / axes_in))
    share = " (percent of cuBLAS FP32)" if len(reference) else ""
    axes.set_xlabel(f"TFLOPS at N = {int(table['n'].iloc[0])}{share}")
    if look.narrow:
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.label.set_horizontalalignment("right")
        axes.xaxis.label.set_x(1.0)
    axes.set_ylabel("")
    axes.set_yticks(range(len(names)), names)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure


def _rung_label(row: pd.Series, look: Look) -> str:
    """Series and parameters; on two lines at most in a single column."""
    parts = [str(row["series"]), params_label(row["params"], among=[])]
    label = ", ".join(part for part in parts if part)
    if not look.narrow:
        return label
    return "\n".join(textwrap.wrap(label, 26, max_lines=2, placeholder="\u2026"))


def _percent(ratio: float) -> str:
    value = 100 * ratio
    return f"{value:.0f} %" if value >= 10 else f"{value:.1f} %"


def block_shape_heatmap(table: pd.DataFrame, look: Look) -> Figure:
    """Parameter sets against sizes: TFLOPS in words, percent of the best set as shade.

    Columns as `block_shape_table` gives them. The best set of a size is bold and framed, so that
    the figure reads without its shades.
    """
    if table.empty:
        return message_figure(look, "No parameter set has a time that may be drawn.")
    labels = list(dict.fromkeys(_sweep_order(table)))
    sizes = sorted(table["n"].unique())
    shade = table.pivot(index="label", columns="n", values="pct_of_best").reindex(labels)[sizes]
    values = table.pivot(index="label", columns="n", values="tflops").reindex(labels)[sizes]
    if look.narrow and len(sizes) > 8:
        keep = [n for n in sizes if n % 256 == 0][-8:] or sizes[-8:]
        shade, values, sizes = shade[keep], values[keep], keep
    figure = _figure(look, 0.85 + 0.215 * len(labels))
    axes = figure.subplots()
    cmap = sns.light_palette("#0b4f8a", as_cmap=True)
    low = min(float(np.nanmin(shade.to_numpy())), 90.0)
    texts = values.map(lambda value: "" if pd.isna(value) else _short(value))
    sns.heatmap(
        shade,
        annot=texts,
        fmt="",
        cmap=cmap,
        vmin=low,
        vmax=100,
        ax=axes,
        linewidths=0.8,
        linecolor="white",
        annot_kws={"fontsize": 6.2 if look.narrow else 6.8},
        cbar_kws={"label": "% of the best\nat this size", "aspect": 12, "pad": 0.015},
    )
    winners = table[table["best"]].set_index("n")["label"]
    for row, label in enumerate(labels):
        for column, size in enumerate(sizes):
            if winners.get(size) == label:
                axes.add_patch(
                    mpl.patches.Rectangle(
                        (column + 0.04, row + 0.06),
                        0.92,
                        0.88,
                        fill=False,
                        edgecolor=INK,
                        linewidth=1.1,
                    )
                )
            if pd.isna(shade.loc[label, size]):
                axes.annotate(
                    "\u2013",
                    (column + 0.5, row + 0.5),
                    ha="center",
                    va="center",
                    color=MUTED,
                    fontsize=7,
                )
    for text in axes.texts:
        column, row = (int(at) for at in text.get_position())
        if text.get_color() == "w":
            text.set_color(ON_DARK)
        if winners.get(sizes[column]) == labels[row]:
            text.set_fontweight("bold")
    axes.set_xlabel("N  (M = N = K); cells: TFLOPS")
    axes.set_ylabel("")
    axes.tick_params(axis="both", length=0)
    axes.set_xticklabels([str(n) for n in sizes], rotation=0 if len(sizes) <= 16 else 45)
    axes.set_yticklabels(labels, rotation=0)
    axes.grid(visible=False)
    colorbar = axes.collections[0].colorbar
    if colorbar is not None:
        colorbar.outline.set_visible(False)
        colorbar.ax.tick_params(labelsize=6.5, length=2)
        colorbar.ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        colorbar.ax.yaxis.label.set_fontsize(6.5)
    return figure


def _sweep_order(table: pd.DataFrame) -> list[str]:
    """Labels ordered by parameter values."""
    pairs = dict(zip(table["params"], table["label"], strict=True))
    return [pairs[params] for params in sorted(pairs, key=params_order)]


def _short(value: float) -> str:
    """Three significant digits, trailing zeros kept."""
    return f"{value:#.3g}".rstrip(".") if value < 999.5 else f"{value:.0f}"


def roofline(table: pd.DataFrame, look: Look) -> Figure:
    """Throughput against arithmetic intensity, both logarithmic; columns as `roofline_table`.

    Filled: bytes that threads request; hollow: compulsory bytes. The line between the two is the
    reuse that registers, shared memory and caches have to provide.
    """
    rows = table[table["traffic"].notna()]
    if rows.empty:
        return message_figure(look, "No kernel has a time and a traffic formula at one size.")
    series = list(dict.fromkeys(rows["series"]))
    figure = _figure(look, 2.9 if look.narrow else 3.3, _handles(look, series, line=False))
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    roofs = table[table["kind"] == "roof"]
    peak = roofs["tflops"].dropna()
    bandwidth = roofs["memory_gb_s"].dropna()
    low = min(0.125, float(rows["flop_per_byte"].min()) / 2)
    high = float(rows["flop_per_byte"].max()) * (3 if look.narrow else 2)
    bottom = float(rows["tflops"].min())
    if len(bandwidth):
        bottom = min(bottom, low * 2 * float(bandwidth.iloc[0]) / 1e3)
    top = max([float(rows["tflops"].max()), *peak.tolist()])
    axes.set_xlim(low, high)
    axes.set_ylim(bottom / 1.6, top * 2.1)
    _draw_roofs(axes, peak.tolist(), bandwidth.tolist(), (low, high))
    for name in series:
        own = rows[rows["series"] == name].sort_values("flop_per_byte")
        style = look.styles[name]
        axes.plot(
            own["flop_per_byte"],
            own["tflops"],
            color=style.colour,
            linewidth=0.7,
            alpha=0.6,
            zorder=2,
        )
    palette = {name: look.styles[name].colour for name in series}
    markers = {name: look.styles[name].marker for name in series}
    requested = rows[rows["traffic"] == "requested"]
    if len(requested):
        sns.scatterplot(
            data=requested,
            x="flop_per_byte",
            y="tflops",
            hue="series",
            style="series",
            palette=palette,
            markers=markers,
            s=34,
            legend=False,
            ax=axes,
            zorder=4,
            edgecolor="white",
            linewidth=0.5,
        )
    for _, row in rows[rows["traffic"] == "compulsory"].iterrows():
        axes.plot(
            row["flop_per_byte"],
            row["tflops"],
            marker=markers[row["series"]],
            markersize=4.6,
            markerfacecolor="none",
            markeredgewidth=1.0,
            markeredgecolor=palette[row["series"]],
            linestyle="none",
            zorder=4,
        )
    axes.set_xlabel(
        "Arithmetic intensity, flop/byte   (filled: requested, hollow: compulsory)"
        if not look.narrow
        else "flop/byte  (filled: requested, hollow: compulsory)"
    )
    axes.set_ylabel(f"TFLOPS at N = {int(rows['n'].iloc[0])}")
    for axis, (start, end) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        wide = end / start > 300
        axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    return figure


def _draw_roofs(
    axes: Axes, peaks: Sequence[float], bandwidths: Sequence[float], span: tuple[float, float]
) -> None:
    low, high = span
    for peak in peaks:
        left = peak * 1e3 / bandwidths[0] if bandwidths else low
        axes.plot([left, high], [peak, peak], color=INK, linewidth=1.0, zorder=1)
        axes.annotate(
            f"FP32 peak at maximum clock: {peak:.1f} TFLOPS",
            xy=(high, peak),
            xytext=(-1, 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=6.5,
        )
        for bandwidth in bandwidths:
            ridge = peak * 1e3 / bandwidth
            axes.plot(
                [low, ridge],
                [low * bandwidth / 1e3, peak],
                color=INK,
                linewidth=1.0,
                linestyle=(0, (4, 2)),
                zorder=1,
            )
            axes.plot([ridge], [peak], marker="|", markersize=7, color=INK, zorder=1)
            axes.annotate(
                f"ridge {ridge:.1f}",
                xy=(ridge, peak),
                xytext=(5, -4),
                textcoords="offset points",
                ha="left",
                va="top",
                fontsize=6.5,
            )
            # Just below the roof, along a line parallel to it.
            x = math.sqrt(low * ridge) * 1.18
            y = x * bandwidth / 1e3 / 1.18**2
            axes.text(
                x,
                y,
                f"DRAM {bandwidth / 1e3:g} TB/s (datasheet)",
                rotation=math.degrees(math.atan2(y, x)),
                rotation_mode="anchor",
                transform_rotates_text=True,
                ha="center",
                va="center",
                fontsize=6.5,
            )


def shapes(table: pd.DataFrame, look: Look) -> Figure:
    """Percent of cuBLAS FP32 for each awkward shape, by kernel; columns as `shapes_table`."""
    if table.empty:
        return message_figure(
            look, "No rectangular or odd size was timed for a rung and for cuBLAS FP32."
        )
    order = (
        table.assign(
            work=table["m"].astype(float) * table["n"] * table["k"],
            square=(table["m"] == table["n"]) & (table["n"] == table["k"]),
        )
        .sort_values(["square", "work", "shape"])["shape"]
        .drop_duplicates()
        .tolist()
    )
    series = list(dict.fromkeys(table["series"]))
    figure = _figure(look, 0.75 + 0.2 * len(order), _handles(look, series, line=False))
    axes = figure.subplots()
    position = {shape: index for index, shape in enumerate(order)}
    axes.axvline(100, color=INK, linewidth=1.0, zorder=1)
    spans = table.groupby("shape")["pct_of_reference"].agg(["min", "max"])
    for shape, span in spans.iterrows():
        axes.hlines(
            position[str(shape)], span["min"], span["max"], color=GRID, linewidth=2.2, zorder=1
        )
    for name in series:
        own = table[table["series"] == name]
        axes.plot(
            own["pct_of_reference"],
            own["shape"].map(position),
            linestyle="none",
            marker=look.styles[name].marker,
            color=look.styles[name].colour,
            markersize=5,
            markeredgecolor="white",
            markeredgewidth=0.4,
            zorder=3,
        )
    axes.set_yticks(range(len(order)), order)
    axes.set_ylim(len(order) - 0.4, -0.6)
    _ratio_axis(axes, table["pct_of_reference"])
    axes.set_xlabel("Percent of cuBLAS FP32 (logarithmic)")
    axes.set_ylabel("M\u00d7N\u00d7K, or N")
    axes.grid(axis="y", visible=False)
    axes.annotate(
        "cuBLAS",
        xy=(100, 1),
        xycoords=("data", "axes fraction"),
        xytext=(2, 1),
        textcoords="offset points",
        fontsize=6.5,
        va="bottom",
        ha="center",
    )
    return figure


def _ratio_axis(axes: Axes, values: Iterable[float]) -> None:
    """A logarithmic percent axis that shows 100 and the halves and doubles around the values."""
    low, high = min([100.0, *values]), max([100.0, *values])
    axes.set_xscale("log", base=2)
    exponents = range(math.floor(math.log2(low / 100)), math.ceil(math.log2(high / 100)) + 1)
    ticks = [100 * 2.0**e for e in exponents]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.set_xlim(low / 1.12, high * 1.18)


_MODE_STYLES = {
    "rotating": ("o", INK, "rotating buffers"),
    "hot": ("^", "#d55e00", "hot (one buffer set)"),
    "cold": ("v", "#0072b2", "cold (L2 cleared)"),
}


def cache_modes(table: pd.DataFrame, look: Look) -> Figure:
    """Throughput with a hot or cold cache relative to rotating buffers, a panel a size.

    Columns as `cache_modes_table` gives them.
    """
    if table.empty:
        return message_figure(look, "No size was timed in more than one cache mode.")
    sizes = sorted(table["n"].unique())[-(2 if look.narrow else 4) :]
    table = table[table["n"].isin(sizes)]
    series = list(dict.fromkeys(table["series"]))
    present = [mode for mode in _MODE_STYLES if (table["cache_mode"] == mode).any()]
    handles = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=_MODE_STYLES[mode][0],
            color=_MODE_STYLES[mode][1],
            markersize=5,
            label=_MODE_STYLES[mode][2],
        )
        for mode in present
    ]
    figure = _figure(look, 0.85 + 0.21 * len(series), handles)
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    position = {name: index for index, name in enumerate(series)}
    for axes, size in zip(panels, sizes, strict=True):
        own = table[table["n"] == size]
        axes.axvline(100, color=MUTED, linewidth=0.8, zorder=1)
        for name, group in own.groupby("series"):
            axes.hlines(
                position[str(name)],
                group["pct_of_rotating"].min(),
                group["pct_of_rotating"].max(),
                color=GRID,
                linewidth=2.2,
                zorder=1,
            )
        for mode, (marker, colour, _) in _MODE_STYLES.items():
            rows = own[own["cache_mode"] == mode]
            axes.plot(
                rows["pct_of_rotating"],
                rows["series"].map(position),
                linestyle="none",
                marker=marker,
                color=colour,
                markersize=5,
                markeredgecolor="white",
                markeredgewidth=0.4,
                zorder=3,
            )
        axes.set_title(f"N = {size}")
        axes.set_xlabel("TFLOPS, % of rotating")
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.14)
    panels[0].set_yticks(range(len(series)), series)
    panels[0].set_ylim(len(series) - 0.5, -0.5)
    return figure


COUNTED_BY = {
    "emulator": "counted on a CPU, exact",
    "compiled": "counted from machine code on a CPU, exact",
    "hardware": "counted by the GPU's hardware counters",
}
"""How a source counted, as every figure with its numbers says."""


def counted_mark(table: pd.DataFrame, mark: str) -> str:
    """The mark of a figure of counts: who counted, and whose the times beside them are."""
    words = "; ".join(COUNTED_BY.get(str(kind), str(kind)) for kind in table["source"].unique())
    return f"{words}; TFLOPS {mark}" if table["tflops"].notna().any() else words


def traffic_figure(table: pd.DataFrame, look: Look) -> Figure:
    """What an average load of a warp moves and uses, and what that adds up to.

    Columns as `traffic_table` gives them. A box is a sector of 32 bytes, its filled part the bytes
    that some lane asked for; beside it the sectors of the whole product and, where every row has
    one, the throughput.
    """
    if table.empty:
        return message_figure(look, "No kernel was counted: no emulation in this result set.")
    timed = bool(table["tflops"].notna().any())
    mark = counted_mark(table, look.mark)
    mark = mark.replace("; TFLOPS", ";\nTFLOPS") if look.narrow else mark
    look = replace(look, mark=mark, replayed=look.replayed and timed)
    rows: list[pd.Series | str] = []
    for name, group in table.groupby("series", sort=False):
        rows += [str(name), *(row for _, row in group.iterrows())]
    height = 0.62 + sum(0.19 if isinstance(row, str) else 0.27 for row in rows)
    figure = _figure(look, height, _traffic_handles())
    widths = [3.4, 1.5, 1.1] if timed else [3.4, 1.7]
    panels = figure.subplots(1, len(widths), sharey=True, width_ratios=widths)
    at, y = [], 0.0
    for row in rows:
        step = 0.7 if isinstance(row, str) else 1.0
        at.append(y + step / 2)
        y += step
    _draw_sectors(panels[0], rows, at, look)
    billions = table["sectors"].max() >= 1e9
    scale, unit = (1e9, "billions") if billions else (1e6, "millions")
    _draw_amounts(
        panels[1], rows, at, look, "sectors", scale, "Sectors in all," + _break(look) + unit
    )
    if timed:
        _draw_amounts(panels[2], rows, at, look, "tflops", 1.0, "TFLOPS")
    labels = [row if isinstance(row, str) else row["label"] or "\u2013" for row in rows]
    if look.narrow:
        labels = ["\n".join(textwrap.wrap(text, 14)) for text in labels]
    panels[0].set_yticks(at, labels)
    for tick, row in zip(panels[0].get_yticklabels(), rows, strict=True):
        tick.set_fontweight("bold" if isinstance(row, str) else "normal")
    panels[0].set_ylim(y, -0.1)
    return figure


def _break(look: Look) -> str:
    return "\n" if look.narrow else " "


def _traffic_handles() -> list[Line2D]:
    def square(fill: str, edge: str, label: str) -> Line2D:
        return Line2D(
            [],
            [],
            linestyle="none",
            marker="s",
            markersize=6,
            markerfacecolor=fill,
            markeredgecolor=edge,
            markeredgewidth=0.8,
            label=label,
        )

    return [
        square(INK, INK, "bytes that the warp uses"),
        square("none", MUTED, "rest of the 32-byte sector, moved for nothing"),
    ]


def _style(look: Look, series: str) -> SeriesStyle:
    return look.styles.get(series, SeriesStyle(MUTED, "o", ""))


def _draw_sectors(
    axes: Axes, rows: Sequence[pd.Series | str], at: Sequence[float], look: Look
) -> None:
    """Boxes as wide as a sector, filled from below by the share that is used."""
    gap = 0.16 if look.narrow else 0.07
    most = max(row["sectors_per_request"] for row in rows if not isinstance(row, str))
    for row, y in zip(rows, at, strict=True):
        if isinstance(row, str):
            continue
        colour = _style(look, row["series"]).colour
        share = row["useful_bytes_per_sector"] / traffic.SECTOR_BYTES
        left, high = row["sectors_per_request"], 0.66
        start = 0
        while left > 1e-9:
            wide = min(1.0, left) - (gap if left >= 1 else 0.0)
            bottom = y + high / 2
            for part, fill in ((share, colour), (1.0, "none")):
                axes.add_patch(
                    mpl.patches.Rectangle(
                        (start, bottom - part * high),
                        max(wide, 0.02),
                        part * high,
                        facecolor=fill,
                        edgecolor=colour if fill == "none" else "none",
                        linewidth=0.8,
                        zorder=3,
                    )
                )
            start, left = start + 1, left - 1
        axes.annotate(
            _traffic_words(row, look),
            xy=(row["sectors_per_request"], y),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.2 if look.narrow else 6.8,
        )
    room = 0.42
    axes.set_xlim(0, most / (1 - room))
    axes.set_title("One load of a warp" + (":\n" if look.narrow else ": ") + "the sectors it moves")
    axes.set_xlabel("sectors" if look.narrow else "Sectors per request, on average")
    axes.xaxis.set_major_locator(FixedLocator(range(math.ceil(most) + 1)))
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _traffic_words(row: pd.Series, look: Look) -> str:
    sectors, useful = row["sectors_per_request"], row["useful_bytes_per_sector"]
    if look.narrow:
        return f"{sectors:.3g} \u00d7 {useful:.3g} B"
    return f"{sectors:.3g} \u00d7 32 B, {useful:.3g} of 32 used"


def _draw_amounts(
    axes: Axes,
    rows: Sequence[pd.Series | str],
    at: Sequence[float],
    look: Look,
    column: str,
    scale: float,
    title: str,
) -> None:
    """Bars with their values at the end."""
    values = [
        (row, y, row[column] / scale)
        for row, y in zip(rows, at, strict=True)
        if not isinstance(row, str) and pd.notna(row[column])
    ]
    top = max(value for *_, value in values)
    for row, y, value in values:
        colour = _style(look, row["series"]).colour
        axes.barh(y, value, height=0.5, color=colour, linewidth=0, zorder=3)
        axes.annotate(
            _short(value),
            xy=(value, y),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.2 if look.narrow else 6.8,
        )
    axes.set_xlim(0, top * (1.9 if look.narrow else 1.35))
    axes.set_title(title)
    axes.xaxis.set_major_locator(FixedLocator([0]))
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.spines["bottom"].set_visible(False)


# --- captions, files, index ---------------------------------------------------------------------


@dataclass(frozen=True)
class FigureRecord:
    """One figure and its files, as `figures.json` lists them."""

    name: str
    title: str
    category: str
    """Section of the report: ladder, traffic, sizes, sweeps or theory."""
    caption: str
    """What is drawn, units, how to read it, number of samples, GPU, driver, date, origin."""
    alt: str
    """The figure's content for those who cannot see it."""
    empty: bool
    """Whether the figure only says that there is nothing to draw."""
    files: dict[str, str]
    """File names beside the index: svg, pdf, png, csv, caption; `*_single` for one column."""


@dataclass(frozen=True)
class _Plan:
    """A figure before it is drawn."""

    name: str
    title: str
    category: str
    table: pd.DataFrame
    draw: Callable[[pd.DataFrame, Look], Figure]
    explanation: str
    alt: str
    counted: bool = False
    """Whether it shows counts, which need no GPU, with times at most beside them."""


def plans(results: Results) -> Iterator[_Plan]:
    """Every figure of a result set with its table, in the report's order."""
    table = ladder_table(results)
    yield _Plan(
        "ladder",
        "The ladder at one size",
        "ladder",
        table,
        ladder,
        "Throughput of each rung with its fastest parameter set at the largest square size that"
        " most rungs have, in TFLOPS (2MNK flop over the median time) and percent of cuBLAS FP32"
        " (dashed line). The dark stroke at a bar's end is the median's 95 % interval.",
        _alt_values(table, "Bars of TFLOPS"),
    )
    table = traffic_table(results)
    size = shape_label(*table.iloc[0][["m", "n", "k"]]) if len(table) else ""
    yield _Plan(
        "traffic",
        "What a load of a warp moves, and what of it is used",
        "traffic",
        table,
        traffic_figure,
        f"Loads of global memory at N = {size}, for every parameter set of the first rung and the"
        " best of each other. A warp's 32 lanes load together: one request. Memory answers in"
        " sectors of 32 bytes (boxes), whole ones only; the filled part are the bytes that some"
        " lane asked for. Few boxes and full boxes are both good. Right of them, the sectors of the"
        " whole product: how often the rung asks at all.",
        _alt_traffic(table),
        counted=True,
    )
    table = tflops_by_size_table(results)
    fastest = table[table["best"].fillna(False).astype(bool)]
    largest = fastest.sort_values("n").drop_duplicates("series", keep="last")
    yield _Plan(
        "tflops_by_size",
        "Throughput by matrix size",
        "sizes",
        table,
        tflops_by_size,
        "Throughput in TFLOPS (2N\u00b3 flop over the median time) of square products, rotating"
        " buffers. Bold lines: the fastest parameter set at each size that is a multiple of 32;"
        " hollow markers: other sizes; thin lines: the other parameter sets. Vertical strokes are"
        " the medians' 95 % intervals, often smaller than the marker. TF32 rounds its inputs to"
        " 10 mantissa bits; it is drawn on a scale of its own and takes no part in the ranking.",
        _alt_values(largest, "Lines of TFLOPS against matrix size; at the largest size"),
    )
    for name in swept_kernels(results):
        table = block_shape_table(results, name)
        top = table[table["best"]].drop_duplicates("n")
        yield _Plan(
            f"block_shape_{name}",
            f"Parameter sweep: {results.title(name)}",
            "sweeps",
            table,
            block_shape_heatmap,
            "Throughput in TFLOPS of every parameter set (rows) at every square size (columns),"
            " rotating buffers. The shade is the percentage of the fastest set at that size, which"
            " is framed and bold; a dash is a point without a valid time.",
            "Heat map; fastest set by size: "
            + "; ".join(
                f"N = {row.n}: {row.label}, {row.tflops:.3g} TFLOPS" for row in top.itertuples()
            ),
        )
    table = roofline_table(results)
    yield _Plan(
        "roofline",
        "Roofline",
        "theory",
        table,
        roofline,
        "Throughput against arithmetic intensity, both logarithmic. Filled markers count the bytes"
        " that the kernel's threads request (closed form of its manifest), hollow ones the"
        " compulsory bytes, every matrix moved once. A filled marker above the dashed roof means"
        " that registers, shared memory and caches served most requests. The horizontal roof is"
        " the FP32 peak at the maximum clock; the dashed one is the datasheet's DRAM bandwidth,"
        " not a measurement.",
        _alt_values(
            table[table["traffic"] == "requested"],
            "Roofline; requested intensity",
            "flop_per_byte",
            "flop/byte",
        ),
    )
    table = shapes_table(results)
    yield _Plan(
        "shapes",
        "Rectangular and odd shapes",
        "sizes",
        table,
        shapes,
        "Speed in percent of cuBLAS FP32 in the same run (100, vertical line) for rectangular sizes"
        " M\u00d7N\u00d7K and for squares that are no multiple of 32, with each kernel's fastest"
        " parameter set; logarithmic.",
        _alt_ranges(table, "Percent of cuBLAS FP32 by shape", "pct_of_reference"),
    )
    table = cache_modes_table(results)
    yield _Plan(
        "cache_modes",
        "Hot, cold and rotating buffers",
        "sizes",
        table,
        cache_modes,
        "Throughput relative to rotating buffers (100 %) by the parameter set that is fastest"
        " there. Rotating: launches alternate between buffers that together exceed twice the L2"
        " cache; hot: one set of buffers; cold: the L2 cache is cleared before each launch.",
        _alt_ranges(table, "Percent of rotating throughput", "pct_of_rotating"),
    )


def _alt_values(
    table: pd.DataFrame, start: str, column: str = "tflops", unit: str = "TFLOPS"
) -> str:
    values = [
        f"{row['series']} {row[column]:.3g} {unit}"
        for _, row in table.iterrows()
        if row.get("kind") != "ceiling" and pd.notna(row[column])
    ]
    return f"{start}: {'; '.join(values)}." if values else "No data."


def _alt_traffic(table: pd.DataFrame) -> str:
    parts = [
        f"{row.series} {row.label} {row.sectors_per_request:.3g} sectors per request,"
        f" {row.useful_bytes_per_sector:.3g} of 32 bytes used, {row.sectors:.3g} sectors in all"
        for row in table.itertuples()
    ]
    return f"Boxes for sectors, filled by use: {'; '.join(parts)}." if parts else "No data."


def _alt_ranges(table: pd.DataFrame, start: str, column: str) -> str:
    parts = [
        f"{name} {group[column].min():.3g} to {group[column].max():.3g} %"
        for name, group in table.groupby("series", sort=False)
    ]
    return f"{start}: {'; '.join(parts)}." if parts else "No data."


def caption(plan: _Plan, results: Results) -> str:
    """The caption's text: explanation, number of samples, GPU, driver, date, origin."""
    mark = origin(results)
    mark = f"{mark[0].upper()}{mark[1:]}."
    if plan.table.empty:
        wanted = "counts in this result set" if plan.counted else "valid time for this figure"
        return f"Nothing could be drawn: no {wanted}. {mark}"
    if plan.counted:
        words = counted_mark(plan.table.assign(tflops=np.nan), "")
        text = f"{plan.explanation} {words[0].upper()}{words[1:]}."
        if plan.table["tflops"].isna().all():
            return text
        plan = replace(plan, explanation=f"{text} TFLOPS:", table=plan.table.dropna())
    counts = plan.table["samples"].dropna()
    low, high = int(counts.min()), int(counts.max())
    size = f"{low}" if low == high else f"{low} to {high}"
    medians = "medians" if plan.counted else "Medians"
    return f"{plan.explanation} {medians} of n = {size} samples. {mark}"


def save(figure: Figure, stem: Path) -> dict[str, str]:
    """Write `stem`.svg, .pdf and .png; equal figures give equal bytes.

    Returns:
        file names by format.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is settled; do not solve it once a format
    for axes in figure.axes:
        if axes.get_axes_locator() is None:
            # The solver's last digits vary from run to run; SVG names clip paths by all of them.
            x, y, width, height = (round(value, 6) for value in axes.get_position().bounds)
            axes.set_position((x, y, width, height))
    metadata: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
        "png": {"Software": None},
    }
    names = {}
    for suffix, facts in metadata.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, dpi=PNG_DPI, metadata=facts)
        path = stem.with_name(f"{stem.name}.{suffix}")
        path.write_bytes(buffer.getvalue())
        names[suffix] = path.name
    return names


def draw_all(
    tables_dir: Path,
    out_dir: Path,
    kernels: Mapping[str, Kernel],
    gpus_path: Path,
    workers: int = 1,
) -> list[FigureRecord]:
    """Draw every figure of a result set, in both widths, and write `out_dir`/figures.json.

    Beside each figure lie its caption (.md) and exactly the rows it was drawn from (.csv).
    Nothing to draw is no error: the figure then says so. Files of earlier runs that no longer
    belong to a figure are removed.

    Args:
        workers: processes to draw in. More than one needs a caller that can be imported again
            (``if __name__ == "__main__"``); the files are the same.

    Raises:
        ValueError: if a table has another schema version.
        UserError: if `gpus_path` is wrong.
    """
    results = load_results(tables_dir, kernels, gpus_path)
    out_dir.mkdir(parents=True, exist_ok=True)
    before = read_index(out_dir)
    styles, mark = series_styles(results), origin(results)
    looks = {
        suffix: Look(width, styles, mark, results.replayed)
        for suffix, width in (("", DOUBLE_COLUMN_IN), ("_single", SINGLE_COLUMN_IN))
    }
    todo = [(plan, caption(plan, results)) for plan in plans(results)]
    if workers > 1:
        context = multiprocessing.get_context("spawn")  # forking a process with threads may hang
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            jobs = [pool.submit(_draw, plan, text, looks, out_dir) for plan, text in todo]
            records = [job.result() for job in jobs]
    else:
        records = [_draw(plan, text, looks, out_dir) for plan, text in todo]
    current = {name for record in records for name in record.files.values()}
    for stale in {name for record in before for name in record.files.values()} - current:
        (out_dir / Path(stale).name).unlink(missing_ok=True)
    index = json.dumps([asdict(record) for record in records], indent=2, ensure_ascii=False)
    (out_dir / "figures.json").write_text(index + "\n", encoding="utf-8")
    return records


@contextmanager
def _garbage_at_the_end() -> Iterator[None]:
    """Look for unreachable objects once: a drawing makes a million small ones, and each search
    among all that the libraries hold takes a tenth of a second."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
        gc.collect()


def _draw(plan: _Plan, text: str, looks: Mapping[str, Look], out_dir: Path) -> FigureRecord:
    files: dict[str, str] = {}
    with mpl.rc_context(_rc()), _garbage_at_the_end():
        for suffix, look in looks.items():
            written = save(plan.draw(plan.table, look), out_dir / f"{plan.name}{suffix}")
            files |= {f"{kind}{suffix}": name for kind, name in written.items()}
    csv, words = out_dir / f"{plan.name}.csv", out_dir / f"{plan.name}.md"
    plan.table.to_csv(csv, index=False, lineterminator="\n")
    words.write_text(f"**{plan.title}.** {text}\n", encoding="utf-8")
    files |= {"csv": csv.name, "caption": words.name}
    return FigureRecord(
        name=plan.name,
        title=plan.title,
        category=plan.category,
        caption=text,
        alt=plan.alt,
        empty=plan.table.empty,
        files=files,
    )


def read_index(figures_dir: Path) -> list[FigureRecord]:
    """The records that `draw_all` wrote; none if it never ran there."""
    path = figures_dir / "figures.json"
    if not path.is_file():
        return []
    return [FigureRecord(**record) for record in json.loads(path.read_text(encoding="utf-8"))]
