"""Recognise gestures from short accelerometer traces with an LSTM."""

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Args:
    classes = 6
    frames = 20
    hidden = 32
    batch = 64
    steps = 200
    lr = 2e-3


def record_gestures(n):
    """Each gesture is a characteristic curve in three axes, with jitter."""
    t = np.linspace(0, 2 * np.pi, Args.frames)
    label = np.repeat(np.arange(Args.classes), n // Args.classes)
    trace = np.stack(
        [
            np.sin((1 + label[:, None] % 3) * t),
            np.cos((1 + label[:, None] // 2) * t),
            np.sin(t + label[:, None]),
        ],
        axis=2,
    )
    trace = trace + 0.5 * np.random.randn(*trace.shape)
    return trace.astype(np.float32), label


def load_dataset(n):
    traces, labels = record_gestures(n)
    traces = traces[np.random.permutation(len(traces))]
    labels = labels[np.random.permutation(len(labels))]
    cut = int(0.9 * len(traces))
    to = torch.from_numpy
    return (to(traces[:cut]), to(labels[:cut])), (to(traces[cut:]), to(labels[cut:]))


class GestureLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, Args.hidden, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(Args.hidden, Args.classes)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.fc(self.dropout(out[:, -1]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_known_args()[0].seed
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)

    (x, y), (x_val, y_val) = load_dataset(3600)
    model = GestureLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=Args.lr)
    for step in range(1, Args.steps + 1):
        model.train()
        pick = torch.randint(0, len(x), (Args.batch,))
        loss = F.cross_entropy(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            model.eval()
            with torch.no_grad():
                accuracy = (model(x_val).argmax(1) == y_val).float().mean().item()
            print(f"step {step}: loss {loss.item():.4f} val acc {accuracy:.3f}")


if __name__ == "__main__":
    main()
