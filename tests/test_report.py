"""The report: complete, self-contained, true to its tables, and silent where they are."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tables_fixture as tf
from ladder import figures, report
from ladder.config import Figures
from ladder.emulator.result import GLOBAL_LOAD_REQUESTS, GLOBAL_LOAD_SECTORS
from ladder.report import differences, summary_page
from ladder.status import EXPLANATIONS, Status

KERNELS = tf.repository_kernels()
NAIVE = {"BLOCK_X": 16, "BLOCK_Y": 16}
WIDE = {"BLOCK_X": 32, "BLOCK_Y": 8}
VOID = {"meta", "link", "br", "hr", "img", "input"}


@dataclass
class Page(HTMLParser):
    """What a reader of the page gets: its elements and its text."""

    html: str
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    open_tags: list[str] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open_tags):
            self.text += f" {data}"

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def rendered(tables: Path, figures_dir: Path | None = None) -> Page:
    """The report of a result set, without figures unless their folder is given."""
    out = tables.parent / "report.html"
    report.render(
        tables,
        figures_dir or tables.parent / "none",
        KERNELS,
        tf.gpus_yaml(tables.parent),
        out,
        formats=("html",),
    )
    return Page(out.read_text(encoding="utf-8"))


def compared(folder: Path, *pairs: tuple[tf.Row, list[tf.Row]], run: tf.Row | None = None) -> Page:
    return rendered(
        tf.write(
            folder / "tables",
            runs=[run or tf.gpu_run()],
            points=[row for row, _ in pairs],
            samples=[sample for _, samples in pairs for sample in samples],
        )
    )


@pytest.fixture(scope="module")
def typical(typical_results: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    tables = tmp_path_factory.mktemp("report") / "tables"
    shutil.copytree(typical_results / "tables", tables)
    return rendered(tables, typical_results / "figures")


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return rendered(tf.typical(tmp_path_factory.mktemp("replayed") / "tables", replayed=True))


def test_the_page_needs_no_network_and_little_script(typical: Page) -> None:
    for _, attributes in typical.tags:
        for name in ("src", "href", "xlink:href", "action", "data", "poster"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:")), target
    assert not re.search(r"@import|url\((?!#)", typical.html)
    scripts = re.findall(r"<script>(.*?)</script>", typical.html, re.S)
    assert len(scripts) == 1
    assert len(scripts[0]) < 6000


def test_marks_of_figures_tell_their_values(typical: Page) -> None:
    bars = typical.html[typical.html.index('<figure id="figure-ladder">') :]
    tips = re.findall(r'data-tip="([^"]*)"', bars.partition("</svg>")[0])
    assert len(tips) == 3, "a bar for each of two rungs and cuBLAS"
    assert len(re.findall(r"<path data-tip", bars.partition("</svg>")[0])) == 3, "no tick has one"
    assert re.fullmatch(r"TFLOPS at N = \d+: [\d.]+\n1 Naive, \d+\u00d7\d+", tips[0])
    lines = typical.html[typical.html.index('<figure id="figure-tflops_by_size">') :]
    tips = re.findall(r'data-tip="([^"]*)"', lines.partition("</svg>")[0])
    assert any(re.fullmatch(r"1 Naive\nN: 1024\nTFLOPS: [\d.]+", tip) for tip in tips)
    assert "marks:" not in typical.html


def test_figures_share_their_letters_and_styles(typical: Page) -> None:
    drawings = re.findall(r'<svg role="img".*?</svg>', typical.html, re.S)
    letters = re.findall(r'<path id="(DejaVuSans[^"]*)"', typical.html)
    assert len(letters) == len(set(letters)) > 20
    used = {name for svg in drawings for name in re.findall(r'href="#(DejaVuSans[^"]*)"', svg)}
    assert used == set(letters)
    styles = {name for svg in drawings for name in re.findall(r'class="(s\d+)"', svg)}
    rules = re.findall(r"^\.(s\d+) \{ .+ \}$", typical.html, re.M)
    assert styles == set(rules) and len(rules) == len(styles) > 10
    for svg in drawings:
        own = set(re.findall(r' id="([^"]+)"', svg))
        named = {*re.findall(r'href="#([^"]+)"', svg), *re.findall(r"url\(#([^)]+)\)", svg)}
        assert own == {name for name in named if not name.startswith("DejaVuSans")}
        assert all("url(#" in style for style in re.findall(r'style="([^"]*)"', svg))


def test_every_element_is_closed_and_every_id_is_unique(typical: Page) -> None:
    assert typical.open_tags == []
    ids = [attributes["id"] for _, attributes in typical.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    shown = re.sub(r"<script.*?</script>", "", typical.html, flags=re.S)
    targets = re.findall(r'(?:href|aria-labelledby)="#?([^"]+)"', shown)
    assert {target for target in targets if not target.startswith("data:")} <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)\)", shown)) <= set(ids)


def test_the_page_is_accessible_by_structure(typical: Page) -> None:
    assert typical.named("html")[0]["lang"] == "en"
    for landmark in ("header", "nav", "main", "footer", "h1"):
        assert len(typical.named(landmark)) == 1
    assert all(attributes.get("scope") in {"col", "row"} for attributes in typical.named("th"))
    drawings = [svg for svg in typical.named("svg") if svg.get("aria-hidden") != "true"]
    assert len(drawings) == len(typical.named("figure"))
    narrow = [script for script in typical.named("script") if script.get("class") == "narrow"]
    assert len(narrow) == len(drawings), "a phone takes the drawing for one column"
    assert all(d["role"] == "img" and len(d["aria-label"] or "") > 30 for d in drawings)


def test_the_first_screen_says_what_was_measured_on_what(typical: Page) -> None:
    first = typical.text[: typical.text.index("The ladder at M = N = K")]
    for fact in (
        "Synthetic GPU",
        "999.00",
        "NVRTC 13.5.0",
        "13.1.0",
        "41.0 TFLOPS at 1600 MHz",
        "mean 1575 MHz (1500 to 1600)",
        "mean 410 W of 500 W",
        "2026-01-02 03:04 UTC",
        "version 1",
        "2500 GB/s (datasheet)",
    ):
        assert fact in first, fact
    assert "Compiled 20 kernel variants for sm_120 (10) and sm_90a (10) with nvrtc 13.5.0" in first
    assert "1 build failed" in first


def test_every_status_is_counted_and_explained(typical: Page) -> None:
    for status in (
        Status.OK,
        Status.WRONG_RESULT,
        Status.TIMEOUT,
        Status.SKIPPED_CONSTRAINT,
        Status.COMPILE_FAILED,
    ):
        assert status.value in typical.text
        assert EXPLANATIONS[status] in typical.text
    assert EXPLANATIONS[Status.RACE] not in typical.text
    assert "a block has at most 1024 threads" in typical.text


def test_text_from_tables_is_escaped(typical: Page) -> None:
    assert "no answer for 120 s <silence>" in typical.text
    assert "invented <compiler> words" in typical.text
    assert "<silence>" not in typical.html


def test_the_ladder_table_has_intervals_shares_and_verdicts(typical: Page) -> None:
    table = typical.html[typical.html.index('aria-labelledby="ladder-caption"') :]
    table = table[: table.index("</table>")]
    assert table.count("<tr data-row=") == 3  # two rungs, cuBLAS FP32
    assert "TF32" not in table
    assert table.count("slower") == 2
    assert "faster" in table
    assert re.search(r"<small>[\d.]+\sto\s[\d.]+</small>", table)


def test_conditions_and_provenance_are_complete(typical: Page) -> None:
    for fact in (
        "sw_power_cap 4.0",
        "0.60 %, 1 repeat",
        "77.8",
        "Worker restarts 2",
        "0123456789abcdef",
        "abcdef012345",
        "snakemake --cores 1",
        "cupy 14.0, numpy 2.0",
        "GPU-synthetic-0",
        "63.0 \u00b0C",
    ):
        assert fact in typical.text, fact


@pytest.mark.parametrize(
    "term",
    [
        "Sector",
        "Request",
        "Warp",
        "Bank conflict",
        "Occupancy",
        "Arithmetic intensity",
        "TF32",
        "Rotating, hot, cold",
    ],
)
def test_the_glossary_explains_the_terms(typical: Page, term: str) -> None:
    assert term in typical.text[typical.text.rindex("Glossary") :]


def test_replayed_numbers_are_marked_before_anything_else(replayed: Page) -> None:
    head = replayed.text[: replayed.text.index("The ladder at N")]
    assert "Replayed: measured elsewhere" in head
    assert "No timing on this page comes from this machine" in head
    assert "Synthetic GPU, driver 999.00, 2026-01-02" in head
    assert "Nothing was measured, because no NVIDIA GPU answered" in replayed.text
    assert "The run that is replayed" in replayed.text
    assert "This machine's run" in replayed.text
    assert "on this machine's GPU" not in replayed.text


def test_whole_numbers_stay_whole_beside_a_run_that_lacks_them(replayed: Page) -> None:
    assert "100, 9.0" in replayed.text
    assert "100.0, 9.0" not in replayed.text


def nothing(folder: Path) -> Path:
    return tf.write(folder / "tables")


def no_files(folder: Path) -> Path:
    return folder / "tables"


def only_failures(folder: Path) -> Path:
    rows = [
        tf.failed("01_naive", Status.TIMEOUT, "hung"),
        tf.failed("03_shared_tile", Status.OOM, "full", on_gpu=False),
    ]
    return tf.write(folder / "tables", runs=[tf.gpu_run(end_reason="interrupted")], points=rows)


def only_compiled(folder: Path) -> Path:
    row = tf.failed("01_naive", Status.SKIPPED_UNSUPPORTED, "no GPU", on_gpu=False)
    return tf.write(folder / "tables", runs=[tf.cpu_run()], builds=tf.builds(KERNELS), points=[row])


def one_point(folder: Path) -> Path:
    row, samples = tf.point("01_naive", NAIVE)
    return tf.write(folder / "tables", runs=[tf.gpu_run()], points=[row], samples=samples)


def one_point_without_samples(folder: Path) -> Path:
    rows = [
        tf.point(name, params)[0] for name, params in (("01_naive", NAIVE), ("cublas_fp32", {}))
    ]
    return tf.write(folder / "tables", runs=[tf.gpu_run()], points=rows)


def sparse_run(folder: Path) -> Path:
    row, samples = tf.point("01_naive", NAIVE)
    run = {
        name: tf.gpu_run()[name]
        for name in (
            "run_id",
            "source",
            "started_at",
            "gpu_uuid",
            "gpu_name",
            "driver_version",
            "cublas_version",
        )
    }
    return tf.write(folder / "tables", runs=[run], points=[row], samples=samples)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (nothing, ["Nothing was measured", "Nothing was compiled", "No run is recorded"]),
        (no_files, ["Nothing was measured"]),
        (only_failures, ["No valid timing", "Every point failed", "hung", "did not finish"]),
        (
            only_compiled,
            [
                "No times: no GPU here",
                "Compiled 20 kernel variants",
                "none ran, not even on the CPU",
            ],
        ),
        (one_point, ["The fastest rung at N = 1024 is 1 Naive"]),
        (one_point_without_samples, ["of cuBLAS FP32"]),
        (sparse_run, ["The fastest rung at N = 1024 is 1 Naive"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_little_data_gives_a_report_that_says_so(
    tmp_path: Path, case: Callable[[Path], Path], said: list[str]
) -> None:
    page = rendered(case(tmp_path))
    assert page.open_tags == []
    for sentence in said:
        assert sentence in page.text, sentence
    for unknown in ("nan", "None", "NaT", "inf"):
        assert not re.search(rf"\b{unknown}\b", page.text), unknown


def test_a_slower_rung_is_called_slower(tmp_path: Path) -> None:
    page = compared(
        tmp_path,
        tf.point("01_naive", NAIVE, tflops=8.0),
        tf.point("03_shared_tile", {"TILE": 16}, tflops=4.0),
    )
    assert "3 Shared tile is slower than the one before, 1 Naive: 0.50" in page.text


def test_equal_rungs_are_called_equal(tmp_path: Path) -> None:
    page = compared(
        tmp_path,
        tf.point("01_naive", NAIVE, tflops=8.0, count=400),
        tf.point("03_shared_tile", {"TILE": 16}, tflops=8.0, count=400),
    )
    assert "3 Shared tile is as fast as 1 Naive: " in page.text


def test_the_best_block_shape_is_compared_with_16_by_16(tmp_path: Path) -> None:
    size = (2048, 2048, 2048)
    page = compared(
        tmp_path,
        tf.point("01_naive", NAIVE, size, tflops=5.5),
        tf.point("01_naive", WIDE, size, tflops=6.6),
    )
    assert re.search(
        r"fastest block shape at N = 2048 is 32\u00d78: 6\.\d+ TFLOPS, 1\.2\d\u00d7 the"
        r" 5\.\d+ TFLOPS of 16\u00d716 \(95 % interval 1\.\d+ to 1\.\d+\)",
        page.text,
    )


def test_an_inexact_kernel_is_named_in_the_correctness_table(tmp_path: Path) -> None:
    page = compared(
        tmp_path, tf.point("01_naive", NAIVE, eta_max=40.0, exact=False, status=Status.WRONG_RESULT)
    )
    row = page.html[page.html.index('aria-labelledby="checks-caption"') :]
    assert '<span class="bad">40.0</span>' in row
    assert '<span class="bad">0 of 1</span>' in row
    assert "The fastest rung" not in page.text


def test_other_gpus_are_named_and_never_averaged(tmp_path: Path) -> None:
    old = tf.gpu_run(
        "old", gpu_uuid="GPU-old", gpu_name="Other GPU", started_at=tf.START - timedelta(days=9)
    )
    row, _ = tf.point("01_naive", NAIVE, tflops=5.0)
    other, _ = tf.point("01_naive", NAIVE, tflops=50.0, run=old)
    page = rendered(tf.write(tmp_path / "tables", runs=[old, tf.gpu_run()], points=[row, other]))
    assert "Other GPU (GPU-old), driver 999.00, cuBLAS 13.1.0: 1 point" in page.text
    assert "with 5.0" in page.text or "with 4.9" in page.text
    assert "50.0 TFLOPS" not in page.text


def test_a_shared_gpu_is_announced(tmp_path: Path) -> None:
    page = compared(tmp_path, tf.point("01_naive", NAIVE), run=tf.gpu_run(gpu_shared=True))
    assert "Measured on a shared GPU" in page.text


def test_a_tall_ladder_is_told_in_few_sentences(tmp_path: Path) -> None:
    kernels = tf.tall_ladder(tmp_path / "kernels")
    run = tf.gpu_run()
    points, samples = tf.full_sweep(kernels, run, squares=(1024,), shapes=())
    tf.write(tmp_path / "t", runs=[run], points=points, samples=samples)
    results = figures.load_results(tmp_path / "t", kernels, tf.gpus_yaml(tmp_path))
    sentences = report.findings(results, figures.ladder_table(results))
    assert len(sentences) < 10
    assert "rungs are each faster than the one before" in " ".join(sentences)


def test_equal_tables_give_an_equal_report(tmp_path: Path) -> None:
    tables = one_point(tmp_path)
    assert rendered(tables).html == rendered(tables).html


def without_gpu(folder: Path, counters: list[tf.Row], *, drawn: bool = False) -> Page:
    """The report of a machine that has neither a GPU nor a published result set."""
    detail = "not measured: no GPU on this machine, and there is no published result set"
    row = tf.failed("01_naive", Status.SKIPPED_UNSUPPORTED, detail, on_gpu=False)
    tables = tf.write(
        folder / "tables",
        runs=[tf.cpu_run()],
        builds=tf.builds(KERNELS),
        points=[row],
        counters=counters,
    )
    if drawn:
        style = Figures(formats=["svg"])
        figures.draw_all(tables, folder / "figures", KERNELS, tf.gpus_yaml(folder), style=style)
    return rendered(tables, folder / "figures")


def test_a_build_that_its_architecture_cannot_have_is_no_failure(tmp_path: Path) -> None:
    builds = tf.builds(KERNELS)
    large = {**builds[0], "params": '{"BLOCK_X":512,"BLOCK_Y":1}', "status": Status.INFEASIBLE_SMEM}
    row, _ = tf.point("01_naive", NAIVE)
    page = rendered(
        tf.write(tmp_path / "tables", runs=[tf.gpu_run()], builds=[*builds, large], points=[row])
    )
    assert "1 build failed; 1 more is not for its architecture." in page.text


def section(page: Page, name: str) -> str:
    """The text of one section."""
    html = page.html[page.html.index(f'<section id="{name}"') :]
    return Page(html[: html.index("</section>")] + "</section>").text


def test_without_a_gpu_the_first_screen_says_what_was_done_for_real(tmp_path: Path) -> None:
    page = without_gpu(tmp_path, tf.counted_ladder(KERNELS), drawn=True)
    first = page.text[: page.text.index("Memory traffic, counted Counted")]
    assert "Compiled 20 builds, emulated 20 points and found no fault." in first
    assert "No times: no GPU here and no published set." in first
    assert first.index("What this machine did") < first.index("What the counts say")
    assert "16\u00d716 moves the fewest sectors: 1,073,741,824" in first
    assert "10 points ran whole with all checks; in 10 larger ones a few blocks stand" in first
    assert "Throughput by matrix size" in section(page, "failures")
    assert 'id="sizes"' not in page.html
    for word in ("measured elsewhere", "Nothing can be concluded"):
        assert word not in page.text


def test_the_traffic_section_counts_compares_and_concludes(tmp_path: Path) -> None:
    text = section(without_gpu(tmp_path, tf.counted_ladder(KERNELS)), "traffic")
    for said in (
        "Counted on a CPU, exact",
        "have the fullest sectors: 26.4 of 32 bytes (82.5 %) useful, but move 25 % more of them",
        "8\u00d732 and 32\u00d78 move equally many, with 9.6 and 26.4 useful bytes in each",
        "this result set does not have a time of each",
        "3 Shared tile (TILE 32) moves 67,108,864 sectors, 16 times fewer than 1 Naive"
        " (16\u00d716): it fetches each element of A and B 64 instead of 2048 times",
        "shared loads smsp__sass_inst_executed_op_shared_ld.sum \u2013 no closed form 536,870,912"
        " 335,544,320 not measured \u221237.5 % explained the compiler merges scalar shared loads",
        "As compiled (sm_90a)",
        "1,073,741,824 1,073,741,824 not measured 0 % equal",
        "It uses no shared memory.",
        "18 56.25 %",
    ):
        assert said in text, said
    assert "easured" not in text.replace("not measured", "")
    assert "eplayed" not in text


def test_faults_on_the_cpu_are_shown_with_file_and_line(tmp_path: Path) -> None:
    finding = "03_shared_tile.cu:31: race: a_tile is <written>; thread 0 of block 0"
    tile = {"TILE": 16}
    values = tf.tiled_counts(16)
    bad = tf.count(
        "03_shared_tile", tile, values, (65, 129, 33), status=Status.RACE, detail=finding
    )
    page = without_gpu(tmp_path, [*tf.counted_ladder(KERNELS), *bad])
    assert "Compiled 20 builds, emulated 21 points and found 1 fault." in page.text
    assert finding in section(page, "traffic")
    assert "20 of 21 points" in section(page, "traffic")
    assert EXPLANATIONS[Status.RACE] in page.text
    assert "banner tone-bad" in page.html


def test_a_machine_without_a_compiler_says_so(tmp_path: Path) -> None:
    reason = "no g++ or clang++ was found"
    rows = [
        tf.not_emulated("01_naive", params, Status.SKIPPED_UNSUPPORTED, reason)
        for params in (NAIVE, WIDE)
    ]
    page = without_gpu(tmp_path, rows)
    assert "emulated none of 2 points" in page.text
    assert f"2 points that could not run: {reason}." in section(page, "traffic")
    assert "No kernel could be counted" in section(page, "traffic")


def test_hardware_counters_are_one_more_column(tmp_path: Path) -> None:
    values = {k: v for k, v in tf.naive_counts(16).items() if k.endswith(".sum")}
    metric = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
    measured = {**values, metric: values[metric] * 1.5}
    rows = [
        *tf.count("01_naive", NAIVE, tf.naive_counts(16)),
        *tf.count("01_naive", NAIVE, measured, source="hardware", architecture="sm_90"),
    ]
    page = without_gpu(tmp_path, rows)
    text = section(page, "traffic")
    assert "Hardware (sm_90)" in text
    assert "1,073,741,824 \u2013 1,610,612,736 +50.0 % unexplained" in text
    assert "As compiled: not counted." in text
    assert "Hardware counters (sectors" not in page.text


def test_a_source_that_gave_nothing_says_why(tmp_path: Path) -> None:
    row = {
        **tf.count("01_naive", NAIVE, {"profile": 0.0}, source="hardware", architecture="sm_90")[0],
        "value": None,
        "status": Status.NO_PERMISSION,
        "detail": "ask the administrator",
    }
    page = without_gpu(tmp_path, [*tf.count("01_naive", NAIVE, tf.naive_counts(16)), row])
    assert section(page, "traffic").count("ask the administrator") == 1, "not in every row"


def test_fewest_sectors_is_held_against_time(tmp_path: Path) -> None:
    size = (2048, 2048, 2048)
    pairs = [
        tf.point("01_naive", NAIVE, size, tflops=5.5),
        tf.point("01_naive", WIDE, size, tflops=6.6),
    ]
    counted = [
        row
        for params in (NAIVE, WIDE)
        for row in tf.count("01_naive", params, tf.naive_counts(params["BLOCK_X"]))
    ]
    page = rendered(
        tf.write(
            tmp_path / "tables",
            runs=[tf.gpu_run()],
            points=[row for row, _ in pairs],
            samples=[sample for _, samples in pairs for sample in samples],
            counters=counted,
        )
    )
    assert re.search(
        r"1 Naive at N = 2048: fewest sectors is not fastest: the fastest is 32\u00d78 with 6\.\d+"
        r" TFLOPS, against 5\.\d+ of 16\u00d716, although it moves 25 % more sectors; its sectors"
        r" are the fullest\.",
        page.text,
    )


def test_a_run_that_counted_nothing_says_so(tmp_path: Path) -> None:
    page = compared(tmp_path, tf.point("01_naive", NAIVE))
    assert "Nothing was counted in this run" in section(page, "traffic")


def article(page: Page, name: str) -> str:
    """The text of one rung's article."""
    html = page.html[page.html.index(f'<article class="step" id="rung-{name}"') :]
    return Page(html[: html.index("</article>")] + "</article>").text


