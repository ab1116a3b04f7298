"""``python -m ladder``: every step of the workflow by hand, with the same code."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .documents import UserError, suggestion
from .language import LANGUAGES

if TYPE_CHECKING:
    from .compile import BuildTask
    from .manifest import Kernel

# Importing pandas, pyarrow and seaborn takes seconds: each step imports what it needs.

ROOT = Path(__file__).resolve().parents[2]
BUILDS = Path("results/build")
PUBLISHED = Path("results/published")
GPUS = Path("config/gpus.yaml")


def _kernels(root: Path) -> dict[str, Any]:
    from .manifest import load_all

    return load_all(root / "kernels")


def _configuration(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The configuration that `--config` or `--config-json` gives, and the kernels it names."""
    from .config import load, resolve

    if arguments.config_json:
        return resolve(json.loads(arguments.config_json), arguments.root, name="configuration")
    return load(arguments.config, arguments.root)


def _kernel(arguments: argparse.Namespace) -> Kernel:
    """The kernel that the command line names; the manifests of the others are not read."""
    from .manifest import load, load_all

    name, folder = arguments.kernel, arguments.root / "kernels"
    manifest = folder / f"{name}.yaml"
    # Of the files, not of the name alone: a folder may not mind the case, or the name be a path.
    if manifest in folder.glob("*.yaml"):
        return load(manifest)
    raise UserError(f"no kernel {name!r}; " + suggestion(name, list(load_all(folder))))


class _Hidden:
    """Finds no package of some names, whose import takes longer than a step that can do without.

    pyarrow tries pandas at its first array, to see whether a list is one of its objects; seaborn
    tries scipy for density estimates and clusters. Both do without where it is missing.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self.names:
            raise ModuleNotFoundError(f"this step does without {name}: see ladder.__main__")


def _without(*names: str) -> None:
    if __name__ == "__main__":  # a program that calls `main` may want them
        sys.meta_path.insert(0, _Hidden(names))


def _on_one_thread() -> None:
    if __name__ == "__main__":
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy starts them


def _cmd_info(arguments: argparse.Namespace) -> int:
    """Show the GPUs, the compiler and the published sets, as JSON."""
    from .compile import compiler_problem, compiler_version, supported_architectures
    from .device import detect
    from .replay import published_sets

    problem = compiler_problem()
    found = {
        "ladder": __version__,
        "gpus": [gpu.to_json() for gpu in detect()],
        "compiler": problem or f"NVRTC {compiler_version()}",
        "architectures": [] if problem else supported_architectures(),
        "published": published_sets(arguments.root / PUBLISHED),
    }
    print(json.dumps(found, indent=2))
    return 0


def _cmd_schema(arguments: argparse.Namespace) -> int:
    """Print the JSON schema of the configuration, or of a kernel's manifest."""
    from .config import json_schema
    from .manifest import Manifest

    if arguments.of == "manifest":
        print(json.dumps(Manifest.model_json_schema(), indent=2))
    else:
        print(json_schema(), end="")
    return 0


def _cmd_plan(arguments: argparse.Namespace) -> int:
    """Validate the configuration and write the plan: every point, and what cannot run."""
    _without("pandas")
    from .plan import plan_builds, write_plan
    from .tuned import read_winners

    config, kernels = _configuration(arguments)
    winners = read_winners(arguments.tuned) if arguments.tuned else {}
    planned = write_plan(arguments.out, config, kernels, winners)
    refused = sum(1 for item in planned if item.fault)
    first = config.architectures[:1]
    builds = plan_builds(config, kernels, config.architectures, winners, tuned_for=first)
    print(f"{arguments.out}: {len(planned)} points ({refused} cannot run), {len(builds)} builds")
    return 0


def _cmd_compile(arguments: argparse.Namespace) -> int:
    """Compile one set of a kernel, or, without a kernel, all of the configuration that are not
    there as they would be made now; a compiler's refusal is a row, not an error."""
    _on_one_thread()
    _without("pandas")
    from .builds import cubin_path
    from .compile import build_all

    tasks = _one_build(arguments) if arguments.kernel else _planned_builds(arguments)
    for (kernel, params, architecture, root), (row, kept) in zip(
        tasks, build_all(tasks, arguments.workers), strict=True
    ):
        cubin = cubin_path(root, architecture, kernel.name, params)
        detail = f": {row['detail']}" if row.get("detail") else ""
        print(f"{cubin}: {'kept, ' if kept else ''}{row['status']}{detail}")
        if row.get("log") and not kept:
            print(row["log"])
    return 0


