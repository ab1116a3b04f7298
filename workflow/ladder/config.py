"""`config/config.yaml`: what to sweep, how to measure, for which GPUs.

The pydantic models below are the one definition; `workflow/schemas/config.schema.json` is generated
from them (`python -m ladder schema`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from .documents import Document, Key, UserError, parse, read_yaml, suggestion
from .language import Language
from .manifest import Kernel, Sweep, compute_capability, expand, load_all, parameter_fault

Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
Shape = Annotated[list[Size], Field(min_length=3, max_length=3)]
Side = Annotated[int, Field(ge=16, le=16384)]
CacheMode = Literal["rotating", "hot", "cold"]
Distribution = Literal["uniform", "positive", "wide"]


class Sizes(Document):
    """The matrix sizes, C (M x N) = A (M x K) * B (K x N)."""

    square: list[Size] = []
    """N for M = N = K = N."""
    shapes: list[Shape] = []
    """Rectangular sizes, each [M, N, K]."""

    @model_validator(mode="after")
    def _some_and_once(self) -> Self:
        shapes = self.all()
        if not shapes:
            raise ValueError("no size given; list at least one under `square` or `shapes`")
        for shape in shapes:
            if shapes.count(shape) > 1:
                raise ValueError(f"the size {list(shape)} appears twice")
        return self

    def all(self) -> list[tuple[int, int, int]]:
        """Every (M, N, K)."""
        rectangular = [(m, n, k) for m, n, k in self.shapes]
        return [(n, n, n) for n in self.square] + rectangular


class KernelChoice(Document):
    """Which parameter sets and sizes of a kernel to run."""

    sweep: Literal["default"] | Sweep = "default"
    """`default` for the manifest's own sweep, lists to combine, or the exact sets."""
    smallest: Size | None = None
    """Leave out sizes in which M, N or K is smaller."""
    largest: Size | None = None
    """Skip sizes in which M, N or K is larger than this."""
    shapes: bool = True
    """False: only square sizes."""
    emulate: bool = True
    """False: not run on the CPU, where the emulator is used."""


class CacheModes(Document):
    """Square sizes measured a second time with the cache in a stated condition.

    Every size is measured with rotating buffers; these come on top.
    """

    hot: list[Size] = []
    """One set of buffers, so that what fits stays in L2."""
    cold: list[Size] = []
    """L2 cleared before each launch."""


