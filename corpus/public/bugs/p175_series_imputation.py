"""Imputation of short series; the best model of the validation is kept and restored."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def series(count):
    t = torch.linspace(0, 6, 24)
    x = torch.sin(t * (0.5 + torch.rand(count, 1)) + 6.28 * torch.rand(count, 1))
    return x + 0.1 * torch.randn(count, 24), torch.rand(count, 24) < 0.3


class Imputer:
    def __init__(self, epochs=8, patience=3):
        self.epochs, self.patience = epochs, patience
        self.model = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 24))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.best_loss = float("inf")
        self.best_model_dict = None

    def loss(self, x, missing):
        seen = x.masked_fill(missing, 0.0)
        filled = self.model(torch.cat([seen, missing.float()], dim=1))
        return ((filled - x) ** 2)[missing].mean()

    def fit(self, train, val):
        patience = self.patience
        for epoch in range(self.epochs):
            self.model.train()
            for x, missing in train:
                self.optimizer.zero_grad()
                loss = self.loss(x, missing)
                loss.backward()
                self.optimizer.step()
            self.model.eval()
            with torch.no_grad():
                val_loss = sum(self.loss(*batch).item() for batch in val) / len(val)
            if val_loss < self.best_loss:
                self.best_loss = val_loss
                self.best_model_dict = self.model.state_dict()
                patience = self.patience
            else:
                patience -= 1
                if patience == 0:
                    break
        self.model.load_state_dict(self.best_model_dict)
        self.model.eval()


train = DataLoader(TensorDataset(*series(192)), batch_size=32, shuffle=True)
val = DataLoader(TensorDataset(*series(64)), batch_size=64)
imputer = Imputer()
imputer.fit(train, val)
print(f"best validation loss {imputer.best_loss:.4f}")