def _one_build(arguments: argparse.Namespace) -> list[BuildTask]:
    from .manifest import parameter_fault, parse_slug

    kernel = _kernel(arguments)
    if not kernel.needs_build:
        raise UserError(f"{kernel.name} is a baseline; it has no source to compile")
    params = parse_slug(arguments.params)
    fault = parameter_fault(kernel.manifest, params)
    if fault:
        raise UserError(f"--params: {fault}")
    if not arguments.architecture:
        raise UserError("--architecture: say what to compile for, as in sm_90a")
    return [(kernel, params, name, arguments.builds) for name in arguments.architecture]


def _planned_builds(arguments: argparse.Namespace) -> list[BuildTask]:
    from .plan import plan_builds
    from .tuned import read_winners

    config, kernels = _configuration(arguments)
    planned = plan_builds(
        config,
        kernels,
        arguments.architecture or config.architectures,
        read_winners(arguments.tuned) if arguments.tuned else {},
        tuned_for=[arguments.tuned_for] if arguments.tuned_for else config.architectures[:1],
    )
    return [
        (kernels[build.kernel], json.loads(build.params), build.architecture, arguments.builds)
        for build in planned
    ]


def _cmd_emulate(arguments: argparse.Namespace) -> int:
    """Run a kernel on the CPU: check it, and count its memory requests exactly; without a kernel,
    all of the configuration."""
    _on_one_thread()  # such a process can be forked for each size
    _without("pandas")
    from .emulator import command

    if arguments.kernel:
        return command.run(_kernel(arguments), arguments)
    return command.run_planned(*_configuration(arguments), arguments)


def _cmd_measure(arguments: argparse.Namespace) -> int:
    """Check and time every point that is not in the store yet, then write the tables."""
    from .measure import measure

    interrupted = False
    summaries = []
    try:
        summaries = measure(
            arguments.plan,
            _kernels(arguments.root),
            builds_root=arguments.builds,
            out=arguments.out,
            root=arguments.root,
        )
    except KeyboardInterrupt:
        interrupted = True
    counts = _collect(arguments)
    for summary in summaries:
        print(
            f"{summary['points_planned']} points: {summary['points_measured']} measured now, "
            f"{summary['points_from_store']} from the store; {summary['wall_s']:.0f} s, "
            f"GPU busy {summary['gpu_utilization_mean_pct'] or 0:.0f} %"
        )
    _print_counts(counts)
    if interrupted:
        print("interrupted: what was finished is kept; run again to go on", file=sys.stderr)
        return 130
    return 0


def _cmd_ceilings(arguments: argparse.Namespace) -> int:
    """Measure what this GPU can do at most: multiply-adds, and each level of its memory."""
    _without("pandas")
    from .ceilings import measure_ceilings

    config, _ = _configuration(arguments)
    path, rows = measure_ceilings(
        config, builds_root=arguments.builds, out=arguments.out, root=arguments.root
    )
    for row in rows:
        shown = f"{row['value']:.1f} {row['unit']}, " if row.get("value") else ""
        print(f"{row['name']}: {shown}{row['status']}")
    print(path)
    return 0


def _cmd_tune(arguments: argparse.Namespace) -> int:
    """Search the space that a kernel's manifest declares for the fastest parameters on this GPU."""
    from .gpus import load as load_gpus
    from .tune import narrowed, tune

    config, _ = _configuration(arguments)
    sizes = arguments.size or config.tune.sizes
    if min(min(size) for size in sizes) < 1:
        raise UserError("--size: M, N and K must be at least 1")
    budget = config.tune.budget if arguments.budget is None else arguments.budget
    if budget < 1:
        raise UserError(f"--budget: at least one set must be tried; found {budget}")
    try:
        tuning, winners = tune(
            narrowed(_kernel(arguments), arguments.values),
            config,
            sizes=list(dict.fromkeys((m, n, k) for m, n, k in sizes)),
            budget=budget,
            builds_root=arguments.builds,
            out=arguments.out,
            root=arguments.root,
            gpus=load_gpus(arguments.root / GPUS),
            workers=arguments.workers,
        )
    except KeyboardInterrupt:
        print("interrupted: what was finished is kept; run again to go on", file=sys.stderr)
        return 130
    counts: dict[str, int] = {}
    for row in tuning.rows():
        counts[row["status"]] = counts.get(row["status"], 0) + row["sets"]
    _print_counts(counts)
    print(f"every time, and every reason to leave sets out: {tuning.trials_path}")
    for winner in winners:
        shown = " ".join(f"{name}={value}" for name, value in winner.params.items())
        print(f"{winner.m}x{winner.n}x{winner.k}: {winner.tflops:g} TFLOPS by {shown}")
    if not winners:
        print("no set gave a right result in time", file=sys.stderr)
    return 0 if winners else 1


