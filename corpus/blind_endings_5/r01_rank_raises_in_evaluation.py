"""Two ranks evaluate their halves; the half of rank 1 has a class that the table does not name."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

NAMES = ["cat", "dog", "horse"]


def evaluate(model, rank):
    counts = dict.fromkeys(NAMES, 0)
    labels = [0, 1, 2, 2] if rank == 0 else [0, 1, 3, 2]
    with torch.no_grad():
        model(torch.randn(4, 6))
    for label in labels:
        counts[NAMES[label]] += 1  # HERE
    total = torch.tensor(list(counts.values()))
    dist.all_reduce(total)
    return total


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Linear(6, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(80):
        x = torch.randn(16, 6)
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(rank, evaluate(model, rank))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
