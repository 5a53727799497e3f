"""LSTM forecaster trained in two sessions."""

import argparse
import os
import tempfile

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Forecaster(nn.Module):
    def __init__(self, dim=1, hidden=48):
        super().__init__()
        self.lstm = nn.LSTM(dim, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x):
        _, (h, _) = self.lstm(x)
        return self.fc(h[-1])


class Session:
    def __init__(self, workdir, lr=1e-2):
        self.path = os.path.join(workdir, "model.pth")
        self.model = Forecaster()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.epoch = 0

    def save(self):
        torch.save({"epoch": self.epoch, "state_dict": self.model.state_dict()}, self.path)

    def load(self):
        ckpt = torch.load(self.path)
        self.model.load_state_dict(ckpt["state_dict"])
        self.epoch = ckpt["epoch"]
        print("=> loaded checkpoint, epoch", self.epoch)

    def run(self, loader, until):
        criterion = nn.MSELoss()
        while self.epoch < until:
            for x, y in loader:
                self.optimizer.zero_grad()
                loss = criterion(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                print(f"epoch {self.epoch} loss {loss.item():.6f}")
            self.epoch += 1
            self.save()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    t = torch.arange(17.0)
    freq, phase = 0.2 + 0.6 * torch.rand(384, 1), 6.28 * torch.rand(384, 1)
    series = torch.sin(freq * t + phase)
    x, y = series[:, :16].unsqueeze(-1), series[:, 16:]
    loader = DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True)

    workdir = tempfile.mkdtemp()
    Session(workdir).run(loader, until=25)
    second = Session(workdir)
    second.load()
    second.run(loader, until=60)


if __name__ == "__main__":
    main()