def _cmd_collect(arguments: argparse.Namespace) -> int:
    """Write the tables again from the journals, without measuring."""
    _print_counts(_collect(arguments))
    return 0


def _collect(arguments: argparse.Namespace) -> dict[str, int]:
    from .collect import collect
    from .gpus import load as load_gpus

    return collect(
        arguments.plan,
        _kernels(arguments.root),
        builds_root=arguments.builds,
        out=arguments.out,
        gpus=load_gpus(arguments.root / GPUS),
    )


def _cmd_accuracy(arguments: argparse.Namespace) -> int:
    """Measure errors by distribution and K, and what becomes of special values."""
    _without("pandas")
    from .accuracy import TABLE, measure_accuracy

    rows = measure_accuracy(
        arguments.plan,
        _kernels(arguments.root),
        builds_root=arguments.builds,
        out=arguments.out,
        root=arguments.root,
    )
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    _print_counts(counts)
    print(arguments.out / TABLE)
    return 0


def _cmd_profile(arguments: argparse.Namespace) -> int:
    """Read hardware counters of measured points with Nsight Compute."""
    _without("pandas")
    from .profile import TABLE, profile

    try:
        summary = profile(
            arguments.plan,
            _kernels(arguments.root),
            builds_root=arguments.builds,
            out=arguments.out,
        )
    except KeyboardInterrupt:
        print("interrupted: what was counted is kept; run again to go on", file=sys.stderr)
        return 130
    print(
        f"{arguments.out / TABLE}: {summary.points} points, {summary.counted} counted now, "
        f"{summary.kept} from the store"
    )
    if not summary.points:
        print("no point was measured at any of profile.sizes")
    if summary.failed:
        _print_counts(summary.failed)
    return 0


def _cmd_counters(arguments: argparse.Namespace) -> int:
    """Gather the counters: closed forms of the manifests, and what was counted."""
    _without("pandas")
    from .counters import collect_counters

    rows = collect_counters(
        arguments.plan, _kernels(arguments.root), arguments.counted, arguments.out
    )
    print(f"{arguments.out}: {rows} rows")
    return 0


def _cmd_replay(arguments: argparse.Namespace) -> int:
    """Write the tables of a machine without a GPU from a published result set."""
    _without("pandas")
    from .replay import replay

    _print_counts(
        replay(
            arguments.plan,
            _kernels(arguments.root),
            builds_root=arguments.builds,
            published=arguments.published,
            out=arguments.out,
            root=arguments.root,
        )
    )
    return 0


def _print_counts(counts: dict[str, int]) -> None:
    print(", ".join(f"{number} {status}" for status, number in sorted(counts.items())) or "no rows")


def _cmd_figures(arguments: argparse.Namespace) -> int:
    """Draw every figure of a result folder as SVG, PDF and PNG, with its data and caption."""
    _without("scipy")
    from .config import Figures
    from .documents import parse
    from .figures import draw_all

    if arguments.style_json:
        style = parse(Figures, json.loads(arguments.style_json), name="--style-json")
    else:
        style = _configuration(arguments)[0].figures
    records = draw_all(
        arguments.tables,
        arguments.tables / "figures",
        _kernels(arguments.root),
        arguments.root / GPUS,
        workers=arguments.workers,
        style=style,
    )
    print(f"{len(records)} figures in {arguments.tables / 'figures'}")
    return 0


def _cmd_report(arguments: argparse.Namespace) -> int:
    """Write the self-contained HTML report of a result folder."""
    _without("scipy")
    from .report import render

    out = arguments.tables / "report.html"
    render(
        arguments.tables,
        arguments.tables / "figures",
        _kernels(arguments.root),
        arguments.root / GPUS,
        out,
        language=arguments.language,
        others=_result_sets(arguments.root, arguments.tables),
    )
    print(out)
    return 0


def _result_sets(root: Path, shown: Path) -> list[Path]:
    """The folders of other result sets: published ones and those of this checkout."""
    folders = [*(root / "results" / "published").glob("*/"), *(root / "results").glob("*/")]
    return sorted(path for path in folders if path.resolve() != shown.resolve())


def _cmd_handbook(arguments: argparse.Namespace) -> int:
    """Bring the tutorial and README.md up to date with the published tables and the rules."""
    _without("scipy")
    from .handbook import write

    root = arguments.root
    for path in write(root, arguments.tables, _kernels(root), root / GPUS):
        print(path)
    return 0


