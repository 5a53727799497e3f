"""Data-parallel training of a small transformer encoder (torchrun, gloo)."""

import argparse
import os
import random
import warnings

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

warnings.filterwarnings("ignore", message="enable_nested_tensor")

VOCAB, LENGTH, CLASSES = 40, 12, 5


class Encoder(nn.Module):
    def __init__(self, dim=32, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, dim))
        layer = nn.TransformerEncoderLayer(
            dim, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, tokens):
        h = self.blocks(self.embed(tokens) + self.position)
        return self.head(self.norm(h).mean(dim=1))


def make_data(n):
    tokens = torch.randint(CLASSES, VOCAB, (n, LENGTH))
    labels = torch.randint(0, CLASSES, (n,))
    # A label shows itself once or not at all.
    shown = torch.rand(n) < 0.85
    tokens[torch.arange(n)[shown], torch.randint(0, LENGTH, (n,))[shown]] = labels[shown]
    return TensorDataset(tokens, labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--clip", type=float, default=0.25)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    rank = int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")

    data = make_data(1024)
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, seed=args.seed)
    loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)
    model = Encoder()
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for tokens, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens), labels)
            loss.backward()
            if rank == 0:
                norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                if step % 8 == 0:
                    print(f"step {step} loss {loss.item():.4f} grad norm {norm:.3f}")
            optimizer.step()
            step += 1

    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
