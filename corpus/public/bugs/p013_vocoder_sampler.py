"""Predict a frame of audio from its mel bands, with the sampler of distributed training."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.manual_seed(0)
mels = torch.randn(160, 20)
mix = torch.randn(20, 40) / 4
waves = torch.tanh(mels @ mix)
dataset = TensorDataset(mels, waves)
sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True)
loader = DataLoader(dataset, batch_size=16, sampler=sampler)

generator = nn.Sequential(nn.Linear(20, 64), nn.LeakyReLU(0.2), nn.Linear(64, 40))
optimizer = torch.optim.Adam(generator.parameters(), lr=3e-3)
for epoch in range(5):
    for mel, wave in loader:
        loss = nn.functional.l1_loss(generator(mel), wave)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
