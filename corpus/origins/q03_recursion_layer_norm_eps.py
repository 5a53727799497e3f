"""Loop: recursion over epochs and batches.

Fault: layer norm without eps of a constant row, in the forward pass; ops: layer_norm.
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(103)
signals = torch.randn(40, 12)
signals[25] = 1.5
marks = torch.randint(0, 4, (40,))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(12, 10)
        self.last = nn.Linear(10, 4)

    def forward(self, s):
        level = F.layer_norm(s, (12,), eps=0.0)  # <- origin
        return self.last(torch.tanh(self.inner(level)))


def step(net, optimizer, chunks):
    if not chunks:
        return
    s, mark = chunks[0]
    optimizer.zero_grad()
    F.cross_entropy(net(s), mark).backward()
    optimizer.step()
    step(net, optimizer, chunks[1:])


def epochs(net, optimizer, left):
    if left:
        step(net, optimizer, list(zip(signals.split(8), marks.split(8))))
        epochs(net, optimizer, left - 1)


if __name__ == "__main__":
    reader = Reader()
    epochs(reader, torch.optim.AdamW(reader.parameters(), lr=1e-3), 2)
