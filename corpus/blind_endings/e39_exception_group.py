"""Several checks of one batch fail together."""

import torch
from torch import nn


def check_batch(x):
    errors = []
    if x.shape[1] != 6:
        errors.append(ValueError(f"6 columns are needed, not {x.shape[1]}"))
    if x.dtype != torch.float32:
        errors.append(TypeError(f"float32 is needed, not {x.dtype}"))
    if errors:
        raise ExceptionGroup("bad batch", errors)  # noqa: F821  # HERE


torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(60):
    x = torch.randn(8, 6) if step != 44 else torch.randn(8, 5, dtype=torch.float64)
    check_batch(x)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
