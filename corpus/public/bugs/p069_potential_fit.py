"""Fit an interatomic potential with Lightning."""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.manual_seed(0)
distances = torch.rand(480, 6) * 2 + 0.5
energy = (distances**-2 - distances**-1).sum(1, keepdim=True) / 3


class Potential(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(6, 48), nn.SiLU())
        self.readout = nn.Linear(48, 1)
        self.scale = nn.Parameter(torch.ones(1))

    def training_step(self, batch, batch_idx):
        r, e = batch
        return nn.functional.mse_loss(self.scale * self.readout(self.embed(r - 1.5)), e)

    def configure_optimizers(self):
        groups = [{"params": self.embed.parameters()}, {"params": self.readout.parameters()}]
        return torch.optim.Adam(groups, lr=3e-3)


trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Potential(), DataLoader(TensorDataset(distances, energy), 20, shuffle=True))
