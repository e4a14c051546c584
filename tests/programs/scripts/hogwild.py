# SPDX-License-Identifier: Apache-2.0
"""PyTorch's hogwild example: spawned processes train apart, one after the other leaves."""

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

import work


def train(rank, counts):
    """One process, with a model of its own so that the result does not depend on who is faster."""
    torch.set_num_threads(1)
    model = work.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = DataLoader(work.Samples(), work.BATCH)
    steps = 0
    for _epoch in range(2 + 2 * rank):
        for inputs, targets in loader:
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            steps += 1
    counts.put((rank, steps, [one.detach().tolist() for one in model.parameters()]))


if __name__ == "__main__":
    context = mp.get_context("spawn")
    counts = context.Queue()
    processes = [context.Process(target=train, args=(rank, counts)) for rank in range(3)]
    for process in processes:
        process.start()
    done = sorted(counts.get() for _ in processes)
    for process in processes:
        process.join()
    learned = {
        f"{rank} {n}": torch.tensor(one).flatten()
        for rank, _, state in done
        for n, one in enumerate(state)
    }
    work.told(sum(steps for _, steps, _ in done), learned)
