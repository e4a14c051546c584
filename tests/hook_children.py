# SPDX-License-Identifier: Apache-2.0
"""A program whose children train: `hook_children.py METHOD CHILDREN MINIBATCHES [--late]`.

METHOD is multiprocessing's start method. The parent has trained a mini-batch and keeps its
optimizer, as a program that warms up or shares a model does. With --late it never imports torch.
Prints what the page of each child says when that child has ended: mini-batches and phase.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import struct
import sys
from typing import TYPE_CHECKING, Any

from slipstream.wire import control_block
from slipstream.wire.control_block import PAGE_BYTES, Up, word

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event


def train(minibatches: int) -> Any:  # noqa: ANN401 (torch's optimizer)
    """Train a small model for so long; the optimizer."""
    import torch  # noqa: PLC0415 (with --late only children do)

    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(minibatches):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    return optimizer


def child(minibatches: int, told: Queue[str], may_end: Event) -> None:
    """Train, tell the parent which page is its own, and end."""
    from slipstream.torch_hooks.attach import status  # noqa: PLC0415 (a program imports none of ours)

    kept = train(minibatches)
    told.put(status().control_block)
    may_end.wait()
    del kept


def main() -> None:
    """Start the children and look at their pages when they have ended."""
    method, children, minibatches, *late = sys.argv[1:]
    kept = None if late else train(1)
    context: Any = multiprocessing.get_context(method)  # whose Process typeshed does not know
    told, may_end = context.Queue(), context.Event()
    arguments = (int(minibatches), told, may_end)
    started = [context.Process(target=child, args=arguments) for _ in range(int(children))]
    for one in started:
        one.start()
    # Held open: the coordinator removes the page of a process that has ended.
    pages = [os.open(told.get(), os.O_RDONLY) for _ in started]
    may_end.set()
    for one in started:
        one.join()
    del kept
    print(json.dumps(sorted(read(page) for page in pages)))  # noqa: T201 (what the test reads)


def read(page: int) -> tuple[int, str]:
    """Mini-batches and phase."""
    words = struct.unpack(f"<{PAGE_BYTES // 8}Q", os.pread(page, PAGE_BYTES, 0))
    phase = control_block.Phase(words[word(Up, "phase")])
    return words[word(Up, "minibatches")], phase.name


if __name__ == "__main__":
    main()
