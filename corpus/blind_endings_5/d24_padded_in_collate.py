"""A numpy mask for all pairs of positions is made in collate; one document is a whole library."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

LENGTHS = [12 + 7 * i % 40 for i in range(300)]
LENGTHS[211] = 5_000_000


def with_masks(lengths):
    longest = max(lengths)
    mask = np.zeros((len(lengths), longest, longest), dtype=np.float32)  # HERE
    for row, length in enumerate(lengths):
        mask[row, :length, :length] = 1
    return torch.from_numpy(mask)


def main():
    torch.manual_seed(0)
    scale = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(scale.parameters(), lr=1e-2)
    for masks in DataLoader(LENGTHS, batch_size=10, collate_fn=with_masks):
        share = masks.mean(dim=(1, 2)).unsqueeze(1)
        loss = nn.functional.mse_loss(scale(share), 1 - share)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
