"""Spots of tissue: a data module splits them, and the validation loss is watched."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class DataModule:
    def __init__(self, dataset, batch_size=32, validation_split=0.2):
        self.dataset, self.batch_size = dataset, batch_size
        self.validation_split = validation_split

    def setup(self):
        held = int(len(self.dataset) * self.validation_split)
        parts = [len(self.dataset) - held, held]
        self.train_dataset, self.val_dataset = random_split(self.dataset, parts)

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_dataset, batch_size=self.batch_size)


torch.manual_seed(0)
spots = torch.randn(320, 30)
layer = (spots[:, :10] @ torch.randn(10, 4) + torch.randn(320, 4)).argmax(1)
data = DataModule(TensorDataset(spots, layer))
data.setup()
model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
train_loader, val_loader = data.train_dataloader(), data.val_dataloader()
for epoch in range(5):
    model.train()
    for x, y in train_loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(model(x), y).item() for x, y in val_loader]
    print(epoch, f"{sum(losses) / len(losses):.3f}")
