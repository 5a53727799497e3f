"""Makes the logs beside it, by the real thing: lightning 2.6.6, torch 2.13.0 (CPU).

python make.py healthy 2>&1 | tee healthy.log
python make.py nan     2>&1 | tee nan.log      a NaN in the weights from step 13 on
python make.py rich    2>&1 | tee rich.log     the bar that is drawn where rich is installed
"""

from __future__ import annotations

import sys

import lightning
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.body = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))

    def training_step(self, batch, index):
        if self.kind == "nan" and self.global_step == 13:
            with torch.no_grad():
                self.body[0].weight[0, 0] = float("nan")
        x, y = batch
        loss = nn.functional.cross_entropy(self.body(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main(kind: str) -> None:
    lightning.seed_everything(0)
    x = torch.randn(160, 8)
    loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16)
    lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
        callbacks=[] if kind == "rich" else [TQDMProgressBar(refresh_rate=1)],
    ).fit(Module(kind), loader)


if __name__ == "__main__":
    main(sys.argv[1])
