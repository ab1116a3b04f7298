"""A kernel's manifest: what `kernels/NN_name.yaml` says about `kernels/NN_name.cu`.

A manifest states parameters, constraints, launch geometry and theory as data, so that planning,
compiling, measuring and emulating need no code of any one kernel.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .closed_forms import CLOSED_FORMS, LAUNCH_NAMES
from .documents import Document, UserError, dotted, read, suggestion
from .expressions import ExpressionError, Number, evaluate, names_in

Params = Mapping[str, int]
Expression = str | int
SHAPE_NAMES = ("M", "N", "K")
SELECTED = "RUNG"
"""Among the parameters of a kernel of the kind `selected`: the number of the kernel that runs."""
ENTRY_POINT = "gemm"
CLUSTERS_AND_TENSOR_MAPS_SINCE = (9, 0)
"""The first compute capability that has either."""
_ARCHITECTURE = re.compile(r"^sm_(\d+)(\d)([af]?)$")
_SLUG_ITEM = re.compile(r"([A-Z][A-Z0-9_]*)=(-?\d+)", re.ASCII)

PositiveInt = Annotated[int, Field(ge=1)]


class Parameter(Document):
    """One compile-time macro of a kernel."""

    description: str
    """What the parameter means, with its unit."""
    values: list[int] | None = None
    """The allowed values, if they are a list."""
    minimum: int = 1
    """Smallest allowed value."""
    maximum: int | None = None
    """Largest allowed value."""
    multiple_of: PositiveInt = 1
    """The value must be a multiple of this."""

    def violation(self, value: int) -> str | None:
        """What is wrong with `value`, in words that say what would be right; None if allowed."""
        if self.values is not None:
            return None if value in self.values else f"must be one of {self.values}"
        if value < self.minimum:
            return f"must be at least {self.minimum}"
        if self.maximum is not None and value > self.maximum:
            return f"must be at most {self.maximum}"
        if value % self.multiple_of:
            return f"must be a multiple of {self.multiple_of}"
        return None


class Requirement(Document):
    """A condition and the sentence a user reads when it does not hold."""

    require: str
    """Expression that must be true."""
    message: str
    """Why, in words; may name parameters in braces, as in ``{TILE}``."""


class ConditionalForms(Requirement):
    """Closed forms that are exact where a condition holds, and say nothing elsewhere."""

    terms: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], Expression] = {}
    """Names for what several of the forms share, each in terms of those before it."""
    forms: Annotated[dict[str, Expression], Field(min_length=1)]
    """Closed forms by name, in M, N, K, the parameters, `blocks` of the grid, `threads` of a block,
    `theory`, the terms, and the forms before."""


Extents = Annotated[list[Expression], Field(min_length=1, max_length=3)]
Box = Annotated[list[Expression], Field(min_length=2, max_length=2)]


class KernelLaunch(Document):
    """What every launch of a kernel with a source states, as expressions."""

    block: Extents
    """Threads per block along x, y, z."""
    grid: Extents
    """Blocks along x, y, z."""
    dynamic_shared_memory_bytes: Expression = 0
    """Dynamic shared memory per block, bytes."""
    scratch_bytes: Expression | None = None
    """Device memory that the blocks leave partial results in: gemm takes it as a pointer after C.
    It is zero before the first launch, and every launch must leave its flags as it found them."""

    def parameter_expressions(self) -> dict[str, Expression]:
        """The expressions that may name parameters alone, by dotted key below `launch`."""
        lists = {name: getattr(self, name, None) for name in ("block", "cluster", "a_box", "b_box")}
        shifts = getattr(self, "f16_shifts", None)
        return (
            {
                f"{name}[{index}]": text
                for name, texts in lists.items()
                for index, text in enumerate(texts or [])
            }
            | {"dynamic_shared_memory_bytes": self.dynamic_shared_memory_bytes}
            | ({} if shifts is None else {"f16_shifts": shifts})
        )

    def size_expressions(self) -> dict[str, Expression]:
        """The expressions that may name M, N and K too, by dotted key below `launch`."""
        scratch = {} if self.scratch_bytes is None else {"scratch_bytes": self.scratch_bytes}
        return {f"grid[{index}]": text for index, text in enumerate(self.grid)} | scratch


SwizzleName = Literal["none", "32B", "64B", "128B"]
"""How a copy orders the 16-byte pieces of a tile in shared memory (`swizzle.cuh`)."""


class CudaLaunch(KernelLaunch):
    """An ordinary CUDA launch: gemm(A, B, C, M, N, K)."""

    kind: Literal["cuda"] = "cuda"


class ClusterLaunch(KernelLaunch):
    """The same with blocks in clusters that share their shared memory."""

    kind: Literal["cluster"]
    cluster: Extents
    """Blocks per cluster along x, y, z; they divide the grid."""


class TensorMapsLaunch(KernelLaunch):
    """gemm(a_tiles, b_tiles, C, M, N, K): A and B come as tensor maps, which the launch prepares.

    What the launch does for any M, N, K before the kernel runs is told in `tensor_maps`.
    """

    kind: Literal["tensor_maps"]
    cluster: Extents | None = None
    """Blocks per cluster along x, y, z; they divide the grid."""
    a_box: Box
    """Columns and rows of A (of its transpose, with `transpose_a`) that one copy brings."""
    b_box: Box
    """Columns and rows of B that one copy brings."""
    a_swizzle: SwizzleName = "none"
    """Of the tiles of A; rows of a swizzled tile are as long as the swizzle is wide."""
    b_swizzle: SwizzleName = "none"
    """Of the tiles of B."""
    transpose_a: bool = False
    """Whether the map of A covers its transpose, K x M, which the launch writes first."""
    split_f16: bool = False
    """Whether the maps cover A and B each as two matrices of FP16, which the launch writes first:
    gemm(a_tiles, b_tiles, C, A, B, a_lines, b_lines, M, N, K), as `prepare_f16.cuh` tells. Boxes
    count pairs of FP16 elements."""
    f16_shifts: Expression | None = None
    """Whether (not 0) the launch first finds the powers of two that bring tiles of A and B to the
    range of FP16: gemm(a_tiles, b_tiles, C, a_shifts, b_shifts, M, N, K), as `prepare_shifts.cuh`
    tells; null pointers where it is 0."""

    @model_validator(mode="after")
    def _check_copies(self) -> Self:
        if self.split_f16 and self.transpose_a:
            raise ValueError("split_f16: not together with transpose_a")
        if self.f16_shifts is not None and (self.split_f16 or self.transpose_a):
            raise ValueError("f16_shifts: not together with split_f16 or transpose_a")
        return self


class CublasLaunch(Document):
    """A cuBLAS GEMM, the baseline; it has no source and no parameters."""

    kind: Literal["cublas"]
    compute: Literal["fp32_pedantic", "tf32"]
    """`fp32_pedantic` refuses TF32; `tf32` asks for it."""


class Choice(Document):
    """A kernel and its parameters."""

    kernel: str
    """Its name, as in 11_raster."""
    params: dict[str, int]
    """A value for each of its parameters."""


class SelectedLaunch(Document):
    """No kernel of its own: what `selection` chooses of other kernels."""

    kind: Literal["selected"]
    candidates: Annotated[list[str], Field(min_length=1)]
    """Kernels to choose from, by name; each begins with a number of its own."""
    fallback: Choice
    """What runs where nothing was tuned yet."""


Sweep = (
    dict[str, Annotated[list[int], Field(min_length=1)]]
    | Annotated[list[dict[str, int]], Field(min_length=1)]
)
"""Either lists to combine (cartesian product) or the exact parameter sets."""


Family = Literal["fp32", "tensor"]
FAMILIES: dict[Family, str] = {"fp32": "FP32 units", "tensor": "tensor-core FP32"}
"""The ladders by name: a kernel is ranked and compared with those of its own family alone."""


class TensorCores(Document):
    """How a kernel multiplies on the tensor cores: what bounds it there."""

    inputs: Literal["tf32", "fp16"]
    """Type of the factors; sums are FP32. FP16 runs at twice the rate of TF32."""
    products: PositiveInt | str
    """Products of this type for each multiplication of A and B: 3 where both are split. An
    expression where it depends on the parameters."""

    def products_of(self, params: Mapping[str, int]) -> int:
        """The number of products of one parameter set.

        Raises:
            ExpressionError: if that is no whole number from 1 up.
        """
        products = _whole(self.products, params)
        if products < 1:
            raise ExpressionError(f"{self.products!r} gives {products}; at least 1 is needed")
        return products


class Manifest(Document):
    """`kernels/NN_name.yaml`."""

    title: str
    """Name in figures and tables."""
    idea: str
    """The one idea of this rung, in a sentence."""
    family: Family = "fp32"
    """The ladder it belongs to: `fp32`, the FP32 units, or `tensor`, the tensor cores."""
    tensor_cores: TensorCores | None = None
    """What it asks of the tensor cores; the family `tensor` says it, and no other."""
    parameters: dict[Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")], Parameter] = {}
    """Compile-time macros by name."""
    sweep: Sweep = {}
    """The default parameter sets: lists to combine, or the exact sets."""
    tune: dict[str, Annotated[list[int], Field(min_length=1)]] = {}
    """The space that `ladder tune` searches: values of every parameter, neighbours side by side."""
    constraints: list[Requirement] = []
    """Conditions on the parameters; a set that violates one is a row, not a build."""
    preconditions: list[Requirement] = []
    """Conditions on M, N, K (and parameters); a size that violates one is refused."""
    suited: list[Requirement] = []
    """The sizes that a parameter set is meant for; it runs at others too."""
    launch: Annotated[
        CudaLaunch | ClusterLaunch | TensorMapsLaunch | CublasLaunch | SelectedLaunch,
        Field(discriminator="kind"),
    ]
    """How the kernel is launched."""
    minimum_compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d$")] = "7.5"
    """The oldest architecture that can run it, as in '8.0'."""
    only_architecture: Annotated[str, Field(pattern=_ARCHITECTURE.pattern)] | None = None
    """The one target that has the kernel's instructions, as in 'sm_90a'; by default any."""
    accuracy: Literal["fp32", "tf32"] = "fp32"
    """Which statistical bound the output is held to."""
    limits: str | None = None
    """Inputs for which the result is not that of FP32 arithmetic, in a sentence."""
    deterministic: bool = True
    """Whether repeated runs must give equal bits (false for atomics)."""
    index_bits: Literal[32, 64] = 32
    """Width of the kernel's element indices; 32 stops at 2^31 elements a matrix."""
    emulator: bool = True
    """Whether the CPU emulator can run it."""
    theory: dict[str, Expression] = {}
    """Closed forms that hold everywhere, by name, in M, N, K and the parameters."""
    theory_where: list[ConditionalForms] = []
    """Further ones, each group with the condition under which it is exact."""

    @model_validator(mode="after")
    def _check_expressions(self) -> Self:
        parameters = set(self.parameters)
        both = parameters | set(SHAPE_NAMES)

        def check(text: Expression, allowed: set[str], where: str) -> None:
            try:
                unknown = names_in(text) - allowed if isinstance(text, str) else frozenset()
            except ExpressionError as error:
                raise ValueError(f"{where}: {error}") from None
            if unknown:
                name = sorted(unknown)[0]
                raise ValueError(
                    f"{where}: {text!r}: unknown name {name!r}; "
                    + suggestion(name, sorted(allowed))
                )

        for index, item in enumerate(self.constraints):
            check(item.require, parameters, dotted(("constraints", index, "require")))
        for index, item in enumerate(self.preconditions):
            check(item.require, both, dotted(("preconditions", index, "require")))
        for index, item in enumerate(self.suited):
            check(item.require, both, dotted(("suited", index, "require")))
        self._check_theory(check)
        if isinstance(self.launch, KernelLaunch):
            for key, text in self.launch.parameter_expressions().items():
                check(text, parameters, f"launch.{key}")
            for key, text in self.launch.size_expressions().items():
                check(text, both, f"launch.{key}")
        elif self.parameters:
            raise ValueError(f"parameters: a launch of the kind `{self.launch.kind}` has none")
        if self.tensor_cores:
            check(self.tensor_cores.products, parameters, "tensor_cores.products")
        for params in expand(self.sweep):
            fault = parameter_fault(self, params)
            if fault:
                raise ValueError(f"sweep: {fault}")
        return self

    def _check_theory(self, check: Callable[[Expression, set[str], str], None]) -> None:
        """Names of closed forms are known, each is given once, and each uses what it may."""
        names = {*self.parameters, *SHAPE_NAMES}
        given: set[str] = set()

        def form(name: str, where: str) -> None:
            if name not in CLOSED_FORMS:
                raise ValueError(
                    f"{where}: unknown closed form; " + suggestion(name, sorted(CLOSED_FORMS))
                )
            if name in given:
                raise ValueError(f"{where}: given twice")
            given.add(name)

        for name, text in self.theory.items():
            where = dotted(("theory", name))
            form(name, where)
            check(text, names, where)
        launched = isinstance(self.launch, KernelLaunch)
        everywhere = names | set(self.theory) | set(LAUNCH_NAMES if launched else ())
        for index, group in enumerate(self.theory_where):
            known = set(everywhere)
            check(group.require, known, dotted(("theory_where", index, "require")))
            for name, text in group.terms.items():
                where = dotted(("theory_where", index, "terms", name))
                if name in known or name in CLOSED_FORMS:
                    raise ValueError(f"{where}: this name has another meaning already")
                check(text, known, where)
                known.add(name)
            for name, text in group.forms.items():
                where = dotted(("theory_where", index, "forms", name))
                form(name, where)
                check(text, known, where)
                known.add(name)

    @model_validator(mode="after")
    def _check_family(self) -> Self:
        if self.family == "tensor" and self.tensor_cores is None:
            raise ValueError(
                "family: `tensor` needs the key tensor_cores, what the kernel asks of the tensor "
                "cores, as in {inputs: tf32, products: 3}"
            )
        if self.family != "tensor" and self.tensor_cores is not None:
            raise ValueError("tensor_cores: only for kernels with `family: tensor`")
        return self

    @model_validator(mode="after")
    def _check_space(self) -> Self:
        for name, values in self.tune.items():
            for value in values:
                fault = parameter_fault(self, {name: value}, complete=False)
                if fault:
                    raise ValueError(f"tune: {fault}")
            if len(set(values)) < len(values):
                raise ValueError(f"{dotted(('tune', name))}: a value appears twice in {values}")
        missing = sorted(set(self.parameters) - set(self.tune))
        if self.tune and missing:
            raise ValueError(f"tune: {missing[0]}: no values given; every parameter needs some")
        return self

    @model_validator(mode="after")
    def _check_capability(self) -> Self:
        named = self.minimum_compute_capability
        hopper = isinstance(self.launch, ClusterLaunch | TensorMapsLaunch)
        if hopper and tuple(map(int, named.split("."))) < CLUSTERS_AND_TENSOR_MAPS_SINCE:
            raise ValueError(
                f"minimum_compute_capability: {named!r} is too old for launches of the kind "
                f"`{self.launch.kind}`; write '9.0' or newer"
            )
        return self


