"""Rank 0 of two gathers the scores of all ranks inside its own `if rank == 0`."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Scores:
    def __init__(self):
        self.mine = []

    def collect(self):
        everyone = [None] * dist.get_world_size()
        dist.gather_object(self.mine, everyone)  # HERE
        return sum(everyone, [])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model, scores = DDP(nn.Linear(6, 2)), Scores()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(4):
        for _ in range(35):
            x = torch.randn(20, 6)
            loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
            optimizer.zero_grad()
            loss.backward()  # HERE
            optimizer.step()
            scores.mine.append(loss.item())
            time.sleep(0.01)
        if epoch == 2 and dist.get_rank() == 0:
            print("hangs now", flush=True)
            print(len(scores.collect()))  # HERE


if __name__ == "__main__":
    main()
