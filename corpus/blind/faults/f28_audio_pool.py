"""Frame encoder, statistics pooling and a classifier."""

import argparse

import numpy as np
import torch
import torch.nn as nn


class FrameEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(8, 24, 5, padding=2)
        self.conv2 = nn.Conv1d(24, 24, 5, padding=2)

    def forward(self, x):
        return torch.relu(self.conv2(torch.relu(self.conv1(x))))


class SpeakerNet(nn.Module):
    def __init__(self, n_speakers=6):
        super().__init__()
        self.encoder = FrameEncoder()
        self.classifier = nn.Sequential(nn.Linear(72, 32), nn.ReLU(), nn.Linear(32, n_speakers))

    def pool(self, frames):
        f = frames.detach().cpu().numpy()
        stats = [f.mean(axis=2), f.std(axis=2), np.percentile(f, 90, axis=2)]
        return torch.from_numpy(np.concatenate(stats, axis=1).astype(np.float32))

    def forward(self, x):
        return self.classifier(self.pool(self.encoder(x)))


parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)
np.random.seed(args.seed)

voices = torch.randn(6, 8, 1)
model = SpeakerNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()
for it in range(100):
    speaker = torch.randint(0, 6, (32,))
    wave = voices[speaker] + 1.5 * torch.randn(32, 8, 40)
    loss = criterion(model(wave), speaker)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if it % 10 == 0:
        print(f"iter {it} loss {loss.item():.4f}")
