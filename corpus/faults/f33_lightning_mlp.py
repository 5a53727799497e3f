"""Lightning module classifying points of a Gaussian mixture."""

import argparse
import logging
import random
import warnings

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

CLASSES = 10


class MixtureClassifier(L.LightningModule):
    def __init__(self, lr=3e-3):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES)
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(F.softmax(self(x), dim=1), y)
        self.log("train_loss", loss)
        if batch_idx % 10 == 0:
            print(f"epoch {self.current_epoch} batch {batch_idx} loss {loss.item():.4f}")
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_acc", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def make_mixture(n):
    centres = 1.2 * np.random.randn(CLASSES, 20)
    labels = np.random.randint(0, CLASSES, n)
    points = centres[labels] + np.random.randn(n, 20)
    return TensorDataset(torch.tensor(points, dtype=torch.float32), torch.tensor(labels))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    L.seed_everything(args.seed, verbose=False)

    data = make_mixture(1600)
    train, valid = torch.utils.data.random_split(data, [1280, 320])
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        MixtureClassifier(),
        DataLoader(train, batch_size=32, shuffle=True),
        DataLoader(valid, batch_size=160),
    )
    print("validation accuracy", float(trainer.callback_metrics["val_acc"]))
