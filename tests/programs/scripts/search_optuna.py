# SPDX-License-Identifier: Apache-2.0
"""Optuna: several trials in one process, some of them pruned."""

import optuna

import torch
from torch.utils.data import DataLoader

import work

steps, models = 0, []


def objective(trial):
    """A training of its own."""
    global steps
    model = work.mlp(trial.suggest_categorical("width", [8, 16]))
    optimizer = torch.optim.Adam(
        model.parameters(), lr=trial.suggest_float("lr", 1e-3, 1e-1, log=True)
    )
    loader = DataLoader(work.Samples(), work.BATCH, shuffle=True)
    models.append(model)
    for epoch in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            optimizer.step()
            steps += 1
        trial.report(loss.item(), epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss.item()


optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
study.optimize(objective, n_trials=4)
work.told(steps, *models)
