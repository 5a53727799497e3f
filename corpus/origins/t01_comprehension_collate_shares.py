"""Loop: list comprehension over a loader with two workers.

Fault: 0 / 0 in the collate function, before the step; ops: div.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader


class Baskets(torch.utils.data.Dataset):
    def __init__(self):
        self.counts = torch.randint(1, 9, (48, 6)).float()
        self.counts[26] = 0.0

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, index):
        return self.counts[index], torch.tensor(index % 4)


def as_shares(items):
    counts = torch.stack([counts for counts, _ in items])
    shares = counts / counts.sum(dim=1, keepdim=True)  # <- origin
    return shares, torch.stack([label for _, label in items])


def step(x, label):
    loss = nn.functional.cross_entropy(net(x), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


if __name__ == "__main__":
    torch.manual_seed(401)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loader = DataLoader(Baskets(), batch_size=8, num_workers=2, collate_fn=as_shares)
    losses = [step(*batch) for epoch in range(2) for batch in loader]
