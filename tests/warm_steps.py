"""Steps of the ladder by a process that has imported everything already.

A start of Python that imports NumPy, pandas and Arrow, or Snakemake, takes longer than most steps
of a test. So `Server` starts one, and forks it for each step: the child has the folder, the
variables, the exit code and the output of `python -m ladder ...` or `python -m snakemake ...`, and
nothing of what another step left behind. The processes that a step starts with `python -m
ladder...` are its forks in turn.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ladder.device import DEVICE_MODULE_VARIABLE

SAFE_THREADS = {"python", "jemalloc_bg_thd"}
"""Names of threads: a child may lack the second, which Arrow's allocator looks after at a fork."""
WORKFLOW = Path(__file__).resolve().parent.parent / "workflow"


class Server:
    """A process that waits for steps, one at a time, until its standard input is closed."""

    def __init__(self) -> None:
        own = [str(WORKFLOW), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(filter(None, own))
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Threads of OpenBLAS would not be there in a child.
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            text=True,
        )

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def run(
        self,
        program: Literal["ladder", "snakemake"],
        arguments: list[str],
        folder: Path,
        environment: Mapping[str, str],
    ) -> subprocess.CompletedProcess[str]:
        """`python -m PROGRAM` with some arguments, started in a folder."""
        assert self._process.stdin and self._process.stdout
        with tempfile.TemporaryDirectory() as temporary:
            outputs = [Path(temporary) / name for name in ("stdout", "stderr")]
            step = {
                "program": program,
                "arguments": arguments,
                "folder": str(folder),
                "environment": dict(environment),
                "outputs": list(map(str, outputs)),
            }
            print(json.dumps(step), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            out, err = (path.read_text() for path in outputs)
        return subprocess.CompletedProcess([program, *arguments], code, out, err)


def serve() -> None:
    """Fork for each step on standard input; print each exit code, as `subprocess` has it."""
    # What the steps import, so that a child finds it; the stand-in for a GPU too.
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import fake_gpu  # noqa: F401
    import ladder.__main__
    import ladder.collect
    import ladder.compile
    import ladder.counters
    import ladder.measure
    import ladder.plan
    import ladder.profile
    import ladder.tune
    import ladder.worker

    # Python counts the thread of Arrow's allocator, see SAFE_THREADS.
    warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
    for line in sys.stdin:
        step = json.loads(line)
        if step["program"] == "snakemake":
            import snakemake.cli
        assert _threads() <= SAFE_THREADS, f"not to be forked: {_threads()}"
        child = os.fork()
        if not child:
            _become(step)
            if step["program"] == "snakemake":
                snakemake.cli.main(step["arguments"])  # it ends the process
            sys.exit(ladder.__main__.main(["--root", step["folder"], *step["arguments"]]))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _threads() -> set[str]:
    tasks = Path("/proc/self/task").glob("*/comm")
    return {path.read_text().strip().rstrip("0123456789.") for path in tasks}


def _become(step: dict[str, Any]) -> None:
    """Take the folder, the variables and the standard files of a step."""
    os.chdir(step["folder"])
    os.environ.clear()
    os.environ.update(step["environment"])
    sys.argv = [step["program"], *step["arguments"]]
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, path in enumerate(step["outputs"], start=1):
        with open(path, "w") as file:
            os.dup2(file.fileno(), number)
    subprocess.Popen = Forked  # type: ignore[misc]


class Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A process whose command `python -m ladder...` is run by a fork of this one.

    Whoever waits for it, writes to it, reads from it or kills it finds what `Popen` starts. What is
    for a real GPU is started as users start it: that is what such a test is about.
    """

    def _execute_child(self, args: Any, *rest: Any) -> None:
        environment, pipes = rest[5] or dict(os.environ), rest[9:15]  # see `Popen.__init__`
        module = isinstance(args, list) and args[:2] == [sys.executable, "-m"] and len(args) == 3
        if not module or DEVICE_MODULE_VARIABLE not in environment:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        read_in, _, _, write_out, _, write_err = pipes
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            self._child_created = True
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
            return
        try:
            for number, end in enumerate((read_in, write_out, write_err)):
                if end != -1:
                    os.dup2(end, number)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.environ.clear()
            os.environ.update(environment)
            sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
            sys.stderr = os.fdopen(2, "w", buffering=1)
            importlib.import_module(args[2]).main()
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


if __name__ == "__main__":
    serve()