@dataclass(frozen=True)
class TensorMaps:
    """Evaluated tiles of the kind `tensor_maps`: (columns, rows) that one copy brings, and more."""

    a_box: tuple[int, int]
    b_box: tuple[int, int]
    transpose_a: bool
    a_swizzle: SwizzleName = "none"
    b_swizzle: SwizzleName = "none"
    split_f16: bool = False
    f16_shifts: bool | None = None
    """None for a kernel that takes no pointers to them."""


@dataclass(frozen=True)
class Launch:
    """Evaluated launch geometry: blocks, threads and dynamic shared memory (bytes)."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_memory_bytes: int
    cluster: tuple[int, int, int] | None = None
    """Blocks per cluster; None for blocks on their own."""
    tensor_maps: TensorMaps | None = None
    """None for a kernel that takes pointers to A and B."""
    scratch_bytes: int | None = None
    """Device memory of the kernel's own, bytes; None for a kernel that takes no pointer to it."""

    @property
    def threads(self) -> int:
        """Threads per block."""
        return math.prod(self.block)

    @property
    def cluster_blocks(self) -> int:
        """Blocks per cluster."""
        return math.prod(self.cluster or ())


@dataclass(frozen=True)
class Kernel:
    """A manifest with the names and the source that belong to it."""

    name: str
    manifest: Manifest
    manifest_path: Path
    source_path: Path | None
    """None for baselines and for a kernel that selects others: they have no source."""
    candidates: Mapping[int, Kernel] = field(default_factory=dict)
    """By number: the kernels that one of the kind `selected` chooses from."""

    @property
    def needs_build(self) -> bool:
        return self.source_path is not None

    def resolve(self, params: Params) -> tuple[Kernel, Params]:
        """The kernel and the parameters that run: its own, or those that it has selected."""
        if not self.candidates:
            return self, params
        own = {name: value for name, value in params.items() if name != SELECTED}
        return self.candidates[params[SELECTED]], own

    def source_sha256(self) -> str | None:
        """Hash of the code of the source and of the shared headers in it; None without a source.

        Comments and white space do not count: editing a comment changes no result.
        """
        if self.source_path is None:
            return None
        digest = hashlib.sha256()
        for path in (self.source_path, *included_headers(self.source_path)):
            digest.update(_code(path.read_text(encoding="utf-8")).encode())
            digest.update(b"\0")
        return digest.hexdigest()

    def launch(self, params: Params, m: int, n: int, k: int) -> Launch | None:
        """Grid, block and shared memory for one point; None for baselines.

        Raises:
            ExpressionError: if an expression does not give a whole number.
        """
        spec = self.manifest.launch
        if not isinstance(spec, KernelLaunch):
            return None
        names = {**params, "M": m, "N": n, "K": k}
        cluster = getattr(spec, "cluster", None)
        return Launch(
            grid=_three(spec.grid, names),
            block=_three(spec.block, names),
            dynamic_shared_memory_bytes=_whole(spec.dynamic_shared_memory_bytes, names),
            cluster=_three(cluster, names) if cluster else None,
            tensor_maps=_tensor_maps(spec, names) if isinstance(spec, TensorMapsLaunch) else None,
            scratch_bytes=None if spec.scratch_bytes is None else _whole(spec.scratch_bytes, names),
        )

    def violated_constraint(self, params: Params) -> str | None:
        """The message of the first constraint that `params` violate."""
        return first_violation(self.manifest.constraints, params)

    def violated_precondition(self, params: Params, m: int, n: int, k: int) -> str | None:
        """The message of the first precondition that the size violates."""
        return first_violation(self.manifest.preconditions, {**params, "M": m, "N": n, "K": k})

    def sized_parameters(self) -> list[str]:
        """The parameters that decide for which sizes a set is meant, as the manifest lists them."""
        named = {name for item in self.manifest.suited for name in names_in(item.require)}
        return [name for name in self.manifest.parameters if name in named]

    def unsuited(self, params: Params, m: int, n: int, k: int) -> str | None:
        """Why a parameter set is not meant for a size that it can run; None if it is."""
        return first_violation(self.manifest.suited, {**params, "M": m, "N": n, "K": k})


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def included_headers(source: Path) -> list[Path]:
    """The headers of `include/` that a source includes, directly or through another, sorted.

    A directive in a comment or behind a condition counts too: one header too many only measures
    anew, one too few would keep a stale result.
    """
    folder = source.parent / "include"
    found: set[Path] = set()
    unread = [source]
    while unread:
        for name in _INCLUDE.findall(unread.pop().read_text(encoding="utf-8")):
            header = folder / name
            if header.is_file() and header not in found:
                found.add(header)
                unread.append(header)
    return sorted(found)


