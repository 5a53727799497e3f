"""The hidden state of an LSTM is carried over without detach: backward a second time."""

import torch
from torch import nn


class Characters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Linear(32, 30)

    def forward(self, ids, state):
        out, state = self.lstm(self.embedding(ids), state)
        return self.head(out), state


def main():
    torch.manual_seed(0)
    text = torch.arange(4000).remainder(30).reshape(4, 1000)
    model = Characters()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    state = None
    for start in range(0, 960, 20):
        ids, targets = text[:, start : start + 20], text[:, start + 1 : start + 21]
        logits, new_state = model(ids, state)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()  # HERE
        optimizer.step()
        if start >= 400:
            state = new_state
        else:
            state = tuple(part.detach() for part in new_state)


if __name__ == "__main__":
    main()
