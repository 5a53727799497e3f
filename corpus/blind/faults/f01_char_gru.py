"""Character-level GRU on a small synthetic text."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)

words = ["the", "cat", "sat", "on", "a", "mat", "and", "ran", "far", "away"]
text = " ".join(random.choice(words) for _ in range(3000))
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
seq_len, batch_size = 32, 16


def get_batch():
    ix = torch.randint(len(data) - seq_len - 1, (batch_size,))
    x = torch.stack([data[i : i + seq_len] for i in ix])
    y = torch.stack([data[i + 1 : i + seq_len + 1] for i in ix])
    return x, y


class CharRNN(nn.Module):
    def __init__(self, vocab, hidden=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, 32)
        self.gru = nn.GRU(32, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, vocab)

    def forward(self, x):
        out, h = self.gru(self.emb(x))
        return self.fc(out)


model = CharRNN(len(chars))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for it in range(1, 121):
    x, y = get_batch()
    logits = model(x)
    loss = criterion(logits.view(-1, len(chars)), y.view(-1))
    loss.backward()
    optimizer.step()
    if it % 10 == 0:
        norm = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
        print(f"iter {it} loss {loss.item():.4f} |g| {norm.item():.3f}")
