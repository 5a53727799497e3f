"""A small MLP on synthetic 8x8 digits."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.01)
args, _ = parser.parse_known_args()

random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)


def make_digits(n):
    """Ten blurred prototypes, each shown with noise."""
    prototypes = np.random.randn(10, 64).astype("float32")
    labels = np.random.randint(0, 10, size=n)
    images = prototypes[labels] + 0.9 * np.random.randn(n, 64).astype("float32")
    return torch.from_numpy(images), torch.from_numpy(labels)


images, labels = make_digits(2048)
train = TensorDataset(images[:1792], labels[:1792])
valid_x, valid_y = images[1792:], labels[1792:]
loader = DataLoader(train, batch_size=64, shuffle=True)

model = nn.Sequential(
    nn.Linear(64, 96),
    nn.ReLU(),
    nn.Linear(96, 48),
    nn.ReLU(),
    nn.Linear(48, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
criterion = nn.CrossEntropyLoss()

step = 0
for epoch in range(args.epochs):
    model.train()
    for x, y in loader:
        logits = model(x)
        loss = criterion(logits, y)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        step += 1

    model.eval()
    with torch.no_grad():
        accuracy = (model(valid_x).argmax(1) == valid_y).float().mean().item()
    print(f"epoch {epoch} accuracy {accuracy:.3f}")
