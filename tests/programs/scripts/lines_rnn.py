# SPDX-License-Identifier: Apache-2.0
"""The two lines around an LSTM whose hidden state goes on: an object with a state of its own."""

import torch
from torch import nn

import work
from slipstream.torch_hooks.run import session


class Hidden:
    """The state between two pieces of text."""

    def __init__(self):
        self.value = (torch.zeros(1, 4, 16), torch.zeros(1, 4, 16))

    def state_dict(self):
        return {"h": self.value[0], "c": self.value[1]}

    def load_state_dict(self, state):
        self.value = (state["h"], state["c"])


torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.ModuleDict(
    {"words": nn.Embedding(32, 16), "lstm": nn.LSTM(16, 16), "head": nn.Linear(16, 32)}
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
text = torch.randint(0, 32, (16 * 6 + 1, 4))
pieces = [(text[at : at + 6], text[at + 1 : at + 7]) for at in range(0, 16 * 6, 6)]
hidden = Hidden()
steps = 0
with session(model, optimizer, hidden=hidden) as run:
    for _epoch, batches in run.epochs(pieces, work.EPOCHS):
        for inputs, targets in batches:
            for _ in range(work.BATCH):
                work.pace()
            state = tuple(one.detach() for one in hidden.value)
            found, hidden.value = model["lstm"](model["words"](inputs), state)
            hidden.value = tuple(one.detach() for one in hidden.value)
            loss = nn.functional.cross_entropy(
                model["head"](found).flatten(0, 1), targets.flatten()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
work.told(steps, model)