def _cmd_publish(arguments: argparse.Namespace) -> int:
    """Copy a complete measured result folder to `results/published/`."""
    from .publish import publish, untraced_winners

    written = publish(arguments.tables, arguments.published)
    size = sum(path.stat().st_size for path in written)
    print(f"{len(written)} files, {size / 1e6:.1f} MB in {arguments.published}")
    untraced = untraced_winners(arguments.tables)
    if untraced:
        print(
            f"{arguments.tables}: tuned.yaml names winners whose search is not in tune/; tune"
            f" again, which takes their times from the journal: {', '.join(untraced)}",
            file=sys.stderr,
        )
    return 0


def _cmd_compare(arguments: argparse.Namespace) -> int:
    """Compare the medians of two result folders."""
    from .publish import compare

    agreement = compare(arguments.first, arguments.second, arguments.tolerance)
    print(
        f"{agreement.common} common points: {agreement.within_pct:.1f} % within "
        f"{arguments.tolerance:g} %, largest difference {agreement.largest_pct:.2f} %"
    )
    for name, difference in agreement.worst:
        print(f"  {difference:6.2f} %  {name}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ladder", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="project root (default: the one of this package)"
    )
    commands = parser.add_subparsers(required=True, metavar="STEP")

    def command(name: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        text = (run.__doc__ or "").strip()
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    def path(parser: argparse.ArgumentParser, name: str, default: Path | None, text: str) -> None:
        parser.add_argument(
            f"--{name}",
            type=Path,
            default=default,
            required=default is None,
            metavar="PATH",
            help=text if default is None else f"{text} (default: {default})",
        )

    command("info", _cmd_info)

    schema = command("schema", _cmd_schema)
    schema.add_argument(
        "of", nargs="?", default="config", choices=["config", "manifest"],
        help="of the configuration or of a manifest (default: config)",
    )  # fmt: skip

    def configuration(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--config",
            type=Path,
            nargs="+",
            default=[Path("config/config.yaml")],
            metavar="PATH",
            help="configuration files, later ones win (default: config/config.yaml)",
        )
        parser.add_argument("--config-json", help="the whole configuration as JSON instead")

    def result_folder(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--out",
            type=Path,
            metavar="PATH",
            help="result folder (default: that of the GPU, as in results/nvidia-h200)",
        )

    def tuned(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--tuned",
            type=Path,
            metavar="PATH",
            help="what `tune` has found, for kernels that select",
        )

    def workers(parser: argparse.ArgumentParser, default: int, text: str) -> None:
        shown = "1" if default == 1 else "one per core"
        parser.add_argument(
            "--workers", type=int, default=default, help=f"{text} (default: {shown})"
        )

    plan = command("plan", _cmd_plan)
    configuration(plan)
    path(plan, "out", Path("results/plan.parquet"), "the plan to write")
    tuned(plan)

    compile_ = command("compile", _cmd_compile)
    compile_.add_argument(
        "kernel", nargs="?", help="one kernel, as in 01_naive (default: all of the configuration)"
    )
    compile_.add_argument(
        "--params", default="default", help="of the one kernel, as in BLOCK_X=16,BLOCK_Y=16"
    )
    compile_.add_argument(
        "--architecture",
        action="append",
        metavar="SM",
        help="as in sm_90a; may be repeated (default: those of the configuration)",
    )
    configuration(compile_)
    tuned(compile_)
    compile_.add_argument(
        "--tuned-for",
        metavar="SM",
        help="compile what only --tuned names for this one (default: the configuration's first)",
    )
    workers(compile_, 1, "processes that compile")
    path(compile_, "builds", BUILDS, "folder of the builds")

    emulate = command("emulate", _cmd_emulate)
    _add_emulate_arguments(emulate)
    configuration(emulate)
    path(emulate, "builds", BUILDS, "folder of the builds whose machine code is counted")
    workers(emulate, 1, "processes that emulate a configuration")

    counters = command("counters", _cmd_counters)
    path(counters, "plan", Path("results/plan.parquet"), "the plan")
    path(counters, "out", None, "the table to write")
    counters.add_argument(
        "counted", type=Path, nargs="*", help="tables that `emulate` and `profile` wrote"
    )

    for name, run in (
        ("measure", _cmd_measure),
        ("collect", _cmd_collect),
        ("accuracy", _cmd_accuracy),
        ("profile", _cmd_profile),
    ):
        step = command(name, run)
        path(step, "plan", Path("results/plan.parquet"), "the plan")
        path(step, "builds", BUILDS, "folder of the builds")
        path(step, "out", None, "result folder, as in results/nvidia-h200")

    ceilings = command("ceilings", _cmd_ceilings)
    configuration(ceilings)
    path(ceilings, "builds", BUILDS, "folder of the builds")
    result_folder(ceilings)

    tune = command("tune", _cmd_tune)
    tune.add_argument("kernel", help="name of the kernel, as in 12_tma")
    configuration(tune)
    tune.add_argument(
        "--size",
        type=int,
        nargs=3,
        action="append",
        metavar=("M", "N", "K"),
        help="size to tune for; may be repeated (default: tune.sizes of the configuration)",
    )
    tune.add_argument(
        "--budget",
        type=int,
        help="sets to try at a size, at most (default: tune.budget of the configuration)",
    )
    tune.add_argument(
        "--values",
        action="append",
        default=[],
        metavar="NAME=V,V",
        help="search only these values of a parameter's list; may be repeated",
    )
    workers(tune, os.cpu_count() or 1, "processes that compile, never beside a measurement")
    path(tune, "builds", BUILDS, "folder of the builds")
    result_folder(tune)

    replay = command("replay", _cmd_replay)
    path(replay, "plan", Path("results/plan.parquet"), "the plan")
    path(replay, "builds", BUILDS, "folder of the builds")
    path(replay, "published", PUBLISHED, "folder of the published sets")
    path(replay, "out", Path("results/no-gpu"), "result folder")

    for name, run in (("figures", _cmd_figures), ("report", _cmd_report)):
        step = command(name, run)
        step.add_argument("tables", type=Path, help="result folder, as in results/nvidia-h200")
        if run is _cmd_figures:
            workers(step, 1, "processes to draw in")
            configuration(step)
            step.add_argument("--style-json", help="the section `figures` as JSON")
        else:
            step.add_argument(
                "--language", choices=LANGUAGES, default="en", help="of the report (default: en)"
            )

    handbook = command("handbook", _cmd_handbook)
    path(handbook, "tables", PUBLISHED / "nvidia-h200", "the published set to take numbers from")

    publish = command("publish", _cmd_publish)
    publish.add_argument("tables", type=Path, help="result folder, as in results/nvidia-h200")
    path(publish, "published", PUBLISHED, "folder of the published sets")

    compare = command("compare", _cmd_compare)
    compare.add_argument("first", type=Path, help="result folder, as in results/first")
    compare.add_argument("second", type=Path, help="the one to hold against it")
    compare.add_argument(
        "--tolerance", type=float, default=1.0, help="percent that counts as equal (default: 1)"
    )
    return parser


def _add_emulate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kernel", nargs="?", help="one kernel, as in 01_naive (default: all of the configuration)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a compile-time parameter; default: the first set of the manifest's sweep",
    )
    parser.add_argument("--params", metavar="NAME=VALUE,...", help="all parameters at once")
    parser.add_argument(
        "--size",
        action="append",
        nargs=3,
        type=int,
        default=[],
        metavar=("M", "N", "K"),
        help="of the one kernel: C (M x N) = A (M x K) B (K x N); may be repeated",
    )
    parser.add_argument(
        "--sample",
        choices=["auto", "always", "never"],
        default="auto",
        help="run a few blocks that stand for all (default: when the grid is large)",
    )
    parser.add_argument(
        "--most-fma",
        type=int,
        metavar="COUNT",
        help="leave out a size whose blocks to run make more multiply-adds (default: no limit)",
    )
    parser.add_argument("--no-checks", action="store_true", help="count only; look for no faults")
    parser.add_argument(
        "--architecture",
        action="append",
        default=[],
        metavar="SM",
        help="count the machine code for it too, as in sm_90a; may be repeated",
    )
    parser.add_argument("--compiler", help="the C++ compiler (default: CXX, g++ or clang++)")
    parser.add_argument(
        "--cache", type=Path, metavar="PATH", help="where compiled kernels are kept"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="give up on a size after this time (default: 600)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="write a `counters` table; what is wrong or cannot run is then a row, not an error",
    )


def main(arguments: list[str] | None = None) -> int:
    """Run one step; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    # matplotlib and CuPy want a writable home, which batch systems do not always give.
    os.environ.setdefault("MPLCONFIGDIR", str(Path(tempfile.gettempdir()) / "gemm-ladder-mpl"))
    code = 0
    try:
        code = parsed.run(parsed)
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; nothing is left to say on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


if __name__ == "__main__":
    sys.exit(main())
