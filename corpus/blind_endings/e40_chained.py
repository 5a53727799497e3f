"""A parser's error is raised again with a better message."""

import torch
from torch import nn


def parse(text):
    return [float(part) for part in text.split(",")]  # HERE


def load_row(number):
    text = ",".join(str((number * k) % 5) for k in range(1, 5))
    if number == 700:
        text = text.replace(",", ";", 1)
    try:
        return parse(text)
    except ValueError as error:
        raise RuntimeError(f"row {number} cannot be read") from error  # HERE


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    x = torch.tensor([load_row(step * 16 + k) for k in range(16)])
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