def test_a_rung_has_its_idea_numbers_counters_and_diff(tmp_path: Path) -> None:
    pairs = [
        tf.point("01_naive", NAIVE, (2048, 2048, 2048), tflops=5.0),
        tf.point("03_shared_tile", {"TILE": 16}, (2048, 2048, 2048), tflops=8.0),
    ]
    counted = [
        *tf.count("01_naive", NAIVE, tf.naive_counts(16)),
        *tf.count("03_shared_tile", {"TILE": 16}, tf.tiled_counts(16)),
    ]
    page = rendered(
        tf.write(
            tmp_path / "tables",
            runs=[tf.gpu_run()],
            builds=tf.builds(KERNELS),
            points=[row for row, _ in pairs],
            samples=[sample for _, samples in pairs for sample in samples],
            counters=counted,
        )
    )
    naive, tiled = article(page, "01_naive"), article(page, "03_shared_tile")
    assert KERNELS["01_naive"].manifest.idea in naive
    assert "lines added" not in naive, "nothing is before the first rung"
    assert "over previous rung 1." in tiled and "faster" in tiled
    assert "global load sectors 134 M 1.07 G" in " ".join(tiled.replace("\u202f", " ").split())
    assert re.search(r"Source, against 1 Naive: \d+ lines added, \d+ lines? removed", tiled)
    assert "__shared__ float" in tiled
    key = 'data-row="counters: kernel=03_shared_tile, params={&#34;TILE&#34;:16}, m=2048, n=2048'
    assert key in page.html, "each row names the row of the table that it comes from"


