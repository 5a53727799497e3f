"""Rank 0 waits for a message of rank 1, which reduces its loss and sends nothing."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Session:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        torch.manual_seed(self.rank)
        self.model = DDP(nn.Linear(6, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def step(self):
        x = torch.randn(16, 6)
        loss = (self.model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        time.sleep(0.02)
        return loss.detach()

    def collect(self):
        score = torch.zeros(1)
        dist.recv(score, src=1)  # HERE
        return score

    def report(self, loss):
        dist.all_reduce(loss)  # HERE
        return loss / 2

    def run(self):
        for number in range(200):
            loss = self.step()
            if number == 80:
                print("hangs now", flush=True)
                print(self.report(loss) if self.rank == 1 else self.collect())  # HERE


if __name__ == "__main__":
    Session().run()
