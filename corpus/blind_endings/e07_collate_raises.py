"""The user's collate function stacks sequences of two lengths."""

import torch
from torch import nn
from torch.utils.data import DataLoader


def pad_batch(samples):
    sequences = [sequence for sequence, _ in samples]
    labels = torch.tensor([label for _, label in samples])
    return torch.stack(sequences), labels  # HERE


def samples():
    g = torch.Generator().manual_seed(0)
    out = []
    for index in range(500):
        length = 21 if index == 388 else 20
        sequence = torch.randn(length, generator=g)
        out.append((sequence, int(sequence[:20].sum() > 0)))
    return out


torch.manual_seed(0)
model = nn.Linear(20, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(samples(), batch_size=10, collate_fn=pad_batch)
step = 0
for batch, labels in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch), labels)
    loss.backward()
    optimizer.step()
    step += 1
