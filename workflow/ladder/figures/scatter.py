"""How times scatter: the samples behind each median, and what moved while they were taken."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .looks import INK, MUTED, PAPER, Look, message_figure, new_figure, signed
from .marks import CLOUD
from .results import FP32_LADDER, KEY, Results, common_size, ladder_rows

_SPREAD_COLUMNS = ["kind", "kernel", "series", "params", "n", "samples", "round", "index",
                   "time_ns", "pct_of_median"]  # fmt: skip
_MOST_SAMPLES = 40
"""Drawn of a point and round; evenly chosen, so that the picture stays that of all of them."""


def samples_table(results: Results, size: int | None = None) -> pd.DataFrame:
    """The samples of each rung's fastest set, and of the reference, at the ladder's size.

    `time_ns` is the time of a launch, `pct_of_median` its distance from the point's median. Of more
    than 40 samples of a round every second, third and so on stands for all, first and last
    included; `samples` is how many there are.
    """
    size = common_size(results) if size is None else size
    tables = []
    for _, row in ladder_rows(results, size, FP32_LADDER).iterrows():
        own = results.samples_by_point.get(tuple(row[name] for name in KEY))
        if own is None:
            continue
        for number, group in own.groupby("round", dropna=False):
            chosen = np.linspace(0, len(group) - 1, min(len(group), _MOST_SAMPLES)).round()
            kept = group.iloc[chosen.astype(int)]
            tables.append(
                pd.DataFrame(
                    {
                        **{name: row[name] for name in _SPREAD_COLUMNS[:6]},
                        "round": number,
                        "index": kept["index"].to_numpy(),
                        "time_ns": kept["time_per_launch_ns"].to_numpy(),
                        "pct_of_median": 100
                        * (kept["time_per_launch_ns"].to_numpy() / row["time_median_ns"] - 1),
                    }
                )
            )
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=_SPREAD_COLUMNS)


def samples_figure(table: pd.DataFrame, look: Look) -> Figure:
    """A row a kernel: each sample's distance from the median, the rounds apart.

    Columns as `samples_table` gives them.
    """
    if table.empty:
        return message_figure(look, "No square size has a time with its samples.")
    series = list(dict.fromkeys(table["series"]))
    rounds = sorted(table["round"].dropna().unique())
    markers = ("o", "^", "s", "D")
    handles = [
        Line2D([], [], linestyle="none", marker=markers[at % 4], markersize=3.5,
               markerfacecolor="none" if at % 2 else INK, markeredgecolor=INK,
               markeredgewidth=0.6, label=f"round {int(number) + 1}")
        for at, number in enumerate(rounds)
    ]  # fmt: skip
    figure = new_figure(look, 0.75 + 0.25 * len(series), handles)
    axes = figure.subplots()
    place = {name: at for at, name in enumerate(series)}
    golden = (5**0.5 - 1) / 2
    for at, number in enumerate(rounds):
        rows = table[table["round"] == number]
        # Spread over the row's height by a low-discrepancy sequence: no chance, equal bytes.
        height = 0.34 * ((np.arange(len(rows)) * golden) % 1.0) + (0.02 if at % 2 else -0.36)
        for name, own in rows.assign(height=height).groupby("series", sort=False):
            colour = look.styles[str(name)].colour
            axes.plot(
                own["pct_of_median"], place[str(name)] + own["height"], linestyle="none",
                marker=markers[at % 4], markersize=2.2, markeredgewidth=0.45,
                markeredgecolor=colour, markerfacecolor="none" if at % 2 else colour,
                alpha=0.75, zorder=2, label=CLOUD, rasterized=True,
            )  # fmt: skip
    for name, own in table.groupby("series", sort=False):
        middle = own["pct_of_median"]
        for share in (0.25, 0.75):
            axes.vlines(middle.quantile(share), place[str(name)] - 0.4, place[str(name)] + 0.4,
                        color=PAPER, linewidth=2.0, zorder=3)  # fmt: skip
            axes.vlines(middle.quantile(share), place[str(name)] - 0.4, place[str(name)] + 0.4,
                        color=INK, linewidth=0.8, zorder=4)  # fmt: skip
    axes.axvline(0, color=MUTED, linewidth=0.8, zorder=1)
    axes.set_xscale("symlog", linthresh=1.0, linscale=1.2)
    reach = max(1.0, float(table["pct_of_median"].abs().max()))
    ticks = [
        t for t in (-100, -30, -10, -3, -1, -0.5, 0, 0.5, 1, 3, 10, 30, 100) if abs(t) <= reach
    ]
    axes.set_xticks(ticks, [signed(tick) for tick in ticks])
    axes.xaxis.minorticks_off()
    axes.set_yticks(range(len(series)), series)
    axes.set_ylim(len(series) - 0.5, -0.6)
    size = int(table["n"].iloc[0])
    note = "" if look.narrow else " (linear within 1 %)"
    axes.set_xlabel(f"Sample less median, % at N = {size}{note}")
    axes.grid(axis="y", visible=False)
    return figure


_DRIFT_COLUMNS = ["what", "kernel", "series", "params", "m", "n", "k", "cache_mode", "samples",
                  "index", "time_ns", "change_pct"]  # fmt: skip


def drift_table(results: Results) -> pd.DataFrame:
    """What moved during the run: the sentinel, and each point between its rounds.

    Rows of `what` = sentinel hold its median times in their order and the change since the first;
    rows of `what` = rounds a point's median of the last round, with the change since its first one.
    """
    records: list[dict[str, Any]] = []
    for run in results.runs.itertuples():
        times = json.loads(run.sentinel_times_ns) if isinstance(run.sentinel_times_ns, str) else []
        records += [
            {"what": "sentinel", "index": at, "time_ns": time,
             "change_pct": 100 * (time / times[0] - 1)}
            for at, time in enumerate(times)
        ]  # fmt: skip
    for *key, samples in results.ranked[[*KEY, "samples"]].itertuples(index=False, name=None):
        own = results.samples_by_point.get(tuple(key))
        if own is None or own["round"].nunique() < 2:
            continue
        medians = own.groupby("round")["time_per_launch_ns"].median().to_numpy(dtype=float)
        records.append(
            {
                "what": "rounds",
                **dict(zip(KEY, key, strict=True)),
                "samples": samples,
                "series": results.title(str(key[0])),
                "index": len(medians) - 1,
                "time_ns": medians[-1],
                "change_pct": 100 * (medians[-1] / medians[0] - 1),
            }
        )
    table = pd.DataFrame(records, columns=_DRIFT_COLUMNS)
    place = {name: at for at, name in enumerate(results.order())}
    table["_at"] = table["kernel"].map(place).fillna(-1)
    by = ["_at", "m", "n", "k", "params", "cache_mode", "index"]
    return table.sort_values(by, kind="stable").drop(columns="_at").reset_index(drop=True)


def drift_figure(table: pd.DataFrame, look: Look) -> Figure:
    """Two panels: the sentinel in its order, and how points changed between rounds.

    Columns as `drift_table` gives them.
    """
    if table.empty:
        return message_figure(look, "No point was visited in several rounds, no sentinel recorded.")
    sentinel, rounds = table[table["what"] == "sentinel"], table[table["what"] == "rounds"]
    shown = [part for part in (sentinel, rounds) if len(part)]
    series = list(dict.fromkeys(rounds["series"]))
    height = (0.85 + 0.19 * max(len(series), 6)) if len(rounds) else 2.0
    if look.narrow and len(shown) > 1:
        figure = new_figure(look, height + 1.5)
        panels = list(figure.subplots(2, 1, height_ratios=[1.2, height - 0.4]))
    else:
        figure = new_figure(look, height)
        panels = list(figure.subplots(1, len(shown), squeeze=False)[0])
    if len(sentinel):
        axes = panels.pop(0)
        axes.plot(sentinel["index"] + 1, sentinel["change_pct"], color=INK, marker="o",
                  markersize=3, linewidth=0.9)  # fmt: skip
        axes.axhline(0, color=MUTED, linewidth=0.8, zorder=1)
        reach = max(0.5, 1.15 * float(sentinel["change_pct"].abs().max()))
        axes.set_ylim(-reach, reach)
        axes.set_title("Sentinel: cuBLAS FP32 between visits")
        axes.set_xlabel("Number of the timing")
        axes.set_ylabel("Change since the first, %")
    if len(rounds):
        axes = panels.pop(0)
        order = list(dict.fromkeys(rounds["series"]))
        thin = {"color": MUTED, "linewidth": 0.7}
        axes.boxplot(
            [rounds.loc[rounds["series"] == name, "change_pct"].to_numpy() for name in order],
            orientation="horizontal", positions=range(len(order)), widths=0.6, whis=(0, 100),
            showfliers=False, boxprops=thin, whiskerprops=thin, capprops=thin, medianprops=thin,
            manage_ticks=False,
        )  # fmt: skip
        for name, own in rounds.groupby("series", sort=False):
            style = look.styles[str(name)]
            at = order.index(str(name)) + 0.34 * (np.arange(len(own)) % 3 - 1) * 0.5
            axes.plot(own["change_pct"], at, linestyle="none", marker=style.marker, markersize=2.8,
                      color=style.colour, markeredgewidth=0, alpha=0.85,
                      label=CLOUD, rasterized=True)  # fmt: skip
        axes.axvline(0, color=MUTED, linewidth=0.8, zorder=1)
        axes.set_xscale("symlog", linthresh=1.0, linscale=1.2)
        reach = max(1.0, float(rounds["change_pct"].abs().max()))
        ticks = [t for t in (-30, -10, -3, -1, 0, 1, 3, 10, 30) if abs(t) <= reach]
        axes.set_xticks(ticks, [signed(tick) for tick in ticks])
        axes.xaxis.minorticks_off()
        axes.set_yticks(range(len(order)), order)
        axes.set_ylim(len(order) - 0.4, -0.6)
        axes.set_title("Points, between rounds")
        axes.set_xlabel("Median of the last round less the first, %")
        axes.grid(axis="y", visible=False)
    return figure
