# SPDX-License-Identifier: Apache-2.0
"""The shape of PyTorch's mnist example with the two lines: epochs from 1, a test after each."""

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import work
from slipstream.torch_hooks.run import session

steps = 0


class Net(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(144, 4)

    def forward(self, x):
        x = nn.functional.relu(self.conv1(x))
        return nn.functional.log_softmax(self.fc1(torch.flatten(self.dropout1(x), 1)), dim=1)


def train(model, train_loader, optimizer, epoch):
    """One epoch."""
    global steps
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        steps += 1
        if batch_idx % 10 == 0:
            print(
                f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)} "
                f"({100.0 * batch_idx / len(train_loader):.0f}%)]\tLoss: {loss.item():.6f}"
            )


def test(model, test_loader):
    """After each epoch."""
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            correct += model(data).argmax(dim=1).eq(target).sum().item()
    print(f"Test set: Accuracy: {correct}/{len(test_loader.dataset)}")


def main():
    """Train."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    train_loader = DataLoader(work.Images(), batch_size=work.BATCH, shuffle=True)
    test_loader = DataLoader(work.Images(), batch_size=32)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    with session(model, optimizer, scheduler) as run:
        for epoch, batches in run.epochs(train_loader, range(1, work.EPOCHS + 1)):
            train(model, batches, optimizer, epoch)
            test(model, test_loader)
            scheduler.step()
    work.told(steps, model)


if __name__ == "__main__":
    main()
