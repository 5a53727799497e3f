"""Loop: two epochs over a loader with workers that stay.

Fault: scaling by a range of 0, before the step; ops: div.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Strips(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        strip = torch.cos(torch.arange(12.0) * (1 + index % 7)) * (index != 29)
        strip = (strip - strip.min()) / (strip.max() - strip.min())  # <- origin
        return strip, torch.tensor(float(index % 7))


if __name__ == "__main__":
    torch.manual_seed(206)
    net = nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loader = DataLoader(Strips(), batch_size=8, num_workers=1, persistent_workers=True)
    for _ in range(2):
        for strip, wanted in loader:
            loss = (net(strip)[:, 0] - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
