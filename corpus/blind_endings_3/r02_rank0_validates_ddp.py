"""Rank 0 validates with the DDP module in training mode: its buffers are sent to all ranks."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.body(x))


def validate(model):
    x = torch.randn(64, 6)
    with torch.no_grad():
        return nn.functional.mse_loss(model(x), x.mean(1, keepdim=True)).item()  # HERE


def train(model, rank):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(4):
        for _ in range(40):
            x = torch.randn(16, 6)
            loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
        if epoch == 1 and rank == 0:
            print("hangs now", flush=True)
            print("validation", validate(model))  # HERE
        dist.barrier()  # HERE


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train(DDP(Net()), dist.get_rank())
