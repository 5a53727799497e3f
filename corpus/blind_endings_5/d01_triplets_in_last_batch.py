"""Metric learning: rows come in triplets; the last batch of the epoch is not a multiple of
three."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Triplets(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(1)
        self.anchors = torch.randn(size, 12, generator=generator)

    def __len__(self):
        return len(self.anchors)

    def __getitem__(self, item):
        return self.anchors[item] + 0.1 * (item % 3)


class TripletObjective(nn.Module):
    def __init__(self, margin=0.3):
        super().__init__()
        self.distance = nn.TripletMarginLoss(margin)

    def forward(self, embedded):
        anchor, positive, negative = embedded.view(3, -1, embedded.shape[-1])  # HERE
        return self.distance(anchor, positive, negative)


def main():
    torch.manual_seed(0)
    embed = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 8))
    objective = TripletObjective()
    optimizer = torch.optim.RMSprop(embed.parameters(), lr=1e-3)
    loader = DataLoader(Triplets(430), batch_size=24, shuffle=True)
    for epoch in range(2):
        for rows in loader:
            optimizer.zero_grad()
            objective(embed(rows)).backward()
            optimizer.step()
        print("epoch", epoch)


if __name__ == "__main__":
    main()
