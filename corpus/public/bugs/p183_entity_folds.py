"""A tagger of single tokens, trained on one fold after another."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
words = torch.randn(300, 16)
tags = (words @ torch.randn(16, 5)).argmax(1)
data = TensorDataset(words, tags)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        self.hidden = nn.Linear(16, 48)
        self.out = nn.Linear(48, 5)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


class Trainer:
    def __init__(self, model, folds=3):
        self.model, self.folds = model, folds
        self.optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def fit(self, epochs=2):
        parts = torch.randperm(len(data)).chunk(self.folds)
        for fold in range(self.folds):
            if fold:
                self.model.reset()
            rows = torch.cat([part for k, part in enumerate(parts) if k != fold])
            loader = DataLoader(Subset(data, rows.tolist()), batch_size=25, shuffle=True)
            for _ in range(epochs):
                for x, y in loader:
                    loss = nn.functional.cross_entropy(self.model(x), y)
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
            print(f"fold {fold}: {loss.item():.3f}")


trainer = Trainer(Tagger())
trainer.fit()
