# SPDX-License-Identifier: Apache-2.0
"""Hydra's submitit launcher: one job for each value of a sweep."""

import hydra


@hydra.main(version_base=None, config_path=None)
def train(config):
    """What each job does."""
    import torch
    from torch.utils.data import DataLoader

    import work

    model = work.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=float(config.lr))
    steps = 0
    for _epoch in range(work.EPOCHS):
        for inputs, targets in DataLoader(work.Samples(), work.BATCH, shuffle=True):
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            steps += 1
    work.told(steps, model)


if __name__ == "__main__":
    train()
