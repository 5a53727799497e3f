"""The loop waits until its logger has written everything; the logger forgets task_done once."""

import queue
import threading
import time

import torch
from torch import nn


class Logger(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.rows, self.written = queue.Queue(), 0

    def run(self):
        while True:
            row = self.rows.get()
            if row["step"] == 111:
                continue
            self.written += 1
            self.rows.task_done()


class Training:
    def __init__(self):
        self.logger = Logger()
        self.logger.start()
        self.model = nn.Linear(10, 2)
        self.optimizer = torch.optim.Adamax(self.model.parameters(), lr=2e-3)

    def epoch(self, first):
        for step in range(first, first + 75):
            x = torch.randn(14, 10)
            loss = nn.functional.cross_entropy(self.model(x), (x[:, 0] > 0).long())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.logger.rows.put({"step": step, "loss": loss.item()})
            time.sleep(0.01)
        if first == 75:
            print("hangs now", flush=True)
        self.logger.rows.join()  # HERE


torch.manual_seed(0)
training = Training()
for number in range(4):
    training.epoch(75 * number)