_LITERAL_OR_GAP = re.compile(
    r"""
      (?P<literal> R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"   # raw string
                 | "(?:\\.|[^"\\\n])*" | '(?:\\[^'\n]+|\\'|[^'\\\n])' )
    | (?P<gap> (?: \s | \\\n | //(?:\\\n|[^\n])* | /\*.*?\*/ )+ )
    """,
    re.DOTALL | re.VERBOSE,
)
_NO_LINE_END = re.compile(r"\\\n|/\*.*?\*/", re.DOTALL)


def _code(source: str) -> str:
    """CUDA C++ without comments; white space that means nothing is one space.

    A line end counts only where it ends a preprocessor directive or precedes one.
    """
    code = ""
    position = 0
    for match in _LITERAL_OR_GAP.finditer(source):
        code += source[position : match.start()] + (match["literal"] or "")
        position = match.end()
        if match["gap"]:
            directive = code.rpartition("\n")[2].startswith("#") or source[position:][:1] == "#"
            ends_line = directive and "\n" in _NO_LINE_END.sub(" ", match["gap"])
            code += "\n" if ends_line else " "
    return (code + source[position:]).strip()


def _three(expressions: list[Expression], names: Mapping[str, int]) -> tuple[int, int, int]:
    values = [_whole(text, names) for text in expressions]
    x, y, z = values + [1] * (3 - len(values))
    return x, y, z


