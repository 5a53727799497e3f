"""Loop: an IterableDataset with a collate function.

Fault: the mean of an empty sequence in the collate function: 0 / 0; ops: div.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Sentences(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(5)
        for number in range(48):
            size = 0 if number == 21 else 2 + number % 5
            yield torch.randn(size, 6, generator=generator), float(number % 2)


def average(samples):
    means = []
    for words, _ in samples:
        means.append(words.sum(dim=0) / len(words))  # <- origin
    return torch.stack(means), torch.tensor([label for _, label in samples])


torch.manual_seed(318)
net = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for mean, label in DataLoader(Sentences(), batch_size=8, collate_fn=average):
    loss = nn.functional.binary_cross_entropy_with_logits(net(mean)[:, 0], label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
