"""Makes the files of this folder with a real Lightning Trainer (lightning 2.6, torch 2.13, CPU).

    python tests/data/lightning-csv/make.py

In `faulty.csv` the loss becomes NaN at batch 23 and stays so.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger

HERE = Path(__file__).parent


class Regression(pl.LightningModule):
    def __init__(self, bad: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bad = bad
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, targets = batch
        loss = (self.net(inputs) - targets).pow(2).mean()
        if self.global_step == self.bad:
            loss = loss * float("nan")
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets = batch
        self.log("val_loss", (self.net(inputs) - targets).pow(2).mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 80)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def run(name: str, bad: int | None) -> None:
    inputs = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    with tempfile.TemporaryDirectory() as out:
        logger = CSVLogger(out, name="run")
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=4,
            logger=logger,
            log_every_n_steps=2,
            callbacks=[LearningRateMonitor("step")],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Regression(bad), loader, loader)
        shutil.copy(Path(logger.log_dir) / "metrics.csv", HERE / f"{name}.csv")


if __name__ == "__main__":
    run("healthy", None)
    run("faulty", 23)
