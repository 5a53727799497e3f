"""Spot fraudulent transactions with a small network (Lightning)."""

import argparse
import logging
import random
import warnings

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class FraudModel(pl.LightningModule):
    def __init__(self, features=16, hidden=48, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(features, hidden),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 2),
        )
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.criterion(self.net(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        guess = self.net(x).argmax(1)
        self.log("accuracy", (guess == y).float().mean())
        self.log("flagged", guess.float().mean())

    def on_validation_epoch_end(self):
        metrics = self.trainer.callback_metrics
        if "loss" in metrics:
            text = ", ".join(f"{k} {float(v):.4f}" for k, v in metrics.items())
            print(f"epoch {self.current_epoch}: {text}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def make_transactions(n):
    fraud = (np.random.rand(n) < 0.015).astype(np.int64)
    x = np.random.randn(n, 16)
    x[:, :3] += 1.0 * fraud[:, None]
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(fraud))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    pl.seed_everything(args.seed, verbose=False)

    train, valid = random_split(make_transactions(3200), [2560, 640])
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(
        FraudModel(),
        train_dataloaders=DataLoader(train, batch_size=64, shuffle=True),
        val_dataloaders=DataLoader(valid, batch_size=320),
    )


if __name__ == "__main__":
    main()
