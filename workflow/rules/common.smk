# Everything the rules share. Decisions about what to run live in the package `ladder`.

import json
import os
import sys
from pathlib import Path

from snakemake_interface_common.exceptions import WorkflowError

WORKFLOW = Path(workflow.current_basedir).resolve().parent
ROOT = WORKFLOW.parent
sys.path.insert(0, str(WORKFLOW))
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(WORKFLOW), os.environ.get("PYTHONPATH")])
)

from ladder import config as ladder_config
from ladder.device import detect, select
from ladder.documents import UserError
from ladder.manifest import canonical, parse_slug, slug
from ladder.plan import plan_builds

# The interpreter that runs Snakemake runs the steps: a bare `python` may be another one.
LADDER = f"{sys.executable} -m ladder --root {ROOT}"


def resolve_configuration():
    """The validated configuration, its kernels, and the GPU to measure on (or None)."""
    name = " + ".join(map(str, workflow.configfiles)) or "configuration"
    settings, kernels = ladder_config.resolve(config, ROOT, name=name)
    if settings.gpu.use == "none":
        return settings, kernels, None
    gpus = detect()
    if not gpus and settings.gpu.use == "auto":
        return settings, kernels, None
    return settings, kernels, select(gpus, settings.gpu.select)[0]


try:
    SETTINGS, KERNELS, GPU = resolve_configuration()
except UserError as error:
    raise WorkflowError(str(error)) from None

# The GPU's name is part of every path, so that results of two machines never mix.
DEVICE = GPU.slug if GPU else "no-gpu"
NATIVE = GPU.architecture(SETTINGS.architectures) if GPU else None
ARCHITECTURES = sorted({*SETTINGS.architectures, *([NATIVE] if NATIVE else [])})
BUILDS = plan_builds(SETTINGS, KERNELS, ARCHITECTURES)
CONFIG_JSON = json.dumps(SETTINGS.model_dump(mode="json"), sort_keys=True)
HEADERS = sorted(str(path) for path in Path("kernels/include").glob("**/*.cuh"))

# One measuring job at a time on this host; it uses every selected GPU itself, behind a lock of its
# own. A profile's limit would be lost as soon as a user gives any --resources.
workflow.global_resources.setdefault("gpu", 1)
# Compiling takes one unit, measuring all: a compile beside a measurement would disturb its times.
workflow.global_resources.setdefault("host", 100)


wildcard_constraints:
    device=r"[a-z0-9-]+",
    kernel=r"[A-Za-z0-9_]+",
    params=r"default|[A-Z][A-Z0-9_]*=-?\d+(,[A-Z][A-Z0-9_]*=-?\d+)*",
    architecture=r"sm_\d+[af]?",


def build_records(architectures):
    """The records of every build for some architectures."""
    return [
        f"results/build/{build.architecture}/{build.kernel}/{slug(json.loads(build.params))}.parquet"
        for build in BUILDS
        if build.architecture in architectures
    ]
