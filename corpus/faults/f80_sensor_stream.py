"""Online classification of sensor frames read from the packets of two loggers."""

import argparse
import struct

import numpy as np
import torch
from torch import nn

CHANNELS, CLASSES, FRAMES = 12, 4, 48
COUNTS_FROM_B = range(120, 124)
GAIN, OFFSET = 32.0, 128.0


class FrameStream:
    """Frames as a logger writes them: little-endian float32, one packet per batch."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.centres = 1.6 * self.rng.standard_normal((CLASSES, CHANNELS))

    def calibration(self, index):
        """Two loggers take turns; the second one writes raw counts."""
        return (GAIN, OFFSET) if index in COUNTS_FROM_B else (1.0, 0.0)

    def packet(self, index):
        y = self.rng.integers(0, CLASSES, FRAMES)
        x = self.centres[y] + self.rng.standard_normal((FRAMES, CHANNELS))
        scale, zero = self.calibration(index)
        raw = (x * scale + zero).astype("<f4").tobytes()
        return struct.pack("<I", index) + raw, y

    def read(self, index):
        blob, y = self.packet(index)
        x = np.frombuffer(blob[4:], dtype="<f4").reshape(FRAMES, CHANNELS)
        return torch.from_numpy(x.copy()), torch.from_numpy(y)


class FrameNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(CHANNELS, 48)
        self.fc2 = nn.Linear(48, 48)
        self.fc3 = nn.Linear(48, CLASSES)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packets", type=int, default=260)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    stream = FrameStream(args.seed)
    net = FrameNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    recent = []
    for index in range(args.packets):
        x, y = stream.read(index)
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss.item())
        if index % 20 == 19:
            print(f"packet {index + 1:4d} loss {sum(recent) / len(recent):.4f}")
            recent = []


if __name__ == "__main__":
    main()
