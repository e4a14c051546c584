# SPDX-License-Identifier: Apache-2.0
"""PyTorch-Ignite's engine."""

from ignite.engine import Events, create_supervised_trainer

import torch
from torch import nn
from torch.utils.data import DataLoader

import work

model = work.mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
trainer = create_supervised_trainer(model, optimizer, nn.MSELoss())
steps = []
trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: steps.append(1))
trainer.run(DataLoader(work.Samples(), work.BATCH, shuffle=True), max_epochs=work.EPOCHS)
work.told(len(steps), model)
