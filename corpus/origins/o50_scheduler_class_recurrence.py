"""Loop: scheduler class. Fault: recurrence, in the forward pass; ops: linear add."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(50)
    x = torch.randn(48, 6)
    y = x[:, :1] * 0.5 + 0.1 * torch.randn(48, 1)
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(1, 12)
        self.rec = nn.Linear(12, 12)
        nn.init.orthogonal_(self.rec.weight, gain=40.0)
        self.head = nn.Linear(12, 1)

    def forward(self, x):
        h = torch.zeros(len(x), 12)
        for _ in range(5):
            for t in range(x.shape[1]):
                h = self.inp(x[:, t : t + 1]) + self.rec(h)  # <- origin
        return self.head(h)


def compute_loss(net, x, y):
    return F.mse_loss(net(x), y)


class Trainer:
    def __init__(self, epochs=2):
        x, y = make_data()
        self.epochs = epochs
        self.loader = DataLoader(TensorDataset(x, y), batch_size=16)
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)

    def run(self):
        for _ in range(self.epochs):
            self.run_epoch()
            self.schedule.step()

    def run_epoch(self):
        for batch in self.loader:
            self.optimizer.zero_grad()
            self.loss(batch).backward()
            self.optimizer.step()

    def loss(self, batch):
        return compute_loss(self.net, *batch)


def main():
    Trainer().run()


if __name__ == "__main__":
    main()
