"""Speaker classification with statistics pooling, in float16 with a gradient scaler."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SPEAKERS, FRAMES, BANDS = 6, 24, 20


class StatisticsPooling(nn.Module):
    """Mean and standard deviation over time."""

    def forward(self, h):
        mean = h.mean(dim=1)
        variance = (h - mean.unsqueeze(1)).pow(2).mean(dim=1)
        return torch.cat([mean, torch.sqrt(variance + 1e-9)], dim=1)


class SpeakerNet(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.frame = nn.Sequential(nn.Linear(BANDS, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.pool = StatisticsPooling()
        self.out = nn.Sequential(nn.ReLU(), nn.Linear(2 * dim, SPEAKERS))

    def forward(self, x):
        return self.out(self.pool(self.frame(x)))


def make_clips(n):
    voices = torch.randn(SPEAKERS, BANDS)
    speaker = torch.randint(0, SPEAKERS, (n,))
    clips = voices[speaker].unsqueeze(1) + torch.randn(n, FRAMES, BANDS)
    clips = clips / clips.std()
    quiet = torch.rand(n) < 0.15  # the voice detector blanks clips without speech
    clips[quiet] = 0.0
    return TensorDataset(clips, speaker)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    loader = DataLoader(make_clips(1280), batch_size=32, shuffle=True)
    model = SpeakerNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        for i, (clips, speaker) in enumerate(loader):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = criterion(model(clips), speaker)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if i % 10 == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
