# SPDX-License-Identifier: Apache-2.0
"""The two lines with two networks and two optimizers, each by its name."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import work
from slipstream.torch_hooks.run import session

torch.set_num_threads(1)
torch.manual_seed(1)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
criterion = nn.BCEWithLogitsLoss()
parts = {"generator": generator, "critic": critic}
optimizers = {"for_generator": for_generator, "for_critic": for_critic}
steps = 0
with session(**parts, **optimizers) as run:
    for _epoch, batches in run.epochs(loader, work.EPOCHS):
        for real, _ in batches:
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            fake = generator(torch.randn(len(real), 4))
            for_critic.zero_grad()
            (criterion(critic(real), ones) + criterion(critic(fake.detach()), zeros)).backward()
            for_critic.step()
            for_generator.zero_grad()
            criterion(critic(fake), ones).backward()
            for_generator.step()
            steps += 1
work.told(steps, generator, critic)