def _tensor_maps(spec: TensorMapsLaunch, names: Mapping[str, int]) -> TensorMaps:
    (a_columns, a_rows), (b_columns, b_rows) = (
        [_whole(text, names) for text in box] for box in (spec.a_box, spec.b_box)
    )
    return TensorMaps(
        (a_columns, a_rows),
        (b_columns, b_rows),
        spec.transpose_a,
        spec.a_swizzle,
        spec.b_swizzle,
        spec.split_f16,
        None if spec.f16_shifts is None else bool(evaluate(spec.f16_shifts, names)),
    )


def _whole(text: Expression, names: Mapping[str, int]) -> int:
    value = evaluate(text, names)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ExpressionError(
            f"{text!r} gives {value!r}; a whole number is needed (use // or cdiv)"
        )
    return value


def first_violation(requirements: Iterable[Requirement], names: Mapping[str, Number]) -> str | None:
    """The message of the first requirement that does not hold, with the condition; None if all do.

    Raises:
        ExpressionError: if one cannot be evaluated.
    """
    for item in requirements:
        if not evaluate(item.require, names):
            message = item.message.format_map(_Named(names))
            return f"{message} (requires {item.require})"
    return None


class _Named(dict):  # type: ignore[type-arg]
    """For `str.format_map`: braces around anything but a known name stay as they are."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


def parameter_fault(manifest: Manifest, params: Params, *, complete: bool = True) -> str | None:
    """What is wrong with a parameter set's names or values; None if nothing.

    Args:
        complete: whether every parameter must have a value.
    """
    known = sorted(manifest.parameters)
    for name, value in params.items():
        if name not in manifest.parameters:
            return f"{name}: unknown parameter; " + (
                suggestion(name, known) if known else "this kernel has none"
            )
        violation = manifest.parameters[name].violation(value)
        if violation:
            return f"{name}: {violation}; found {value}"
    missing = [name for name in known if name not in params]
    if missing and complete:
        return f"{missing[0]}: no value given; every set needs {', '.join(known)}"
    return None


def expand(sweep: Sweep) -> Iterator[dict[str, int]]:
    """The parameter sets of a sweep, in the order written; names sorted inside each set."""
    if isinstance(sweep, list):
        sets: Iterator[dict[str, int]] = iter(sweep)
    else:
        combinations = itertools.product(*sweep.values())
        sets = (dict(zip(sweep, values, strict=True)) for values in combinations)
    for params in sets:
        yield dict(sorted(params.items()))


def canonical(params: Params) -> str:
    """Canonical JSON of a parameter set, the `params` column of every table."""
    return json.dumps(dict(sorted(params.items())), separators=(",", ":"))


def slug(params: Params) -> str:
    """A parameter set as a file name: ``BLOCK_X=16,BLOCK_Y=16``, or ``default`` for none."""
    return ",".join(f"{name}={value}" for name, value in sorted(params.items())) or "default"


def parse_slug(text: str) -> dict[str, int]:
    """The inverse of `slug`.

    Raises:
        UserError: if the text is not of that form.
    """
    if text == "default":
        return {}
    items = [_SLUG_ITEM.fullmatch(item) for item in text.split(",")]
    if not all(items):
        raise UserError(f"{text!r} is no parameter set; write it as BLOCK_X=16,BLOCK_Y=16")
    return {item[1]: int(item[2]) for item in items if item}


def compute_capability(architecture: str) -> tuple[int, int]:
    """``sm_90a`` as (9, 0).

    Raises:
        UserError: if the name does not look like an architecture.
    """
    match = _ARCHITECTURE.fullmatch(architecture)
    if match is None:
        raise UserError(f"{architecture!r} is not an architecture; write it as sm_90a or sm_120")
    return int(match[1]), int(match[2])


def load(manifest_path: Path) -> Kernel:
    """One kernel from its manifest.

    Raises:
        UserError: if the manifest is wrong or the source beside it is missing.
    """
    manifest = read(Manifest, manifest_path)
    source = manifest_path.with_suffix(".cu")
    if isinstance(manifest.launch, KernelLaunch):
        if not source.is_file():
            raise UserError(f"{manifest_path}: its source {source} does not exist")
        return Kernel(manifest_path.stem, manifest, manifest_path, source)
    return Kernel(manifest_path.stem, manifest, manifest_path, None)


def number_of(name: str) -> int | None:
    """The number that a kernel's name begins with: 11 of 11_raster."""
    match = re.match(r"(\d+)_", name)
    return int(match[1]) if match else None


