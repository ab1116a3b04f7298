"""Datasheet rows, how a GPU finds its own, and the arithmetic peak."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ladder import gpus
from ladder.documents import UserError

PATH = Path(__file__).resolve().parents[1] / "config" / "gpus.yaml"
SHEETS = gpus.load(PATH)


def row(**changes: object) -> dict[str, object]:
    first = yaml.safe_load(PATH.read_text(encoding="utf-8"))["gpus"][0]
    return {**first, **changes}


def written(tmp_path: Path, *rows: dict[str, object]) -> Path:
    path = tmp_path / "gpus.yaml"
    path.write_text(yaml.safe_dump({"gpus": list(rows)}), encoding="utf-8")
    return path


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.name)
def test_every_row_is_consistent_and_says_where_it_is_from(sheet: gpus.Datasheet) -> None:
    assert sheet.fp32_peak_tflops == pytest.approx(sheet.fp32_tflops, rel=0.01)
    assert sheet.shared_memory_per_sm_bytes - sheet.shared_memory_per_block_optin_bytes == 1024
    assert "NVIDIA" in sheet.source
    assert any(year in sheet.source for year in ("2020", "2021", "2023", "2024", "2025"))


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA GeForce RTX 5080", "GeForce RTX 5080"),
        ("NVIDIA GeForce RTX 5090", "GeForce RTX 5090"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80 GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H200", "H200 SXM"),
        ("nvidia  h200", "H200 SXM"),
        ("NVIDIA B200", "B200 SXM"),
    ],
)
def test_a_gpu_finds_its_row_by_the_drivers_name(reported: str, name: str) -> None:
    sheet = gpus.lookup(reported, SHEETS)
    assert sheet is not None
    assert sheet.name == name


@pytest.mark.parametrize(
    "reported",
    [
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA GH200 480GB",
        "NVIDIA H20",
        "NVIDIA H200 MIG 1g.18gb",
        "NVIDIA GeForce RTX 5080 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA GB200",
        "Synthetic GPU",
        "",
        None,
    ],
)
def test_a_variant_or_a_stranger_gets_no_row(reported: str | None) -> None:
    assert gpus.lookup(reported, SHEETS) is None


def test_the_articles_gpu_has_the_articles_peak_and_balance() -> None:
    peak = gpus.fp32_peak_tflops(84, "12.0", 2617)
    assert peak == pytest.approx(56.28, abs=0.005)
    sheet = gpus.lookup("NVIDIA GeForce RTX 5080", SHEETS)
    assert sheet is not None
    assert sheet.balance_flop_per_byte == pytest.approx(58.625, abs=0.005)


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.name)
def test_no_listed_gpu_has_faster_tensor_cores_than_the_rule_says(sheet: gpus.Datasheet) -> None:
    """The rates hold at equal clocks; boost clocks of tensor cores may be stated lower."""
    if sheet.tf32_tflops is not None:
        ratio = sheet.tf32_tflops / sheet.fp32_tflops
        assert ratio <= gpus.TF32_PER_FP32[sheet.compute_capability] * 1.01


@pytest.mark.parametrize(
    ("capability", "inputs", "products", "slower"),
    [
        ("8.0", "tf32", 3, False),
        ("8.9", "tf32", 3, True),
        ("9.0", "tf32", 3, False),
        ("10.0", "fp16", 3, False),
        ("12.0", "tf32", 1, False),
        ("12.0", "tf32", 3, True),
        ("12.0", "fp16", 3, False),
        ("13.0", "tf32", 3, False),
    ],
)
def test_where_three_products_cost_more_than_one_of_the_fp32_units(
    capability: str, inputs: gpus.Inputs, products: int, slower: bool
) -> None:
    reason = gpus.slower_than_fp32(capability, inputs, products)
    assert (reason is not None) == slower
    if reason:
        assert f"compute capability {capability} make at most 2" in reason


def test_the_tensor_cores_of_the_articles_gpu_are_bound_below_its_fp32_units() -> None:
    sheet = gpus.lookup("NVIDIA GeForce RTX 5080", SHEETS)
    assert sheet is not None
    bound = sheet.tensor_peak_tflops("tf32", 3)
    assert bound is not None
    assert bound < 20 < sheet.fp32_tflops
    assert sheet.tensor_peak_tflops("fp16", 3) == pytest.approx(2 * bound)


def test_the_h200_reaches_66_9_tflops() -> None:
    assert gpus.fp32_peak_tflops(132, "9.0", 1980) == pytest.approx(66.9, abs=0.05)


@pytest.mark.parametrize(
    ("capability", "lanes"),
    [
        ("7.0", 64),
        ("7.5", 64),
        ("8.0", 64),
        ("8.6", 128),
        ("8.9", 128),
        ("9.0", 128),
        ("10.0", 128),
        ("10.3", 128),
        ("12.0", 128),
    ],
)
def test_lanes_per_sm(capability: str, lanes: int) -> None:
    assert gpus.lanes_per_sm(capability) == lanes


@pytest.mark.parametrize("capability", ["6.1", "sm_90", "9", ""])
def test_a_compute_capability_out_of_reach_is_refused(capability: str) -> None:
    with pytest.raises(ValueError, match="compute capability"):
        gpus.lanes_per_sm(capability)


def test_a_row_whose_peak_does_not_add_up_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"84 SMs x 128 lanes x 2 x 2617 MHz give 56\.3; found 60"):
        gpus.load(written(tmp_path, row(fp32_tflops=60)))


def test_a_row_with_the_wrong_lanes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must be 128 at 12\.0"):
        gpus.load(written(tmp_path, row(fp32_lanes_per_sm=64)))


def test_a_driver_name_may_appear_once_only(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'rtx 5080' appears twice"):
        gpus.load(written(tmp_path, row(), row(driver_names=["GeForce RTX 5080"])))
