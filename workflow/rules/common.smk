# Everything the rules share. Decisions about what to run live in the package `ladder`.
#
# Nothing here names a conda environment, the one finding of `snakemake --lint`: all steps are this
# project's own package and run in the environment that Snakemake runs in (envs/).

import json
import sys
from pathlib import Path

from snakemake_interface_common.exceptions import WorkflowError

WORKFLOW = Path(workflow.current_basedir).resolve().parent
ROOT = WORKFLOW.parent
sys.path.insert(0, str(WORKFLOW))

from ladder import config as ladder_config
from ladder.device import resolve_target
from ladder.documents import UserError
from ladder.manifest import slug
from ladder.plan import plan_builds
from ladder.tuned import read_winners

# Shell commands call `ladder STEP`, the package under the interpreter that runs Snakemake: a bare
# `python` may be another one. It keeps its bytecode, also where PYTHONDONTWRITEBYTECODE is set as in
# many container images: each of a hundred jobs would compile the package anew.
LADDER = (
    f'ladder() {{ PYTHONPATH="{WORKFLOW}${{PYTHONPATH:+:$PYTHONPATH}}" '
    "PYTHONDONTWRITEBYTECODE= "
    f'"{sys.executable}" -m ladder --root "{ROOT}" "$@"; }}; set -euo pipefail; '
)
shell.prefix(
    LADDER.replace("{", "{{").replace("}", "}}")
)  # Snakemake formats the prefix

try:
    SETTINGS, KERNELS = ladder_config.resolve(
        config, ROOT, name=" + ".join(map(str, workflow.configfiles)) or "configuration"
    )
    GPU = resolve_target(SETTINGS.gpu, SETTINGS.architectures)
except UserError as error:
    raise WorkflowError(str(error)) from None

# The GPU's name is part of every path, so that results of two machines never mix.
DEVICE = GPU.slug if GPU else "no-gpu"
ARCHITECTURES = sorted({*SETTINGS.architectures, *([GPU.architecture] if GPU else [])})
# What a kernel that selects others goes by: the searches on this GPU, or those of the published set.
TUNED = Path(
    f"results/{DEVICE}/tuned.yaml"
    if GPU
    else f"results/published/{SETTINGS.gpu.replay}/tuned.yaml"
)
TUNED_FOR = GPU.architecture if GPU else SETTINGS.architectures[0]
try:
    BUILDS = plan_builds(
        SETTINGS,
        KERNELS,
        ARCHITECTURES,
        read_winners(TUNED),
        tuned_for=[TUNED_FOR],
    )
except UserError as error:
    raise WorkflowError(str(error)) from None
# How figures and report look stands apart: to change it must not plan or measure anything again.
CONFIG_JSON = json.dumps(
    SETTINGS.model_dump(mode="json", exclude={"figures", "report"}), sort_keys=True
)
STYLE_JSON = json.dumps(SETTINGS.figures.model_dump(mode="json"), sort_keys=True)
HEADERS = sorted(str(path) for path in Path("kernels/include").glob("**/*.cuh"))

# One measuring job at a time on this host; it uses every selected GPU itself, behind a lock of its
# own. A profile's limit would be lost as soon as a user gives any --resources.
workflow.global_resources.setdefault("gpu", 1)
# Compiling takes one unit, measuring all: a compile beside a measurement would disturb its times.
workflow.global_resources.setdefault("host", 100)


wildcard_constraints:
    device=r"[a-z0-9-]+",
    kernel=r"[A-Za-z0-9_]+",


def kernel_files(names):
    """Sources and manifests of some kernels."""
    return [
        f"kernels/{name}.{suffix}"
        for name in sorted(names)
        for suffix in ("cu", "yaml")
    ]


def build_files(suffix, architectures):
    """The records (`parquet`) or the machine code (`cubin`) of every build for some architectures."""
    return [
        f"results/build/{build.architecture}/{build.kernel}/{slug(json.loads(build.params))}.{suffix}"
        for build in BUILDS
        if build.architecture in architectures
    ]


EMULATING = SETTINGS.emulator.use == "always" or (
    SETTINGS.emulator.use == "auto" and not GPU
)
EMULATED = SETTINGS.emulated_sets(KERNELS) if EMULATING else []


def emulated_table():
    """The emulator's table, where it has something to run."""
    return ["results/emulated/counters.parquet"] if EMULATED else []


def profiled_tables():
    """The profiler's table, where a GPU measures."""
    profiling = GPU and SETTINGS.profile.use != "never"
    return ["results/{device}/hardware.parquet"] if profiling else []


def figure_record(wildcards):
    """What the index of the figures says of one: `snakemake --report` asks when all are drawn."""
    index = Path(f"results/{wildcards.device}/figures/figures.json")
    records = json.loads(index.read_text()) if index.is_file() else []
    return next(
        (record for record in records if record["name"] == wildcards.figure), {}
    )


def topic_of_figure(wildcards):
    return figure_record(wildcards).get("topic", "figures").capitalize()


def labels_of_figure(wildcards):
    title = figure_record(wildcards).get("title", wildcards.figure)
    return {"figure": title, "GPU": wildcards.device}


def drawing_code():
    """Sources of the figures: tables that are drawn otherwise now are drawn again."""
    package = WORKFLOW / "ladder"
    return [
        *sorted((package / "figures").glob("*.py")),
        *[package / f"{name}.py" for name in ("model", "traffic")],
    ]
