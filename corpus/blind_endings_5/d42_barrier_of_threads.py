"""Two replicas train in two threads and meet at a barrier; one of them finishes a round early."""

import threading
import time

import torch
from torch import nn


class Replica(threading.Thread):
    def __init__(self, number, rounds, barrier):
        super().__init__(name=f"replica-{number}")
        self.number, self.rounds, self.barrier = number, rounds, barrier
        self.model = nn.Linear(5, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def run(self):
        for turn in range(self.rounds):
            for _ in range(15):
                x = torch.randn(12, 5)
                loss = (self.model(x) - x[:, :1]).pow(2).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                time.sleep(0.01)
            if turn == 6:
                print("hangs now", flush=True)
            self.barrier.wait()  # HERE


def main():
    torch.manual_seed(0)
    barrier = threading.Barrier(2)
    replicas = [Replica(0, 7, barrier), Replica(1, 6, barrier)]
    for replica in replicas:
        replica.start()
    for replica in replicas:
        replica.join()  # HERE


main()
