# SPDX-License-Identifier: Apache-2.0
"""As torchvision's reference training: a ResNet, workers, warm-up, an EMA of the weights."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

import work


class Block(nn.Module):
    """Two convolutions and a short cut."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, inputs):
        return torch.relu(inputs + self.layers(inputs))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        Block(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, work.EPOCHS - 2)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [2])
    loader = DataLoader(work.Images(), work.BATCH, shuffle=True, num_workers=2)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    steps = 0
    for _epoch in range(work.EPOCHS // 2):
        for images, labels in loader:
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()
            ema.update_parameters(model)
            steps += 1
        scheduler.step()
    work.told(steps, model, ema)
