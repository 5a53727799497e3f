"""Loop: Lightning with a data module; the batch is scaled in a hook.

Fault: log of a variance of 0, before the step; ops: log.
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Signals(L.LightningDataModule):
    def setup(self, stage):
        torch.manual_seed(426)
        self.signals = torch.randn(48, 30)
        self.signals[29] = 0.25
        self.kinds = torch.randint(0, 2, (48,))

    def train_dataloader(self):
        return DataLoader(TensorDataset(self.signals, self.kinds), batch_size=8)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        signal, kind = batch
        power = signal.var(dim=1, keepdim=True).log()  # <- origin
        return torch.cat([signal, power], dim=1), kind


class Detector(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(31, 8), nn.ReLU(), nn.Linear(8, 2))

    def training_step(self, batch, batch_idx):
        signal, kind = batch
        return nn.functional.cross_entropy(self.net(signal), kind)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Detector(), datamodule=Signals())