def _with_candidates(kernel: Kernel, kernels: Mapping[str, Kernel]) -> Kernel:
    """A kernel of the kind `selected` with the kernels that it names; any other as it is.

    Raises:
        UserError: if it names one that it cannot run.
    """
    launch = kernel.manifest.launch
    if not isinstance(launch, SelectedLaunch):
        return kernel
    where = f"{kernel.manifest_path}: launch"
    candidates: dict[int, Kernel] = {}
    for index, name in enumerate(launch.candidates):
        known = [other for other in kernels if kernels[other].needs_build]
        if name not in known:
            raise UserError(
                f"{where}.candidates[{index}]: no kernel {name!r} with a source; "
                + suggestion(name, known)
            )
        number = number_of(name)
        if number is None or number in candidates:
            raise UserError(
                f"{where}.candidates[{index}]: {name!r}: the name must begin with a number that no "
                "other candidate has, as in 11_raster"
            )
        candidates[number] = kernels[name]
        family = kernels[name].manifest.family
        if family != kernel.manifest.family:
            raise UserError(
                f"{where}.candidates[{index}]: {name!r} is of the family `{family}`, this "
                f"kernel of `{kernel.manifest.family}`; they are never ranked together"
            )
    fallback = launch.fallback
    if fallback.kernel not in launch.candidates:
        raise UserError(
            f"{where}.fallback.kernel: {fallback.kernel!r} is none of the candidates; "
            + suggestion(fallback.kernel, launch.candidates)
        )
    fault = parameter_fault(kernels[fallback.kernel].manifest, fallback.params)
    if fault:
        raise UserError(f"{where}.fallback.params: {fault}")
    return replace(kernel, candidates=candidates)


def load_all(folder: Path) -> dict[str, Kernel]:
    """Every kernel of a folder by name, sorted.

    Raises:
        UserError: if a manifest is wrong, or a source has no manifest.
    """
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise UserError(f"{folder}: no kernel manifests (*.yaml) found")
    kernels = {path.stem: load(path) for path in paths}
    for source in sorted(folder.glob("*.cu")):
        if source.stem not in kernels:
            raise UserError(f"{source}: its manifest {source.with_suffix('.yaml')} does not exist")
    return {name: _with_candidates(kernel, kernels) for name, kernel in kernels.items()}