class Protocol(Document):
    """Constants of the measurement; see `config/README.md` for what each guards against."""

    rounds: Annotated[int, Field(ge=1, le=20)] = 2
    """Visits to every point, each in a new random order."""
    seed: Annotated[int, Field(ge=0)] = 20250
    """Seed of the order of the points."""
    settle_s: Annotated[float, Field(ge=0, le=60)] = 3.0
    """Load on the GPU before the first point, until its clock settles, seconds."""
    warmup_ms: Annotated[float, Field(ge=0, le=10_000)] = 200.0
    """Warm-up at the first visit, milliseconds (5 launches at least); later ones: a quarter."""
    sample_us: Annotated[float, Field(ge=200, le=1_000_000)] = 1000.0
    """Shortest sample, microseconds; short kernels are launched repeatedly to fill it."""
    minimum_samples: Annotated[int, Field(ge=5, le=1000)] = 30
    """Samples per point, at least, over all rounds."""
    minimum_total_ms: Annotated[float, Field(ge=0, le=60_000)] = 500.0
    """Sum of the samples per point, at least, over all rounds, milliseconds."""
    interval_pct: Annotated[float, Field(gt=0, le=10)] = 0.5
    """Wanted half-width of the median's 95 % interval, percent."""
    maximum_samples: Annotated[int, Field(ge=5, le=100_000)] = 1000
    """Samples per point, at most."""
    maximum_gpu_s: Annotated[float, Field(gt=0, le=600)] = 3.0
    """Device time per point, at most, seconds."""
    maximum_wall_s: Annotated[float, Field(gt=0, le=3600)] = 15.0
    """Wall time per point, at most, seconds."""
    sentinel_every: Annotated[int, Field(ge=1)] = 20
    """Visits between two timings of the sentinel, cuBLAS FP32 at `sentinel_size`."""
    sentinel_size: Annotated[int, Field(ge=64)] = 4096
    """N of the sentinel."""
    drift_pct: Annotated[float, Field(gt=0, le=50)] = 2.0
    """Change of the sentinel that repeats the visits since the last one, percent."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    """Silence after which the worker counts as hung, seconds."""


class ExpectedGpu(Document):
    """The GPU of another host, for a workflow that is planned where no GPU is."""

    name: str
    """As the driver reports it, such as 'NVIDIA H200'."""
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d$")]
    """Such as '9.0'."""


class Gpu(Document):
    """Which GPU measures, and what stands in for one where there is none."""

    use: Literal["auto", "required", "none"] = "auto"
    """`auto` measures if a GPU is there, `required` insists, `none` never does."""
    select: str = "first"
    """`first`, `all` (of the first one's model), an index, or a UUID as nvidia-smi prints it."""
    expect: ExpectedGpu | None = None
    """Plan for this GPU without looking for one here: the measuring job runs on another host."""
    allow_shared: bool = False
    """Measure even if other processes compute on the GPU; the rows are marked."""
    replay: str = "nvidia-h200"
    """The folder of `results/published/` that is drawn when nothing can be measured here."""


class Emulator(Document):
    """Running the kernels on the CPU: every check, and exact counts of their memory requests."""

    use: Literal["auto", "always", "never"] = "auto"
    """`auto` emulates where no GPU measures; `always` does so beside one, too."""
    sizes: list[Shape] = [[65, 129, 33], [256, 256, 256], [2048, 2048, 2048]]
    """[M, N, K]; large grids are sampled, small ones run whole."""
    most_fma: Annotated[int, Field(ge=1)] = 150_000_000
    """Leave out a size if the blocks to run make more multiply-adds: a second or two of a core."""


class Tune(Document):
    """Searching kernels' declared spaces for the fastest parameters (`ladder tune`)."""

    kernels: list[str] = []
    """Kernels that the target `tune` searches; if empty, the configured ones with a space."""
    sizes: Annotated[list[Shape], Field(min_length=1)] = [[4096, 4096, 4096]]
    """[M, N, K] to tune for, each on its own."""
    budget: Annotated[int, Field(ge=1, le=10_000)] = 60
    """Sets to try at a size, at most; a space of no more is tried out."""


class Profile(Document):
    """Reading hardware counters with Nsight Compute, of some of the points that were measured."""

    use: Literal["auto", "required", "never"] = "auto"
    """`auto` profiles where a GPU measures, and says why where it cannot; `required` then fails."""
    sizes: list[Shape] = [[256, 256, 256], [2048, 2048, 2048], [4096, 4096, 4096]]
    """[M, N, K]; those among them that are measured are profiled."""
    every_set: list[str] = []
    """Kernels of which every parameter set is profiled; of the others the fastest at each size."""
    timeout_s: Annotated[float, Field(gt=0, le=7200)] = 600.0
    """Silence after which the profiler counts as hung, seconds; a point is one silence."""


class Accuracy(Document):
    """Errors by distribution of the inputs and K, and special values, of every kernel once."""

    use: Literal["auto", "never"] = "auto"
    """`auto` does so where a GPU measures."""
    kernels: list[str] = []
    """Whose results are looked at; if empty, those of every configured kernel."""
    distributions: Annotated[list[Distribution], Field(min_length=1)] = [
        "uniform",
        "positive",
        "wide",
    ]
    """`uniform` is U[-1, 1), `positive` U[0, 1), `wide` has magnitudes from 2^-20 to 2^20."""
    sides: Annotated[list[Side], Field(min_length=1)] = [256, 1024, 2048]
    """M = N."""
    depths: Annotated[list[Size], Field(min_length=1)] = [256, 1024, 4096, 16384]
    """K."""

    @model_validator(mode="after")
    def _once(self) -> Self:
        for name in ("kernels", "distributions", "sides", "depths"):
            values = getattr(self, name)
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise ValueError(f"{name}: {twice} appears twice")
        return self


class Figures(Document):
    """How figures look; what they show is not a matter of style."""

    palette: Literal["okabe-ito", "tol-bright", "grey"] = "okabe-ito"
    """Colours of the kernels; markers and dashes tell them apart in any of these."""
    font: str = "DejaVu Sans"
    """An installed font family; the default comes with matplotlib and looks alike everywhere."""
    font_size_pt: Annotated[float, Field(ge=6, le=10)] = 7.5
    """Size of labels, points; smaller and larger words keep their proportion to it."""
    single_column_in: Annotated[float, Field(ge=3, lt=5)] = 3.5
    """Width of the figures for one column, inches."""
    double_column_in: Annotated[float, Field(ge=5, le=12)] = 7.2
    """Width of the figures for two columns, inches."""
    formats: Annotated[list[Literal["svg", "pdf", "png"]], Field(min_length=1)] = [
        "svg",
        "pdf",
        "png",
    ]
    """Files of each figure; the report shows the SVG."""
    png_dpi: Annotated[int, Field(ge=72, le=1200)] = 300
    """Resolution of PNG files, dots per inch."""
    grid: bool = True
    """Whether grid lines are drawn."""

    @model_validator(mode="after")
    def _svg_for_the_report(self) -> Self:
        if "svg" not in self.formats:
            raise ValueError("formats: `svg` is missing, which the report shows")
        return self


class Report(Document):
    """How the report is written."""

    language: Language = "en"
    """`en` or `zh` (simplified Chinese); numbers, tables and figures are the same."""


class Config(Document):
    """`config/config.yaml`."""

    sizes: Sizes
    """The matrix sizes."""
    kernels: Annotated[dict[str, KernelChoice], Field(min_length=1)]
    """Kernels by name, in the order in which figures list them."""
    cache_modes: CacheModes = CacheModes()
    """Extra points with a hot or a cold cache."""
    protocol: Protocol = Protocol()
    """Constants of the measurement."""
    architectures: Annotated[list[str], Field(min_length=1)] = ["sm_90a", "sm_120"]
    """Compiled for in any case; the GPU at hand comes on top."""
    gpu: Gpu = Gpu()
    """Choice of the GPU."""
    emulator: Emulator = Emulator()
    """What runs on the CPU."""
    tune: Tune = Tune()
    """Which parameters are searched."""
    profile: Profile = Profile()
    """Whose hardware counters are read."""
    accuracy: Accuracy = Accuracy()
    """Whose errors are looked at, on what inputs."""
    figures: Figures = Figures()
    """How figures look."""
    report: Report = Report()
    """How the report is written."""

    @model_validator(mode="after")
    def _known_architectures(self) -> Self:
        for architecture in self.architectures:
            try:
                compute_capability(architecture)
            except UserError as error:
                raise ValueError(f"architectures: {error}") from None
        return self

    def digest(self) -> str:
        """Short hash of the resolved configuration, but for how figures and report look."""
        settings = self.model_dump(mode="json", exclude={"figures", "report"})
        text = json.dumps(settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def parameter_sets(self, kernel: Kernel) -> list[dict[str, int]]:
        """The parameter sets to run of one kernel, without repeats."""
        sweep = self.kernels[kernel.name].sweep
        sets = list(expand(kernel.manifest.sweep if sweep == "default" else sweep))
        return [params for index, params in enumerate(sets) if params not in sets[:index]]

    def emulated_sets(self, kernels: Mapping[str, Kernel]) -> list[tuple[Kernel, dict[str, int]]]:
        """Every kernel and parameter set that the emulator is to run, in the kernels' order."""
        return [
            (kernel, params)
            for name, kernel in kernels.items()
            if kernel.needs_build and kernel.manifest.emulator and self.kernels[name].emulate
            for params in self.parameter_sets(kernel)
            if kernel.violated_constraint(params) is None
        ]


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`overlay` over `base`, mapping by mapping, as Snakemake merges its configuration files."""
    merged = dict(base)
    for key, value in overlay.items():
        old = merged.get(key)
        both_mappings = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(old, value) if both_mappings else value  # type: ignore[arg-type]
    return merged


def load(paths: Iterable[Path], root: Path) -> tuple[Config, dict[str, Kernel]]:
    """The configuration of one or more files (later ones win) and the kernels it names.

    Args:
        paths: configuration files.
        root: project root, which holds `kernels/`.

    Raises:
        UserError: naming file, line and key, and what would be right.
    """
    data: dict[str, Any] = {}
    lines: dict[Key, int] = {}
    names = []
    for path in paths:
        overlay, lines = read_yaml(path)
        data = merge(data, overlay)
        names.append(str(path))
    if len(names) != 1:
        lines = {}  # a merged value may come from any of the files
    return resolve(data, root, name=" + ".join(names), lines=lines)


def resolve(
    data: Mapping[str, Any], root: Path, *, name: str, lines: Mapping[Key, int] | None = None
) -> tuple[Config, dict[str, Kernel]]:
    """Validate a configuration against its schema and against the kernels it names.

    Raises:
        UserError: naming file, line and key, and what would be right.
    """
    lines = lines or {}
    config = parse(Config, data, name=name, lines=lines)
    known = load_all(root / "kernels")
    faults = []
    for kernel_name, choice in config.kernels.items():
        at = lines.get(("kernels", kernel_name))
        where = f"{name}:{at}: kernels.{kernel_name}" if at else f"{name}: kernels.{kernel_name}"
        if kernel_name not in known:
            missing = f"no kernels/{kernel_name}.yaml; {suggestion(kernel_name, list(known))}"
            faults.append(f"{where}: {missing}")
            continue
        if choice.sweep == "default":
            continue
        for params in expand(choice.sweep):
            fault = parameter_fault(known[kernel_name].manifest, params)
            if fault:
                faults.append(f"{where}.sweep: {fault}")
                break
    named = {
        ("tune", "kernels"): config.tune.kernels,
        ("profile", "every_set"): config.profile.every_set,
    }
    for (section, key), names in named.items():
        for index, kernel_name in enumerate(names):
            if kernel_name not in known:
                at = lines.get((section, key, index))
                where = f"{name}:{at}" if at else name
                missing = f"no kernels/{kernel_name}.yaml; {suggestion(kernel_name, list(known))}"
                faults.append(f"{where}: {section}.{key}[{index}]: {missing}")
    for index, kernel_name in enumerate(config.accuracy.kernels):
        if kernel_name not in config.kernels:
            at = lines.get(("accuracy", "kernels", index))
            where = f"{name}:{at}" if at else name
            missing = f"{kernel_name!r} is not under `kernels` of this configuration"
            missing += f"; {suggestion(kernel_name, list(config.kernels))}"
            faults.append(f"{where}: accuracy.kernels[{index}]: {missing}")
    if faults:
        raise UserError("\n".join(faults))
    return config, {kernel_name: known[kernel_name] for kernel_name in config.kernels}


def dump(config: Config) -> str:
    """The resolved configuration as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def json_schema() -> str:
    """The JSON schema of `config/config.yaml`."""
    return json.dumps(Config.model_json_schema(), indent=2) + "\n"
