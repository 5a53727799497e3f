"""A tagger with one object that computes the loss for training and validation."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
x = torch.randn(360, 18)
y = (x @ torch.randn(18, 5)).argmax(1)
train_set, val_set = random_split(TensorDataset(x, y), [280, 80])


class SimpleLossCompute:
    def __init__(self, criterion, opt=None):
        self.criterion, self.opt = criterion, opt

    def __call__(self, out, y):
        loss = self.criterion(out, y)
        loss.backward()
        if self.opt is not None:
            self.opt.step()
            self.opt.zero_grad()
        return loss.item()


def run_epoch(loader, model, loss_compute):
    total = 0.0
    for x, y in loader:
        total += loss_compute(model(x), y)
    return total / len(loader)


model = nn.Sequential(nn.Linear(18, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 5))
criterion = nn.CrossEntropyLoss()
model_opt = torch.optim.Adam(model.parameters(), lr=1e-3)
train_loader = DataLoader(train_set, batch_size=40, shuffle=True)
val_loader = DataLoader(val_set, batch_size=40)
for epoch in range(8):
    model.train()
    run_epoch(train_loader, model, SimpleLossCompute(criterion, model_opt))
    model.eval()
    print(epoch, run_epoch(val_loader, model, SimpleLossCompute(criterion, None)))
