# SPDX-License-Identifier: Apache-2.0
"""Two networks with an optimizer each: one mini-batch is a step of both."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import work

torch.set_num_threads(1)
torch.manual_seed(1)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
criterion = nn.BCEWithLogitsLoss()
steps = 0
for _epoch in range(work.EPOCHS):
    for real, _ in loader:
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
