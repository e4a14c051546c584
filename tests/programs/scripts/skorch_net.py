# SPDX-License-Identifier: Apache-2.0
"""skorch: a torch module behind scikit-learn's fit."""

import numpy as np
from skorch import NeuralNetRegressor
from skorch.callbacks import Callback

import torch

import work


class Pace(Callback):
    """Counts, and reads as slowly as the other programs."""

    steps = 0

    def on_batch_end(self, net, batch=None, training=None, **more):
        if training:
            self.steps += 1
            for _ in range(work.BATCH):
                work.pace()


torch.set_num_threads(1)
torch.manual_seed(1)
samples = work.Samples()
inputs = np.stack([samples[number][0].numpy() for number in range(len(samples))])
counting = Pace()
net = NeuralNetRegressor(
    torch.nn.Linear,
    module__in_features=8,
    module__out_features=1,
    max_epochs=work.EPOCHS,
    lr=0.01,
    batch_size=work.BATCH,
    train_split=None,
    iterator_train__shuffle=True,
    callbacks=[counting],
    verbose=0,
)
net.fit(inputs, inputs.sum(axis=1, keepdims=True))
work.told(counting.steps, net.module_)
