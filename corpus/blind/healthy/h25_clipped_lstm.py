"""LSTM language model; a tight clip with a large rate acts on every step."""

import argparse

import numpy as np
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)
rng = np.random.default_rng(args.seed)
V = 16
nxt = rng.integers(0, V, size=(V, 2))
seq = [0]
for _ in range(6000):
    seq.append(int(nxt[seq[-1], rng.integers(0, 2)]))
data = torch.tensor(seq)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, 32)
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.out = nn.Linear(64, V)

    def forward(self, x):
        return self.out(self.lstm(self.emb(x))[0])


model = LM()
optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
criterion = nn.CrossEntropyLoss()
for step in range(160):
    ix = torch.randint(0, len(data) - 21, (32,))
    x = torch.stack([data[i : i + 20] for i in ix])
    y = torch.stack([data[i + 1 : i + 21] for i in ix])
    loss = criterion(model(x).reshape(-1, V), y.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f} norm {norm:.3f}")
