"""A step of diffusion training on two ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
pictures = torch.randn(640, 5) @ torch.randn(5, 20) / 2
data = TensorDataset(pictures)
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=16, sampler=sampler)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(21, 64), nn.SiLU(), nn.Linear(64, 20))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], 1))


model = DistributedDataParallel(Denoiser())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (clean,) in loader:
        t = torch.rand(len(clean), 1)
        noise = torch.randn_like(clean)
        noisy = (1 - t) * clean + t * noise
        loss = nn.functional.mse_loss(model(noisy, t), noise - clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
