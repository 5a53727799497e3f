"""Lightning regression with a cosine schedule that ends at zero with the run."""

import argparse
import logging
import random
import warnings

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Surface(L.LightningModule):
    def __init__(self, lr=5e-3):
        super().__init__()
        self.lr = lr
        self.model = nn.Sequential(
            nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
        )

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.smooth_l1_loss(self.model(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val_loss", nn.functional.smooth_l1_loss(self.model(x), y))

    def on_train_epoch_end(self):
        metrics = self.trainer.callback_metrics
        rate = self.optimizers().param_groups[0]["lr"]
        print(
            f"epoch {self.current_epoch} train {float(metrics['train_loss']):.4f} "
            f"val {float(metrics['val_loss']):.4f} lr {rate:.2e}"
        )

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def make_surface(n):
    x = torch.rand(n, 6) * 2 - 1
    y = torch.sin(3 * x[:, 0]) * x[:, 1] + x[:, 2] ** 2 - 0.5 * x[:, 3]
    y = (y - y.mean()) / y.std() + 0.05 * torch.randn(n)
    return TensorDataset(x, y.unsqueeze(1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    L.seed_everything(args.seed, verbose=False)

    train, valid = torch.utils.data.random_split(make_surface(1920), [1600, 320])
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Surface(), DataLoader(train, batch_size=40, shuffle=True), DataLoader(valid, batch_size=160)
    )