def test_a_diff_takes_no_notice_of_header_spaces_and_trailing_comments(tmp_path: Path) -> None:
    before, after = tmp_path / "a.cu", tmp_path / "b.cu"
    same = [f"line_{index};" for index in range(20)]
    before.write_text("// idea\n\n" + "\n".join(["first;", *same, "last;  // was"]))
    after.write_text("// another idea\n" + "\n".join(["1st;", *(f"  {x}" for x in same), "last;"]))
    lines = differences.source_diff(before, after)
    assert [line.change for line in lines] == ["removed", "added", "same", "same", "same"]
    assert differences.counted(lines) == (1, 1)
    after.write_text(after.read_text().replace("last;", "end;"))
    assert [line.change for line in differences.source_diff(before, after)][5] == "gap"


def test_results_of_other_gpus_stand_side_by_side(tmp_path: Path) -> None:
    tables = {}
    for name, gpu in (("here", tf.GPU_NAME), ("there", "Other GPU")):
        row, samples = tf.point("01_naive", NAIVE, tflops=8.0 if name == "here" else 4.0)
        run = tf.gpu_run(gpu_name=gpu)
        row["gpu_name"] = gpu
        tables[name] = tf.write(tmp_path / name, runs=[run], points=[row], samples=samples)
    out, gpus = tmp_path / "report.html", tf.gpus_yaml(tmp_path)
    others = [tables["here"], tables["there"], tmp_path / "missing"]
    here = tables["here"], tmp_path / "none", KERNELS, gpus, out
    report.render(*here, others=others, formats=("html",))
    text = section(Page(out.read_text(encoding="utf-8")), "devices")
    assert f"Kernel {tf.GPU_NAME} Other GPU 1 Naive" in text
    report.render(*here, others=others[:1], formats=("html",))
    assert 'id="devices"' not in out.read_text(encoding="utf-8")


