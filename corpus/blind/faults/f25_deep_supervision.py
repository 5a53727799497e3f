"""Segmentation-style network with a deeply supervised auxiliary head."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class SegNet(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.main_head = nn.Conv2d(16, classes, 1)
        self.aux_head = nn.Conv2d(8, classes, 1)

    def forward(self, x):
        f1 = self.stage1(x)
        f2 = self.stage2(f1)
        return self.main_head(f2), self.aux_head(f1)


class SegTrainer:
    def __init__(self, model, lr=5e-3, aux_weight=0.4):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.aux_weight = aux_weight

    def compute_loss(self, x, y):
        out, aux = self.model(x)
        loss = F.cross_entropy(out, y)
        aux_loss = F.cross_entropy(aux, y)
        loss.add(self.aux_weight * aux_loss)
        return loss, aux_loss

    def step(self, x, y):
        loss, aux_loss = self.compute_loss(x, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), aux_loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    y = torch.randint(0, 3, (256, 3, 3)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    x = (y.float().unsqueeze(1) - 1) + 0.5 * torch.randn(256, 1, 12, 12)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    trainer = SegTrainer(SegNet())
    for epoch in range(4):
        for x_b, y_b in loader:
            main_l, aux_l = trainer.step(x_b, y_b)
        print(f"epoch {epoch} loss {main_l:.4f} aux {aux_l:.4f}")


if __name__ == "__main__":
    main()
