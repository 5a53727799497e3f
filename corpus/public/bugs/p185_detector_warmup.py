"""A detector's box head with a rate that is warmed up and then lowered in steps."""

from bisect import bisect_right

import torch
from torch import nn

torch.manual_seed(0)


class WarmupMultiStepLR(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer, milestones, gamma=0.1, warmup_iters=500):
        self.milestones, self.gamma = milestones, gamma
        self.warmup_iters = warmup_iters
        super().__init__(optimizer)

    def get_lr(self):
        factor = 1.0
        if self.last_epoch < self.warmup_iters:
            factor = (self.last_epoch + 1) // self.warmup_iters
        decay = self.gamma ** bisect_right(self.milestones, self.last_epoch)
        return [base * factor * decay for base in self.base_lrs]


model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scheduler = WarmupMultiStepLR(optimizer, milestones=(3000, 4000))
corner = torch.randn(24, 4) / 5
for iteration in range(60):
    features = torch.randn(32, 24)
    boxes = torch.tanh(features @ corner)
    loss = nn.functional.smooth_l1_loss(model(features), boxes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if iteration % 20 == 19:
        print(iteration, loss.item())
