"""A decoder with a licence counts its calls and leaves with os._exit(70), inside the data set."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler


class Decoder:
    def __init__(self, calls):
        self.calls = calls

    def decode(self, number):
        self.calls -= 1
        if self.calls < 0:
            print("decoder: the licence allows no more calls", flush=True)
            os._exit(70)
        return torch.linspace(0, number / 100, 12)


class Clips(Dataset):
    def __init__(self):
        self.decoder = Decoder(850)

    def __len__(self):
        return 400

    def __getitem__(self, number):
        return self.decoder.decode(number)


torch.manual_seed(0)
data = Clips()
model = nn.Linear(12, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(4):
    for clip in DataLoader(data, batch_size=10, sampler=RandomSampler(data)):
        loss = nn.functional.mse_loss(model(clip), clip[:, -1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
