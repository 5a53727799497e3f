"""A small world model with Lightning: predict the next state."""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.manual_seed(0)
states = torch.randn(480, 10)
following = torch.tanh(states @ torch.randn(10, 10) / 2)


class WorldModel(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 48), nn.GELU(), nn.Linear(48, 10))

    def training_step(self, batch, batch_idx):
        now, after = batch
        loss = nn.functional.mse_loss(self.net(now), after) * 10
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(WorldModel(), DataLoader(TensorDataset(states, following), 20, shuffle=True))
