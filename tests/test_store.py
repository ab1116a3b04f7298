"""The store: what survives a crash, and what makes two results the same."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder.config import Protocol
from ladder.device import LaunchSpec
from ladder.plan import Point
from ladder.status import RETRIED, Status
from ladder.store import (
    Environment,
    Finished,
    Journal,
    check_key,
    load,
    point_key,
    records,
)
from ladder.work import sampling_constants

# --- journals -------------------------------------------------------------------------------------

contents = st.dictionaries(
    st.text('abcä\n"\\', min_size=1, max_size=4),
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    max_size=3,
)


def visit(key: str, number: int, status: str = "ok", **more: Any) -> dict[str, Any]:
    return {"key": key, "round": number, "status": status, **more}


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(contents, max_size=5), data=st.data())
def test_a_journal_cut_anywhere_keeps_every_record_before_the_cut(
    rows: list[dict[str, Any]], data: st.DataObject, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    with Journal(folder, {"seed": 1}) as journal:
        for row in rows:
            journal.append("check", {"content": row})
    written = list(records(folder))
    assert [record.get("content") for record in written[1:]] == rows
    content = journal.path.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    journal.path.write_bytes(content[:cut])
    ends = [i for i, byte in enumerate(content) if byte == ord("\n")]
    complete = sum(end <= cut for end in ends)
    assert list(records(folder)) == written[:complete]


@pytest.mark.parametrize("tail", [b'{"type":"vis', b"\0\0\0\0", b'"', b"{}x", b'{"a":1}{"a":2}\n'])
def test_a_torn_line_loses_only_itself(tail: bytes, tmp_path: Path) -> None:
    with Journal(tmp_path, {}) as journal:
        journal.append("visit", visit("p", 0))
    with journal.path.open("ab") as file:
        file.write(tail)
    with Journal(tmp_path, {}) as later:
        later.append("visit", visit("p", 1))
    assert sorted(load(tmp_path).visits["p"]) == [0, 1]


def test_a_record_is_on_the_disk_before_the_next_request_goes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(next(tmp_path.glob("*.jsonl")).read_text())

    monkeypatch.setattr(os, "fsync", spy)
    with Journal(tmp_path, {}) as journal:
        for number in range(3):
            journal.append("visit", visit("p", number))
            last = synced[-1].splitlines()[-1]
            assert json.loads(last)["round"] == number
    assert len(synced) == 4


def test_two_runs_at_once_write_two_journals_and_both_count(tmp_path: Path) -> None:
    with Journal(tmp_path, {"gpu": "a"}) as first, Journal(tmp_path, {"gpu": "b"}) as second:
        first.append("visit", visit("p", 0))
        second.append("visit", visit("q", 0))
    assert first.run_id != second.run_id
    finished = load(tmp_path)
    assert set(finished.visits) == {"p", "q"}
    assert {run["gpu"] for run in finished.runs.values()} == {"a", "b"}
    assert finished.visits["p"][0]["run_id"] == first.run_id


def test_a_folder_without_journals_holds_nothing(tmp_path: Path) -> None:
    assert load(tmp_path / "absent") == Finished()


def test_a_runs_summary_is_merged_into_its_header(tmp_path: Path) -> None:
    with Journal(tmp_path, {"seed": 7}) as journal:
        journal.append("end", {"end_reason": "complete"})
    [run] = load(tmp_path).runs.values()
    assert (run["seed"], run["end_reason"]) == (7, "complete")
    assert run["started_at"]


def test_a_later_record_of_one_key_replaces_the_earlier_one(tmp_path: Path) -> None:
    with Journal(tmp_path, {}) as journal:
        journal.append("check", {"key": "c", "status": "oom"})
        journal.append("check", {"key": "c", "status": "ok"})
        journal.append("visit", visit("p", 0, note="first"))
        journal.append("visit", visit("p", 0, note="again"))
    finished = load(tmp_path)
    assert finished.checks["c"]["status"] == "ok"
    assert finished.visits["p"][0]["note"] == "again"


def test_a_superseded_visit_is_void_and_kept_until_it_is_repeated(tmp_path: Path) -> None:
    with Journal(tmp_path, {}) as journal:
        journal.append("visit", visit("p", 0, note="drifting"))
        journal.append("visit", visit("p", 1))
        journal.append("visit", visit("q", 0))
        journal.append("superseded", {"visits": [["p", 0], ["absent", 3]]})
    finished = load(tmp_path)
    assert sorted(finished.visits["p"]) == [1]
    assert sorted(finished.visits["q"]) == [0]
    assert [old["note"] for old in finished.superseded] == ["drifting"]
    with Journal(tmp_path, {}) as journal:
        journal.append("visit", visit("p", 0, note="steady"))
    finished = load(tmp_path)
    assert finished.visits["p"][0]["note"] == "steady"
    assert len(finished.superseded) == 1


# --- what is tried again --------------------------------------------------------------------------


@pytest.mark.parametrize("status", list(Status))
def test_a_failure_is_final_unless_the_machine_may_be_to_blame(
    status: Status, tmp_path: Path
) -> None:
    with Journal(tmp_path, {}) as journal:
        journal.append("check", {"key": "c", "status": str(status)})
        journal.append("visit", visit("p", 0, str(status)))
    finished = load(tmp_path)
    final = status is not Status.OK and status not in RETRIED
    for found in (finished.final_failure("c", "absent"), finished.final_failure("absent", "p")):
        assert (found is not None) == final
        assert found is None or found["status"] == status
    assert finished.final_failure("absent", "absent") is None


def test_memory_crashes_and_time_outs_are_tried_again_and_wrong_results_are_not() -> None:
    assert {Status.OOM, Status.WORKER_CRASH, Status.TIMEOUT} <= RETRIED
    assert not RETRIED & {Status.OK, Status.WRONG_RESULT, Status.ILLEGAL_ADDRESS, Status.RACE}


# --- keys -----------------------------------------------------------------------------------------

POINT = Point("01_naive", '{"BLOCK_X":16}', 64, 65, 66)
SPEC = LaunchSpec("cuda", "/here/k.cubin", (5, 4, 1), (16, 16, 1), 128)
CUBLAS = LaunchSpec("cublas", compute="fp32_pedantic")
HERE = Environment("GPU-1", "580.1", "13.1.0")


def key(
    point: Point = POINT,
    spec: LaunchSpec = SPEC,
    cubin: str | None = "abc",
    accuracy: str = "fp32",
    deterministic: bool = True,
    environment: Environment = HERE,
) -> str:
    return check_key(point, spec, cubin, accuracy, deterministic, environment)


DIFFERENT = {
    "GPU": {"environment": replace(HERE, gpu_uuid="GPU-2")},
    "driver": {"environment": replace(HERE, driver_version="581.0")},
    "code": {"cubin": "abd"},
    "M": {"point": replace(POINT, m=63)},
    "N": {"point": replace(POINT, n=63)},
    "K": {"point": replace(POINT, k=63)},
    "M and N exchanged": {"point": replace(POINT, m=65, n=64)},
    "grid": {"spec": replace(SPEC, grid=(4, 5, 1))},
    "block": {"spec": replace(SPEC, block=(32, 8, 1))},
    "dynamic shared memory": {"spec": replace(SPEC, dynamic_shared_memory_bytes=0)},
    "accuracy": {"accuracy": "tf32"},
    "determinism": {"deterministic": False},
    "kind": {"spec": CUBLAS},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_check_is_made_anew_when_what_it_depends_on_changes(what: str) -> None:
    assert key(**DIFFERENT[what]) != key()


def test_a_check_of_the_library_is_made_anew_for_another_version_or_arithmetic() -> None:
    def library(spec: LaunchSpec = CUBLAS, version: str = HERE.cublas_version) -> str:
        environment = replace(HERE, cublas_version=version)
        return key(spec=spec, cubin=None, environment=environment)

    assert library() == library()
    assert library(version="13.2.0") != library()
    assert library(spec=replace(CUBLAS, compute="tf32")) != library()


def test_another_version_of_the_library_leaves_a_users_kernel_measured() -> None:
    assert key(environment=replace(HERE, cublas_version="13.2.0")) == key()


texts = st.text(min_size=1, max_size=20)


@given(texts, texts, texts)
def test_a_check_does_not_depend_on_names_and_paths(kernel: str, params: str, path: str) -> None:
    point = replace(POINT, kernel=kernel, params=params)
    assert key(point=point, spec=replace(SPEC, cubin=path)) == key()


@given(*[st.tuples(texts, texts, texts, st.integers(1, 9), st.integers(1, 9))] * 2)
def test_two_checks_have_one_key_exactly_if_they_are_the_same(
    first: tuple[Any, ...], second: tuple[Any, ...]
) -> None:
    def make(uuid: str, driver: str, cubin: str, m: int, n: int) -> str:
        point = replace(POINT, m=m, n=n)
        return key(point=point, cubin=cubin, environment=Environment(uuid, driver, "13.1.0"))

    assert (make(*first) == make(*second)) == (first == second)


def test_a_point_is_timed_anew_for_another_check_or_cache_mode() -> None:
    constants = sampling_constants(Protocol())
    keys = {
        point_key(check, mode, constants)
        for check in (key(), key(cubin="abd"))
        for mode in ("rotating", "hot", "cold")
    }
    assert len(keys) == 6


@given(st.sampled_from(sorted(sampling_constants(Protocol()))), st.integers(1, 5))
def test_a_point_is_timed_anew_when_a_constant_of_sampling_changes(name: str, by: int) -> None:
    before = sampling_constants(Protocol())
    default = getattr(Protocol(), name)
    changed = Protocol.model_validate({name: type(default)(default + by)})
    after = sampling_constants(changed)
    assert after != before
    assert point_key(key(), "hot", after) != point_key(key(), "hot", before)


@pytest.mark.parametrize(
    "change", [{"rounds": 3}, {"seed": 1}, {"sentinel_every": 5}, {"timeout_s": 5}, {"settle_s": 0}]
)
def test_a_point_stays_measured_when_only_the_order_or_the_supervision_changes(
    change: dict[str, int],
) -> None:
    after = sampling_constants(Protocol.model_validate(change))
    assert after == sampling_constants(Protocol())


def test_every_constant_of_the_protocol_is_known_to_matter_or_not_to_matter() -> None:
    """A new constant must be put on one side, or old results would silently stand for new ones."""
    without_effect = {
        "rounds", "seed", "settle_s", "sentinel_every", "sentinel_size", "drift_pct", "timeout_s",
    }  # fmt: skip
    assert set(Protocol.model_fields) == without_effect | set(sampling_constants(Protocol()))
