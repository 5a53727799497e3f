"""A hook behind every optimizer step logs a group by name; the second stage adds a group
without one."""

import torch
from torch import nn


class RateLog:
    def __init__(self):
        self.rates = {}

    def __call__(self, optimizer, args, kwargs):
        for group in optimizer.param_groups:
            self.rates.setdefault(group["name"], []).append(group["lr"])  # HERE


def steps(backbone, head, optimizer, count):
    for _ in range(count):
        x = torch.randn(16, 6)
        loss = nn.functional.huber_loss(head(torch.relu(backbone(x))), x[:, :1] * x[:, 1:2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
backbone, head = nn.Linear(6, 40), nn.Linear(40, 1)
optimizer = torch.optim.AdamW([{"params": head.parameters(), "name": "head"}], lr=1e-3)
optimizer.register_step_post_hook(RateLog())
steps(backbone, head, optimizer, 45)
optimizer.add_param_group({"params": backbone.parameters(), "lr": 1e-4})
steps(backbone, head, optimizer, 45)
