# seven-segment digits, small conv net
import argparse

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

SEGMENTS = {
    0: "abcdef", 1: "bc", 2: "abged", 3: "abgcd", 4: "fgbc",
    5: "afgcd", 6: "afgedc", 7: "abc", 8: "abcdefg", 9: "abcdfg",
}  # fmt: skip
STROKES = {
    "a": (0, 1, 1, 4), "b": (1, 4, 4, 5), "c": (5, 4, 8, 5), "d": (8, 1, 9, 4),
    "e": (5, 0, 8, 1), "f": (1, 0, 4, 1), "g": (4, 1, 5, 4),
}  # fmt: skip


def render(digit, rng):
    img = np.zeros((14, 10), dtype=np.float32)
    top, left = rng.integers(0, 4), rng.integers(0, 4)
    for s in SEGMENTS[digit]:
        r0, c0, r1, c1 = STROKES[s]
        img[top + r0 : top + r1, left + c0 : left + c1] = 1.0
    return img + 0.25 * rng.standard_normal(img.shape).astype(np.float32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.drop = nn.Dropout2d(0.1)
        self.fc1 = nn.Linear(16 * 5 * 3, 40)
        self.fc2 = nn.Linear(40, 10)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(torch.max_pool2d(self.conv2(x), 2))
        x = self.drop(x)
        x = torch.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(x)


def train(args, model, loader, optimizer, criterion, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            done = 100.0 * batch_idx / len(loader)
            print(f"Train Epoch: {epoch} ({done:.0f}%)\tLoss: {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser(description="Segment digits")
    parser.add_argument("--batch-size", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-interval", type=int, default=8)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    labels = rng.integers(0, 10, 1200)
    images = torch.tensor(np.stack([render(int(d), rng) for d in labels])).unsqueeze(1)
    loader = DataLoader(
        TensorDataset(images, torch.tensor(labels)), batch_size=args.batch_size, shuffle=True
    )
    model = Net()
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.NLLLoss()
    for epoch in range(1, args.epochs + 1):
        train(args, model, loader, optimizer, criterion, epoch)


if __name__ == "__main__":
    main()
