"""Gem classifier in Lightning with smoothed labels."""

import argparse
import logging
import warnings

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def gems(n, seed):
    g = torch.Generator().manual_seed(seed)
    kinds = torch.randn(6, 20, generator=torch.Generator().manual_seed(1234)) * 2
    y = torch.randint(0, 6, (n,), generator=g)
    return TensorDataset(kinds[y] + torch.randn(n, 20, generator=g), y)


class GemClassifier(pl.LightningModule):
    def __init__(self, smoothing: float = 0.2, lr: float = 3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 6)
        )
        self.train_criterion = nn.CrossEntropyLoss(label_smoothing=smoothing)
        self.val_criterion = nn.CrossEntropyLoss()

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.train_criterion(self(x), y)
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val/loss", self.val_criterion(logits, y))
        self.log("val/acc", (logits.argmax(-1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


class Report(pl.Callback):
    def on_train_epoch_end(self, trainer, module):
        m = {k: float(v) for k, v in trainer.callback_metrics.items()}
        print(
            f"epoch {trainer.current_epoch:2d} train {m.get('train/loss', 0):.4f} "
            f"val {m.get('val/loss', 0):.4f} acc {m.get('val/acc', 0):.3f}"
        )


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=0)
    seed = p.parse_known_args()[0].seed
    pl.seed_everything(seed, verbose=False)
    train = DataLoader(gems(960, seed), batch_size=48, shuffle=True)
    val = DataLoader(gems(240, seed + 99), batch_size=120)
    trainer = pl.Trainer(
        max_epochs=12,
        accelerator="cpu",
        callbacks=[Report()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(GemClassifier(), train, val)
