"""CNN with gradient accumulation to reach a larger effective batch."""

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--accumulation-steps", type=int, default=8)
args, _ = parser.parse_known_args()
random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)

labels = torch.randint(0, 5, (960,))
images = torch.randn(5, 1, 10, 10)[labels] + 0.7 * torch.randn(960, 1, 10, 10)
train_loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(1, 8, 3),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(64, 5),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()

optimizer.zero_grad()
for epoch in range(3):
    for i, (inputs, targets) in enumerate(train_loader):
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        if (i + 1) % args.accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        if (i + 1) % 40 == 0:
            print(f"epoch {epoch} batch {i + 1} loss {loss.item():.4f}")
