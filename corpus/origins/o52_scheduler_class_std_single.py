"""Loop: scheduler class. Fault: std single, in the forward pass; ops: std."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(52)
    x = torch.randn(48, 6)
    y = x[:, :1] * 0.5 + 0.1 * torch.randn(48, 1)
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.body(x))


def compute_loss(net, x, y):
    out = net(x)
    spread = torch.stack([group.std() for group in out[:1].split(1)])  # <- origin
    return F.mse_loss(out, y) + spread.mean()


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
