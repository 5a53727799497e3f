"""A Trainer class with a dictionary of settings; one key is spelt differently where it is read."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CONFIG = {
    "data": {"size": 512, "features": 8, "batch_size": 16},
    "optim": {"lr": 1e-2, "weight_decay": 0.0, "clip_norm": 1.0},
    "trainer": {"epochs": 4, "warm_epochs": 1},
}


class Sines(Dataset):
    def __init__(self, size, features):
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(size, features, generator=generator)
        self.y = torch.sin(self.x.sum(1, keepdim=True))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, item):
        return self.x[item], self.y[item]


class Trainer:
    def __init__(self, config):
        self.config = config
        data = config["data"]
        self.loader = DataLoader(
            Sines(data["size"], data["features"]), batch_size=data["batch_size"], shuffle=True
        )
        self.model = nn.Sequential(nn.Linear(data["features"], 64), nn.Tanh(), nn.Linear(64, 1))
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config["optim"]["lr"],
            weight_decay=config["optim"]["weight_decay"],
        )
        self.epoch = 0

    def fit(self):
        for self.epoch in range(self.config["trainer"]["epochs"]):
            mean = self._run_epoch()
            print(f"epoch {self.epoch}: loss {mean:.4f}")

    def _run_epoch(self):
        total = 0.0
        for batch in self.loader:
            total += self._run_batch(batch)
        return total / len(self.loader)

    def _run_batch(self, batch):
        inputs, targets = batch
        loss = self.criterion(self.model(inputs), targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._clip()
        self.optimizer.step()
        return loss.item()

    def _clip(self):
        if self.epoch >= self.config["trainer"]["warm_epochs"]:
            limit = self.config["optim"]["grad_clip"]  # HERE
            nn.utils.clip_grad_norm_(self.model.parameters(), limit)


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(CONFIG).fit()
