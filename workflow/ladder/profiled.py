"""The program that the profiler watches: each point once, as the measuring worker launches it.

``python -m ladder.profiled ITEMS PROGRESS``. ITEMS is a JSON list of launches. PROGRESS gets a line
when a point begins and one when it ends, so that the supervisor knows which point a crash or a hang
belongs to. Only the one launch between the profiler calls is counted, helpers included: filling the
matrices is not, and neither is the launch before it, in which libraries load what they need and a
broken kernel fails.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from .device import Device, LaunchSpec, open_device
from .timing import BufferSets

_SEED = 1


def launch_once(device: Device, spec: LaunchSpec, m: int, n: int, k: int) -> None:
    """One counted launch on fresh matrices."""
    buffers = BufferSets(device.xp, m, n, k, 1)
    buffers.fill_inputs(_SEED)
    a, b, c = (buffers.matrix(name, 0) for name in "ABC")
    launch = device.launcher(spec, m, n, k)
    launch(a, b, c)
    device.synchronize()
    with device.profiled():
        launch(a, b, c)
        device.synchronize()


def main() -> None:
    items, progress = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    device = open_device()
    with progress.open("w") as file:

        def say(**record: Any) -> None:
            file.write(json.dumps(record) + "\n")
            file.flush()

        for index, item in enumerate(items):
            say(index=index, state="begun")
            try:
                spec = LaunchSpec.from_json(item["spec"])
                launch_once(device, spec, item["m"], item["n"], item["k"])
            except Exception as error:
                status, detail, _ = device.classify(error)
                say(index=index, state="failed", status=status, detail=detail)
                # The context may be gone, and launches behind this one could not be told apart.
                os._exit(1)
            say(index=index, state="ended")
            device.release_memory()


if __name__ == "__main__":
    main()
