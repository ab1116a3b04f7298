"""`config/gpus.yaml`: datasheet facts of GPUs, and the peak that follows from a clock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .documents import Document, read

Positive = Annotated[float, Field(gt=0)]
PositiveInt = Annotated[int, Field(gt=0)]
Inputs = Literal["tf32", "fp16"]
"""Type of the factors on the tensor cores; the sums are FP32."""
_TOLERANCE = 0.01
_VENDOR = re.compile(r"^(nvidia )?(geforce )?")


class Datasheet(Document):
    """What the vendor states about one GPU model."""

    name: str
    """Name in figures and tables."""
    driver_names: Annotated[list[str], Field(min_length=1)]
    """Names as the driver reports them, without "NVIDIA" or "NVIDIA GeForce" in front."""
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d$")]
    """As in '9.0'."""
    sms: PositiveInt
    """Streaming multiprocessors."""
    fp32_lanes_per_sm: PositiveInt
    """FP32 fused multiply-adds an SM starts per clock."""
    clock_mhz: Positive
    """Boost clock of the vendor's document, or the driver's maximum where it gives none, MHz."""
    fp32_tflops: Positive
    """FP32 rate of the vendor's document (not tensor cores), TFLOPS."""
    tf32_tflops: Positive | None
    """Dense TF32 rate of the tensor cores, TFLOPS; null without them."""
    memory_gb_s: Positive
    """DRAM bandwidth, 1e9 bytes per second."""
    l2_bytes: PositiveInt
    """L2 cache, bytes."""
    shared_memory_per_sm_bytes: PositiveInt
    """Shared memory of an SM, bytes."""
    shared_memory_per_block_optin_bytes: PositiveInt
    """Shared memory of one block that opts in, bytes."""
    power_w: Positive
    """Power limit as sold (TDP, TGP), watts."""
    source: Annotated[str, Field(min_length=10)]
    """The vendor's documents, with edition or date."""

    @property
    def fp32_peak_tflops(self) -> float:
        """FP32 peak computed from SMs, lanes and clock, TFLOPS."""
        return _peak_tflops(self.sms, self.fp32_lanes_per_sm, self.clock_mhz)

    def tensor_peak_tflops(self, inputs: Inputs, products: int) -> float | None:
        """Peak of a product that costs `products` products of tensor cores, TFLOPS.

        None without tensor cores that know TF32.
        """
        if self.tf32_tflops is None:
            return None
        return self.tf32_tflops * _RATE_OF_TF32[inputs] / products

    @property
    def balance_flop_per_byte(self) -> float:
        """Machine balance: FP32 peak over DRAM bandwidth, flop per byte."""
        return self.fp32_peak_tflops * 1e3 / self.memory_gb_s

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        lanes = lanes_per_sm(self.compute_capability)
        if self.fp32_lanes_per_sm != lanes:
            raise ValueError(f"fp32_lanes_per_sm must be {lanes} at {self.compute_capability}")
        if abs(self.fp32_peak_tflops / self.fp32_tflops - 1) > _TOLERANCE:
            raise ValueError(
                f"fp32_tflops: {self.sms} SMs x {lanes} lanes x 2 x {self.clock_mhz:g} MHz give "
                f"{self.fp32_peak_tflops:.1f}; found {self.fp32_tflops:g}"
            )
        return self


class _Datasheets(Document):
    gpus: list[Datasheet]

    @model_validator(mode="after")
    def _once(self) -> Self:
        names = [_normalised(name) for sheet in self.gpus for name in sheet.driver_names]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"the driver name {repeated[0]!r} appears twice")
        return self


def load(path: Path) -> list[Datasheet]:
    """Every datasheet row of `config/gpus.yaml`.

    Raises:
        UserError: naming file, line and key, also when a row's numbers contradict each other.
    """
    return read(_Datasheets, path).gpus


def lookup(gpu_name: str | None, sheets: Sequence[Datasheet]) -> Datasheet | None:
    """The row of a GPU by the name the driver reports; None if there is none.

    The whole name must agree, apart from case and "NVIDIA" or "GeForce" in front. Part of a name
    is another GPU: H200 NVL, H100 PCIe, RTX 4090 D, RTX 5080 Laptop GPU and MIG slices differ in
    SMs, clock or bandwidth from the model whose name they contain.
    """
    if gpu_name is None:
        return None
    wanted = _normalised(gpu_name)
    for sheet in sheets:
        if wanted in map(_normalised, sheet.driver_names):
            return sheet
    return None


def _normalised(name: str) -> str:
    return _VENDOR.sub("", " ".join(name.lower().split()))


def lanes_per_sm(compute_capability: str) -> int:
    """FP32 fused multiply-adds an SM starts per clock.

    64 up to compute capability 8.0, 128 from 8.6 on (CUDA C++ Programming Guide, arithmetic
    instruction throughput).

    Raises:
        ValueError: if it is not written as in '9.0', or is older than 7.0.
    """
    match = re.fullmatch(r"(\d+)\.(\d+)", compute_capability)
    if match is None:
        raise ValueError(f"{compute_capability!r} is not a compute capability; write it as '9.0'")
    version = (int(match[1]), int(match[2]))
    if version < (7, 0):
        raise ValueError(f"compute capability {compute_capability} is older than 7.0")
    return 64 if version <= (8, 0) else 128


def fp32_peak_tflops(sm_count: int, compute_capability: str, clock_mhz: float) -> float:
    """Peak of the FP32 units, TFLOPS: SMs x lanes per SM x 2 flop (one FMA) x clock.

    An RTX 5080: 84 x 128 x 2 x 2617 MHz = 56.3 TFLOPS.
    """
    return _peak_tflops(sm_count, lanes_per_sm(compute_capability), clock_mhz)


TF32_PER_FP32 = {"8.0": 8, "8.6": 2, "8.7": 2, "8.9": 2, "9.0": 8, "10.0": 16, "10.3": 16,
                 "12.0": 2, "12.1": 2}  # fmt: skip
"""By compute capability: how many times as fast as FP32 an SM multiplies TF32, at most.

From the dense TF32 and FP32 rates of the vendor's whitepapers (A100, GA102, Ada, H100, Blackwell,
RTX Blackwell). GeForce cards of 8.6, 8.9 and 12.0 reach half of this: an RTX 5080 has 56.3 TFLOPS
of either.
"""
_RATE_OF_TF32: dict[Inputs, int] = {"tf32": 1, "fp16": 2}


def slower_than_fp32(compute_capability: str, inputs: Inputs, products: int) -> str | None:
    """Why so many products of tensor cores cannot be faster than one of the FP32 units.

    None if they can, or if nothing is known of the compute capability.
    """
    ratio = TF32_PER_FP32.get(compute_capability)
    if ratio is None or ratio * _RATE_OF_TF32[inputs] >= products:
        return None
    return (
        f"slower than the FP32 units: each product of A and B costs {products} {inputs.upper()} "
        f"products, and the tensor cores of compute capability {compute_capability} make at most "
        f"{ratio * _RATE_OF_TF32[inputs]} in the time of one FP32 product"
    )


def _peak_tflops(sm_count: int, lanes: int, clock_mhz: float) -> float:
    return sm_count * lanes * 2 * clock_mhz * 1e6 / 1e12
