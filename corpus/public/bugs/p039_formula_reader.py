"""Read a formula from its picture: a decoder over padded token sequences."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
PAD, LONGEST = 0, 24
kind = torch.randint(0, 6, (320,))
tokens = torch.zeros(320, LONGEST, dtype=torch.long)
for row, length in enumerate(torch.randint(4, 8, (320,))):
    tokens[row, :length] = 1 + (kind[row] + 2 * torch.arange(length)) % 9
pictures = F.one_hot(kind, 6).float() + 0.1 * torch.randn(320, 6)


class AutoregressiveWrapper(nn.Module):
    def __init__(self, pad_value=PAD):
        super().__init__()
        self.pad_value = pad_value
        self.start = nn.Linear(6, 40)
        self.embed = nn.Embedding(10, 24)
        self.rnn = nn.GRU(24, 40, batch_first=True)
        self.head = nn.Linear(40, 10)

    def forward(self, picture, x):
        xi, xo = x[:, :-1], x[:, 1:]
        hidden, _ = self.rnn(self.embed(xi), self.start(picture).unsqueeze(0))
        out = self.head(hidden)
        loss = F.cross_entropy(out.transpose(1, 2), xo)
        return loss


net = AutoregressiveWrapper()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(5):
    for rows in torch.randperm(320).split(32):
        loss = net(pictures[rows], tokens[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
