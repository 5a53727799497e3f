"""A model of characters, which will write texts later."""

import torch
from torch import nn

torch.manual_seed(0)
ALPHABET = 20
following = torch.stack([torch.randperm(ALPHABET)[:4] for _ in range(ALPHABET)])


def texts(count=24, length=17):
    rows = [torch.randint(ALPHABET, (count,))]
    for _ in range(length - 1):
        rows.append(following[rows[-1], torch.randint(4, (count,))])
    return torch.stack(rows, dim=1)


class CharLM(nn.Module):
    def __init__(self, dim=24, hidden=64):
        super().__init__()
        self.embed = nn.Embedding(ALPHABET, dim)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.decoder = nn.Linear(2 * hidden, ALPHABET)

    def forward(self, x):
        out, _ = self.lstm(self.embed(x))
        return self.decoder(out)


model = CharLM()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(80):
    text = texts()
    inputs, targets = text[:, :-1], text[:, 1:]
    logits = model(inputs)
    loss = nn.functional.cross_entropy(logits.reshape(-1, ALPHABET), targets.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
