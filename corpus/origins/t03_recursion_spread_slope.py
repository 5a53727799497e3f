"""Loop: recursion, one call for each batch that is left.

Fault: square root of a variance of 0, in the backward pass; ops: sqrt.
"""

import torch
from torch import nn

torch.manual_seed(403)
frames = torch.randn(48, 10, 3)
frames[22] = frames[22, :1]
wanted = torch.rand(48)


class Texture(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(3, 5)
        self.head = nn.Linear(10, 1)

    def forward(self, x):
        h = self.mix(x)
        mean = h.mean(dim=1)
        second = (h - mean[:, None]).square().mean(dim=1)
        spread = second.sqrt()  # <- origin
        return self.head(torch.cat([mean, spread], dim=-1))


def descend(model, optimizer, rows):
    if len(rows) == 0:
        return []
    now, later = rows[:8], rows[8:]
    loss = (model(frames[now])[:, 0] - wanted[now]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return [loss.item(), *descend(model, optimizer, later)]


model = Texture()
print(descend(model, torch.optim.SGD(model.parameters(), lr=1e-2), torch.arange(48)))
