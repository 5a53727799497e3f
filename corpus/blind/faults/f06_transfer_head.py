"""Train a new head on top of a pretrained backbone."""

import argparse
import os
import tempfile

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)


def make_backbone():
    return nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU())


class TransferModel(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.backbone = make_backbone()
        self.head = nn.Linear(48, n_classes)

    def forward(self, x):
        return self.head(self.backbone(x))


ckpt = os.path.join(tempfile.mkdtemp(), "backbone.pt")
torch.save(make_backbone().state_dict(), ckpt)

model = TransferModel(5)
model.backbone.load_state_dict(torch.load(ckpt))
# keep the pretrained features fixed, train only the head
model.backbone.requires_grad = False

w = torch.randn(24, 5)
X = torch.randn(600, 24)
Y = (X @ w).argmax(1)
loader = DataLoader(TensorDataset(X, Y), batch_size=20, shuffle=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
start = model.backbone[0].weight.detach().clone()

for epoch in range(3):
    for i, (xb, yb) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            print(f"epoch {epoch} iter {i} loss {loss.item():.4f}")
print("backbone moved by", (model.backbone[0].weight - start).norm().item())
