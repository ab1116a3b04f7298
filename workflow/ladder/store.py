"""What has been measured: append-only journals, one JSON record a line, keyed by content.

A journal belongs to one run and one GPU. Every record is flushed to the disk before the next
request goes out, so whatever dies, at most the point in flight is lost; a torn last line is
ignored. Journals are no output of any workflow rule: nothing deletes them but the user, and those
of several machines can lie in one folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .correctness import PROTOCOL_VERSION
from .device import LaunchSpec
from .plan import Point
from .status import RETRIED, Status
from .tensor_maps import MappedMatrix, mapped_matrices


@dataclass(frozen=True)
class Environment:
    """What keeps results apart: they are never averaged across two of these."""

    gpu_uuid: str
    driver_version: str
    cublas_version: str


def _key(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_key(
    point: Point,
    spec: LaunchSpec,
    cubin_sha256: str | None,
    accuracy: str,
    deterministic: bool,
    environment: Environment,
) -> str:
    """Identity of a correctness check: code, geometry, size, protocol and GPU.

    Names of kernels and paths of files are left out: equal code has equal results.
    """
    code: dict[str, Any] = {"cubin": cubin_sha256}
    if spec.kind == "cublas":
        code = {"cublas": environment.cublas_version, "compute": spec.compute}
    geometry = {name: value for name, value in asdict(spec).items() if name != "cubin"}
    # Kinds of launch that have neither keep the keys they had before there were any.
    if spec.cluster is None:
        del geometry["cluster"]
    if spec.scratch_bytes is None:
        del geometry["scratch_bytes"]
    if spec.tensor_maps is None:
        del geometry["tensor_maps"]
    else:  # what the launch copies, and how, is part of what is timed
        mapped = mapped_matrices(spec.tensor_maps, *point.shape)
        geometry["tensor_maps"] = [_mapped(matrix) for matrix in mapped]
        if all(matrix.launches for matrix in mapped):
            geometry["helpers"] = "side by side"
    return _key(
        {
            "protocol": PROTOCOL_VERSION,
            "code": code,
            "launch": geometry,
            "shape": point.shape,
            "accuracy": accuracy,
            "deterministic": deterministic,
            "gpu": environment.gpu_uuid,
            "driver": environment.driver_version,
        }
    )


def _mapped(matrix: MappedMatrix) -> dict[str, Any]:
    """What identifies a mapped matrix; plain copies keep the keys that they had before others."""
    fields = asdict(matrix)
    if matrix.swizzle == "none":
        del fields["swizzle"]
    if matrix.lines == 0:
        del fields["lines"]
    if matrix.shifts is None:
        del fields["shifts"]
    return fields


def point_key(check: str, cache_mode: str, sampling: dict[str, Any]) -> str:
    """Identity of a timing: its check, the cache mode and the constants of sampling."""
    return _key({"check": check, "cache_mode": cache_mode, "sampling": sampling})


class Journal:
    """The journal of one run, open for appending."""

    def __init__(self, folder: Path, header: dict[str, Any]):
        folder.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC)
        # Names sort by time, also those of two runs in one second.
        self.run_id = f"{now:%Y%m%dT%H%M%S.%fZ}-{os.getpid()}-{secrets.token_hex(2)}"
        self.path = folder / f"{self.run_id}.jsonl"
        self._file = self.path.open("x", encoding="utf-8")
        self.append("run", {"started_at": now.isoformat(), **header})

    def append(self, kind: str, content: dict[str, Any]) -> None:
        """Write one record and wait until it is on the disk."""
        record = {"type": kind, "run_id": self.run_id, **content}
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def records(folder: Path) -> Iterator[dict[str, Any]]:
    """Every complete record of every journal, oldest journal first."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                # A line torn by a crash or a full disk is a record that is not there.
                with suppress(json.JSONDecodeError):
                    yield json.loads(line)


@dataclass
class Finished:
    """What the journals hold, by key. Later records replace earlier ones."""

    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    visits: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    """By point key and round."""
    superseded: list[dict[str, Any]] = field(default_factory=list)
    """Visits that drift made void; kept for the `samples` table."""
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By run ID: header and summary merged."""

    def final_failure(self, check: str, point: str) -> dict[str, Any] | None:
        """The record that settles a point as failed, if there is one."""
        candidates = [self.checks.get(check), *self.visits.get(point, {}).values()]
        for record in candidates:
            if record and record["status"] != Status.OK and record["status"] not in RETRIED:
                return record
        return None


def load(folder: Path) -> Finished:
    """Read all journals of a folder."""
    finished = Finished()
    for record in records(folder):
        match record["type"]:
            case "run" | "end":
                finished.runs.setdefault(record["run_id"], {}).update(record)
            case "check":
                finished.checks[record["key"]] = record
            case "visit":
                finished.visits.setdefault(record["key"], {})[record["round"]] = record
            case "superseded":
                for key, number in record["visits"]:
                    old = finished.visits.get(key, {}).pop(number, None)
                    if old:
                        finished.superseded.append(old)
    return finished
