# SPDX-License-Identifier: Apache-2.0
"""A language model with an LSTM whose state goes on from one piece of text to the next."""

import torch
from torch import nn

import work

torch.set_num_threads(1)
torch.manual_seed(1)
embedding, lstm, head = nn.Embedding(32, 16), nn.LSTM(16, 16, 1), nn.Linear(16, 32)
parts = nn.ModuleList([embedding, lstm, head])
optimizer = torch.optim.SGD(parts.parameters(), lr=0.5)
text = torch.randint(0, 32, (work.MINIBATCHES * 6 + 1, 4))
hidden = (torch.zeros(1, 4, 16), torch.zeros(1, 4, 16))
steps = 0
for begin in range(0, len(text) - 1, 6):
    work.pace()
    hidden = tuple(one.detach() for one in hidden)
    found, hidden = lstm(embedding(text[begin : begin + 6]), hidden)
    loss = nn.functional.cross_entropy(
        head(found).flatten(0, 1), text[begin + 1 : begin + 7].flatten()
    )
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parts.parameters(), 0.25)
    optimizer.step()
    steps += 1
work.told(steps, parts)
