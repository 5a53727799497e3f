"""A forecast of standardised series with attention over the past, as a LightningModule."""

import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class BasicAttention(L.LightningModule):
    def __init__(self, features=5, hidden=24):
        super().__init__()
        self.rnn = nn.GRU(features, hidden, batch_first=True)
        self.score = nn.Linear(hidden, 1)
        self.predict = nn.Sequential(nn.Linear(hidden, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        states, _ = self.rnn(x)
        weights = self.score(torch.tanh(states)).softmax(dim=1)
        context = (weights * states).sum(dim=1)
        return torch.sigmoid(self.predict(context))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def series(count=480, length=12):
    x = torch.randn(count, length, 5)
    y = x[:, -3:, 0].sum(1, keepdim=True) - x[:, -2:, 1].sum(1, keepdim=True)
    y = y + 0.2 * torch.randn(count, 1)
    return TensorDataset(x, (y - y.mean()) / y.std())


def main():
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(BasicAttention(), DataLoader(series(), batch_size=24, shuffle=True))


if __name__ == "__main__":
    main()