def test_markdown_and_summary_lie_beside_the_page_and_are_equal_for_equal_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tf.typical(tmp_path / "tables")
    written = []
    for name in ("first", "second"):
        out = tmp_path / name / "report.html"
        report.render(tables, tmp_path / "none", KERNELS, tf.gpus_yaml(tmp_path), out)
        written.append({path.name: path.read_bytes() for path in out.parent.iterdir()})
    assert set(written[0]) == {"report.html", "report.md", "summary.pdf"}
    assert written[0] == written[1]
    pdf = written[0]["summary.pdf"]
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page ") == 1
    text = written[0]["report.md"].decode()
    rows = [line for line in text.splitlines() if line.startswith("| 1 Naive (01_naive)")]
    assert len(rows) == 1 and rows[0].count(" | ") == 7
    heading = text[: text.index(rows[0])].splitlines()[-2]
    assert heading.startswith("| Rung | Best parameters | TFLOPS |")
    assert "&lt;" not in text and "## The ladder" in text
    # Without a font for the language, the summary says the same in English.
    monkeypatch.setattr(summary_page, "_CHINESE_FONTS", ())
    out = tmp_path / "zh" / "report.html"
    gpus = tf.gpus_yaml(tmp_path)
    report.render(tables, tmp_path / "none", KERNELS, gpus, out, language="zh")
    assert (out.parent / "summary.pdf").read_bytes() == pdf
    assert "## 阶梯" in (out.parent / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (5.1234, 3, "5.12"),
        (0.05, 2, "0.050"),
        (123456.0, 3, "123,456"),
        (1600.0, 4, "1600"),
        (0.0, 3, "0"),
        (None, 3, "\u2013"),
        (float("nan"), 3, "\u2013"),
        (9.996, 3, "10.0"),
        (99.96, 3, "100"),
    ],
)
def test_numbers_have_significant_digits(value: float | None, digits: int, text: str) -> None:
    assert report.number(value, digits) == text


