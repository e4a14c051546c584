# SPDX-License-Identifier: Apache-2.0
"""Spawned children that train on their own, each as long as it is told."""

from __future__ import annotations

import sys
import time

import torch
import torch.multiprocessing as mp


def train(count: int, pause_s: float) -> None:
    """So many mini-batches."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).mean().backward()
        optimizer.step()
        time.sleep(pause_s)


def main() -> None:
    """Both at once; then the parent stays for a while."""
    counts = [int(word) for word in sys.argv[1:]]
    spawned = mp.get_context("spawn")
    children = [
        spawned.Process(target=train, args=(count, 0.05 + 0.03 * at))
        for at, count in enumerate(counts)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    time.sleep(3)


if __name__ == "__main__":
    main()
