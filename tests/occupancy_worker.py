# SPDX-License-Identifier: Apache-2.0
"""A process that uses an occupancy GPU as told, a JSON line a command; see occupancy_rig."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import occupancy

if TYPE_CHECKING:
    from collections.abc import Callable

KERNEL, COPY, SLEEP, SYNCHRONIZE = "kernel", "copy", "sleep", "synchronize"


class Worker:
    """One method per command; what it returns is the answer."""

    def __init__(self) -> None:
        self._gpu = occupancy.open_gpu(ordinal=int(os.environ.get("WORKER_ORDINAL", "0")))
        self._held: list[occupancy.Allocation] = []

    def run(self, steps: list[tuple[str, float]]) -> dict[str, Any]:
        """Do the steps as fast as they allow; answer with when each kernel and copy ran."""
        works = [work for name, amount in steps if (work := self._step(name, amount))]
        spans = [(kind, *work.times_ns()) for kind, work in works]
        return {"spans": spans, "busy_ns": self._gpu.usage().busy_ns}

    def flood(self, count: int, duration_us: float) -> int:
        """Queue kernels and come back at once."""
        for _ in range(count):
            self._gpu.launch(duration_us=duration_us)
        return count

    def copy(self, nbytes: int) -> int:
        """Queue a copy; for how long from now on it waits for those before it."""
        work = self._gpu.copy_async(nbytes)
        queued_ns = time.monotonic_ns()
        work.wait()
        return work.times_ns().start_ns - queued_ns

    def allocate(self, nbytes: int) -> int:
        """Take memory."""
        self._held.append(self._gpu.allocate(nbytes))
        return self._gpu.usage().gpu_memory_bytes

    def free(self) -> int:
        """Give all memory back."""
        while self._held:
            self._held.pop().free()
        return self._gpu.usage().memory_bytes

    def hammer(self, duration_us: float) -> None:
        """Launch, allocate and free without end; to be killed."""
        _say("hammering")
        while True:
            self._gpu.launch(duration_us=duration_us)
            with self._gpu.allocate(1 << 20):
                pass

    def exec(self) -> None:
        """Become another program that has nothing to do with GPUs."""
        program = "import time; print('\"execed\"', flush=True); time.sleep(60)"
        os.execv(sys.executable, [sys.executable, "-c", program])  # noqa: S606 (no shell is meant)

    def _step(self, name: str, amount: float) -> tuple[str, occupancy.Work] | None:
        if name == KERNEL:
            return name, self._gpu.launch(duration_us=amount)
        if name == COPY:
            return name, self._gpu.copy_async(int(amount))
        if name == SLEEP:
            time.sleep(amount / 1e6)
        elif name == SYNCHRONIZE:
            self._gpu.synchronize()
        return None


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer commands until the pipe is closed."""
    worker = Worker()
    _say("ready")
    for line in sys.stdin:
        command = json.loads(line)
        do: Callable[..., object] = getattr(worker, command.pop("do"))
        try:
            _say(do(**command))
        except occupancy.OccupancyError as error:
            _say({"error": type(error).__name__, "text": str(error)})


if __name__ == "__main__":
    main()