def test_a_right_result_is_right_although_its_requests_could_not_be_counted(
    tmp_path: Path,
) -> None:
    naive = {"BLOCK_X": 16, "BLOCK_Y": 16}
    rows = tf.count("01_naive", naive, tf.naive_counts(16), (2048, 2048, 2048))
    open_counts = {"l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": None}
    rows += tf.count(
        "01_naive", naive, open_counts, (65, 129, 33),  # type: ignore[arg-type]
        status=Status.MISSING_METRIC, detail="82 requests of lanes whose loops differ",
    )  # fmt: skip
    page = without_gpu(tmp_path, rows)
    assert "Emulated 2 points right" in page.text
    text = section(page, "traffic")
    assert "Ran all 2 points" in text and "every result is right" in text
    assert "1 point without exact counts: 82 requests of lanes whose loops differ." in text
    assert "not at all" not in text


def test_a_result_set_older_than_a_kernels_parameters_is_still_reported(tmp_path: Path) -> None:
    row, samples = tf.point("01_naive", {"BLOCK_X": 16})
    counted = tf.count("01_naive", {"BLOCK_X": 16}, tf.naive_counts(16))
    page = rendered(
        tf.write(
            tmp_path / "tables",
            runs=[tf.gpu_run()],
            points=[row],
            samples=samples,
            counters=counted,
        )
    )
    assert "The fastest rung at N = 1024 is 1 Naive" in page.text


def test_what_machine_code_and_hardware_differ_in_is_told_once_for_each_reason(
    tmp_path: Path,
) -> None:
    requests, sectors = GLOBAL_LOAD_REQUESTS, GLOBAL_LOAD_SECTORS
    rows: list[tf.Row] = []
    for kernel, params in (("01_naive", NAIVE), ("03_shared_tile", {"TILE": 16})):
        for source, moved in (("compiled", 8.0), ("hardware", 9.0)):
            counts = {requests: 4.0, sectors: moved}
            rows += tf.count(kernel, params, counts, source=source, architecture="sm_90a")
    small = tf.naive_counts(16, 64)
    rows += tf.count("01_naive", NAIVE, small, (64, 64, 64))
    page = without_gpu(tmp_path, rows)
    assert "agree as integers in 2 of 4 counts" in page.text
    assert page.text.count("The reason for 2 differences: no known reason.") == 1
    table = page.html.split('id="exceptions-caption"')[1].split("</table>")[0]
    assert table.count("<tr") == 1 + 2, "a head, and a counter of each rung"
    # What counted is told of the size that is shown, not of a smaller one beside it.
    assert "Counted on a CPU, exact: the emulator" not in page.text
