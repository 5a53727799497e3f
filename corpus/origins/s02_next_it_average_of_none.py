"""Loop: next(it), with StopIteration caught.

Fault: division by 0 hidden behind a where, in the backward pass; ops: div.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(302)
tokens = torch.randn(40, 7, 5)
present = (torch.rand(40, 7) > 0.4).float()
present[:, 0] = 1.0
present[19] = 0.0
label = torch.randn(40)
embed = nn.Linear(5, 8)
head = nn.Linear(8, 1)
optimizer = torch.optim.SGD([*embed.parameters(), *head.parameters()], lr=0.05)


def pooled(x, mask):
    summed = (embed(x) * mask[..., None]).sum(dim=1)
    count = mask.sum(dim=1, keepdim=True)
    mean = summed / count  # <- origin
    return torch.where(count > 0, mean, torch.zeros_like(mean))


it = iter(DataLoader(TensorDataset(tokens, present, label), batch_size=8))
while True:
    try:
        x, mask, y = next(it)
    except StopIteration:
        break
    loss = nn.functional.mse_loss(head(pooled(x, mask)).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
