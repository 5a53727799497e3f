"""Intent detection with a one-dimensional convolution over word vectors."""

import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def seed_all(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)


class IntentCNN(nn.Module):
    def __init__(self, vocab=100, dim=24, intents=6):
        super().__init__()
        self.words = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, 48, kernel_size=3, padding=1)
        self.fc = nn.Linear(48, intents)

    def forward(self, tokens):
        x = self.words(tokens).transpose(1, 2)
        x = F.relu(self.conv(x)).amax(dim=2)
        x = self.fc(x)
        return F.log_softmax(x, dim=0)


def utterances(n):
    intents = np.random.randint(0, 6, n)
    tokens = np.random.randint(60, 100, (n, 10))
    where = np.random.randint(0, 8, n)
    for i in range(n):
        tokens[i, where[i]] = intents[i] * 10 + np.random.randint(10)
        tokens[i, where[i] + 1] = intents[i] * 10 + np.random.randint(10)
    return torch.from_numpy(tokens), torch.from_numpy(intents)


def batches(x, y, size):
    order = np.random.permutation(len(x))
    for i in range(0, len(order) - size + 1, size):
        yield x[order[i : i + size]], y[order[i : i + size]]


def main(seed):
    seed_all(seed)
    x, y = utterances(960)
    model = IntentCNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(10):
        losses, hits, seen = [], 0, 0
        for xb, yb in batches(x, y, 48):
            log_probs = model(xb)
            loss = F.nll_loss(log_probs, yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            hits += int((log_probs.argmax(1) == yb).sum())
            seen += len(yb)
        print(f"epoch {epoch:2d}: loss {np.mean(losses):.3f} accuracy {hits / seen:.3f}")


if __name__ == "__main__":
    argv = sys.argv[1:]
    main(int(argv[argv.index("--seed") + 1]) if "--seed" in argv else 0)
