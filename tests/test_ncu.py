"""Reading what Nsight Compute prints.

No output here was recorded: tables and messages are made by hand, in the form of `ncu --csv --page
raw --print-units base` and of messages that users have published. What is real: the names that a
metric library of NVIDIA's knows for a chip, and those that an H200 gave numbers for.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fake_ncu import printed_value, table
from ladder import hardware, ncu
from ladder.hardware import BYTES_PER_SECTOR, COUNTERS, L1_HIT_RATE, L2_HIT_RATE, names_asked
from ladder.ncu import ProfiledLaunch, Run, TableError, read_table, read_value

DATA = Path(__file__).parent
CHIPS = {"ga100": (8, 0), "ga102": (8, 6), "ad102": (8, 9), "gh100": (9, 0), "gb100": (10, 0),
         "gb202": (12, 0)}  # fmt: skip
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
DRAM = "dram__bytes_read.sum"
HEAD = '"ID","Process ID","Kernel Name","Block Size","Grid Size","CC"'


def commented_csv(path: Path) -> list[dict[str, str]]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", CHIPS)
def test_every_metric_asked_for_is_one_that_the_chip_has(chip: str) -> None:
    known = {row["metric"]: row[chip] == "yes"
             for row in commented_csv(DATA / "profile" / "metrics_by_chip.csv")}  # fmt: skip
    asked = names_asked(CHIPS[chip])
    assert [name for name in asked if not known[name]] == []
    left_out = {counter.name for counter in COUNTERS} - {c.name for c in asked.values()}
    assert [name for name in left_out if known[name]] == []


def test_what_was_counted_on_an_h200_is_asked_for() -> None:
    seen = {row["metric"] for row in commented_csv(DATA / "emulator" / "calibration.csv")}
    # It includes wavefronts of other instructions and differs from run to run: docs/emulator.md.
    seen.remove("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum")
    assert seen <= set(names_asked((9, 0)))


def test_a_counter_keeps_its_name_in_the_tables_where_nvidia_renamed_it() -> None:
    assert names_asked((12, 0))["dram__bytes_op_read.sum"].name == DRAM
    assert names_asked((9, 0))[DRAM].name == DRAM


def test_no_time_is_asked_for() -> None:
    assert not [counter.name for counter in COUNTERS if "time" in counter.name]


# --- the table ------------------------------------------------------------------------------------


def test_a_table_is_found_between_the_words() -> None:
    text = (
        "==PROF== Connected to process 4711 (/usr/bin/python3.12)\n"
        '==PROF== Profiling "gemm" - 0: 0%....50%....100% - 31 passes\n'
        + table([("gemm", [128, 64, 1], [16, 16, 1]), ("gemm", [1, 2, 3], [4, 5, 6])], [SECTORS])
        + "==PROF== Disconnected from process 4711\n"
    )
    first, second = read_table(text)
    assert (first.kernel, first.grid, first.block) == ("gemm", (128, 64, 1), (16, 16, 1))
    assert (second.grid, second.block) == ((1, 2, 3), (4, 5, 6))
    unit, cell = second.cells[SECTORS]
    assert unit == "sector"
    assert read_value("sector", unit, cell) == printed_value(SECTORS, 1)


def test_no_table_is_no_launch() -> None:
    assert read_table("==WARNING== No kernels were profiled.\n") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'{HEAD}\n"","","","","",""\n"0","1","gemm"\n', "3 cells, the head has 6"),
        (f'{HEAD}\n"0","1","gemm","(1, 1, 1)","(1, 1, 1)","9.0"\n', "row of units"),
        (f"{HEAD}\n", "row of units"),
        ('"ID","Process ID","Kernel Name","Grid Size"\n', "no column 'Block Size'"),
        (f'{HEAD}\n"","","","","",""\n"0","1","gemm","16","(1, 1, 1)","9.0"\n', "no grid or block"),
        (f'{HEAD}\n"","","","","",""\n"1","1","gemm","(1,1,1)","(1,1,1)","9.0"\n', "numbered"),
        (f'{HEAD}\n"","","","","",""\n"0","1","ge"mm","(1,1,1)","(1,1,1)","9.0"\n', "cells"),
    ],
)
def test_a_table_of_another_form_is_refused(text: str, words: str) -> None:
    with pytest.raises(TableError, match=words):
        read_table(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,073,741,824", 1073741824.0), ("0", 0.0), ("524288", 524288.0), ("1,234.50", 1234.5),
     ("12.5", 12.5), ("1.2e+09", 1.2e9)],
)  # fmt: skip
def test_a_count_is_read_with_thousands_marks(text: str, value: float) -> None:
    assert read_value("sector", "sector", text) == value


@pytest.mark.parametrize(
    ("unit", "printed", "text", "words"),
    [
        ("sector", "sector", "1.073.741.824", "no number of the locale C"),
        ("sector", "sector", "1.073", "fraction or thousands"),
        ("sector", "sector", "1 073", "no number"),
        ("sector", "Gsector", "1.07", "not in its base unit"),
        ("inst", "Kinst", "5", "not in its base unit"),
        ("byte", "Mbyte", "27.6", "not in its base unit"),
        ("byte", "", "27", "not in its base unit"),
        ("%", "%", "65,77", "no number"),
        ("%", "%", "65,770", "cannot be"),
        ("sector", "sector", "n/a", "'n/a'"),
        ("sector", "sector", "(!) nan", "nan"),
        ("sector", "sector", "", "''"),
        ("sector", "sector", "-1", "no number"),
    ],
)
def test_a_cell_that_cannot_be_relied_on_is_refused_and_never_zero(
    unit: str, printed: str, text: str, words: str
) -> None:
    found = read_value(unit, printed, text)
    assert isinstance(found, str)
    assert words in found


def test_a_kernel_is_known_by_name_grid_and_block() -> None:
    launch = ProfiledLaunch("gemm(const float *, float *)", (2, 3, 1), (16, 16, 1), {})
    assert launch.is_of("gemm", (2, 3, 1), (16, 16, 1))
    assert not launch.is_of("gem", (2, 3, 1), (16, 16, 1))
    assert not launch.is_of("gemm", (3, 2, 1), (16, 16, 1))
    assert not launch.is_of("gemm", (2, 3, 1), (16, 16, 2))


# --- words ----------------------------------------------------------------------------------------


def test_errors_are_told_from_the_program_that_failed() -> None:
    log = (
        "==ERROR== An error was reported by the driver\n"
        "==ERROR== The application returned an error code (9).\n"
        "==WARNING== No kernels were profiled.\n"
    )
    assert Run(log, 1).errors == ["An error was reported by the driver"]


def test_metrics_that_cannot_be_collected_are_named() -> None:
    line = f"==ERROR== Failed to access the following 2 metrics: {DRAM}, dram__bytes_write.sum\n"
    refused = Run(line, 1).refused([SECTORS, DRAM, "dram__bytes_write.sum"])
    assert list(refused) == [DRAM, "dram__bytes_write.sum"]
    assert refused[DRAM] == "Failed to access the following 2 metrics"
    older = Run(f"==ERROR== Failed to find metric {SECTORS}\n", 1).refused([SECTORS, DRAM])
    assert list(older) == [SECTORS]


def test_a_profiler_that_is_named_but_not_there_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ncu.NCU_VARIABLE, str(tmp_path / "ncu"))
    found = ncu.find()
    assert isinstance(found, str)
    assert "does not run" in found


# --- sums and ratios ------------------------------------------------------------------------------


def launch_of(value: float, **others: float | str) -> dict[str, float | str]:
    return {counter.name: value for counter in COUNTERS} | others


def test_counts_of_all_launches_are_added_and_ratios_made_of_the_sums() -> None:
    names = {
        "l1tex__t_sectors.sum": (100.0, 300.0),
        "l1tex__t_sectors_lookup_hit.sum": (0.0, 300.0),
        "lts__t_sectors_lookup_hit.sum": (10.0, 20.0),
        "lts__t_sectors_lookup_miss.sum": (30.0, 0.0),
        "smsp__sass_data_bytes_mem_global_op_ld.sum": (3200.0, 0.0),
        "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ld.sum": (100.0, 100.0),
        hardware.OCCUPANCY: (90.0, 25.0),
    }
    launches = [launch_of(1.0, **{n: pair[i] for n, pair in names.items()}) for i in (0, 1)]
    values = {item.name: item for item in hardware.values_of_point(COUNTERS, launches, 1)}
    assert values["l1tex__t_sectors.sum"].value == 400.0
    assert values[L1_HIT_RATE].value == 75.0
    assert values[L2_HIT_RATE].value == 50.0
    assert values[BYTES_PER_SECTOR].value == 16.0
    assert values[hardware.OCCUPANCY].value == 25.0
    assert values[hardware.OCCUPANCY].detail == "of launch 2 of 2 alone"


def test_a_sum_with_a_part_missing_is_missing_and_so_are_its_ratios() -> None:
    part = {"l1tex__t_sectors.sum": "Nsight Compute gives 'n/a'"}
    values = {
        item.name: item
        for item in hardware.values_of_point(COUNTERS, [launch_of(1.0, **part), launch_of(1.0)], 1)
    }
    assert values["l1tex__t_sectors.sum"].value is None
    assert values[L1_HIT_RATE].value is None
    assert "l1tex__t_sectors.sum" in str(values[L1_HIT_RATE].detail)
    assert values[L2_HIT_RATE].value == 50.0


def test_a_ratio_to_nothing_is_no_row() -> None:
    values = hardware.values_of_point(COUNTERS, [launch_of(0.0)], 0)
    assert L1_HIT_RATE not in {item.name for item in values}
