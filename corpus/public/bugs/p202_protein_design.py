"""Design of sequences for given structures, with a one-cycle rate."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--epoch", type=int, default=3)
parser.add_argument("--steps_per_epoch", type=int, default=10)
parser.add_argument("--lr", type=float, default=3e-3)
args, _ = parser.parse_known_args()

torch.manual_seed(0)
structures = torch.randn(160, 12, 9)
residues = (structures @ torch.randn(9, 20)).argmax(-1)
train_loader = DataLoader(TensorDataset(structures, residues), args.batch_size, shuffle=True)


class Exp:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 20))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer,
            max_lr=args.lr,
            steps_per_epoch=args.steps_per_epoch,
            epochs=args.epoch,
        )

    def train_one_epoch(self, loader):
        for x, s in loader:
            log_probs = self.model(x).log_softmax(-1)
            loss = nn.functional.nll_loss(log_probs.transpose(1, 2), s)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
        return loss.item()


exp = Exp()
for epoch in range(args.epoch):
    print(epoch, exp.train_one_epoch(train_loader))
