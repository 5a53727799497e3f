"""A sparse dictionary of activations with a term that keeps latents alive."""

import torch
from torch import nn

torch.manual_seed(0)
basis = torch.randn(12, 32)
codes = torch.rand(1024, 12) * (torch.rand(1024, 12) < 0.3)
activations = codes @ basis / 3


class Crosscoder(nn.Module):
    def __init__(self, d_in=32, latents=64, k=8):
        super().__init__()
        self.k = k
        self.encode = nn.Linear(d_in, latents)
        self.decode = nn.Linear(latents, d_in)

    def forward(self, x):
        pre = torch.relu(self.encode(x))
        top = pre.topk(self.k, dim=-1)
        z = torch.zeros_like(pre).scatter(-1, top.indices, top.values)
        return self.decode(z), pre


def loss_and_log(model, batch):
    recon, pre = model(batch)
    reconstruction = (recon - batch).pow(2).mean()
    aux = torch.relu(0.05 - pre.mean(0)).mean()
    total = reconstruction + 0.1 * aux
    return reconstruction, {"total": total.item(), "aux": aux.item()}


model = Crosscoder()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(80):
    batch = activations[torch.randint(0, 1024, (64,))]
    optimizer.zero_grad()
    loss, log = loss_and_log(model, batch)
    loss.backward()
    optimizer.step()
