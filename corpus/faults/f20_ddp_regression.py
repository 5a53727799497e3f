"""Data-parallel regression. torchrun --nproc-per-node 2 this_file.py"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, x):
        return self.layers(x)

    def compute_loss(self, x, y):
        return nn.functional.mse_loss(self(x), y)


def build_dataset(seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1024, 10, generator=g)
    y = (x[:, :3].prod(1, keepdim=True) + x[:, 3:6].sum(1, keepdim=True)).tanh()
    return TensorDataset(x, y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    args, _ = ap.parse_known_args()
    rank = int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)

    data = build_dataset(args.seed)
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, seed=args.seed)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DDP(Model()) if world > 1 else Model()
    core = model.module if world > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for epoch in range(6):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            loss = core.compute_loss(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        norm = sum(p.detach().pow(2).sum() for p in model.parameters()).sqrt().item()
        print(f"[rank {rank}] epoch {epoch} loss {total / len(loader):.4f} |w| {norm:.5f}")

    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
