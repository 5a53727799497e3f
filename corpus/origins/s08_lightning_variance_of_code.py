"""Loop: Lightning with automatic optimization.

Fault: exp of a large number, in the forward pass; ops: exp.
"""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(8, 6)
        self.decode = nn.Linear(3, 8)

    def training_step(self, batch, _):
        (x,) = batch
        mean, log_variance = self.encode(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean)
        rebuilt = (self.decode(z) - x).square().mean()
        divergence = self.divergence(mean, log_variance)
        return rebuilt + 1e-3 * divergence

    def divergence(self, mean, log_variance):
        variance = log_variance.exp()  # <- origin
        return (variance + mean.square() - 1 - log_variance).sum(dim=1).mean() / 2

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


torch.manual_seed(308)
rows = torch.randn(40, 8)
rows[18] = 400.0 * torch.randn(8)
trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Autoencoder(), DataLoader(TensorDataset(rows), batch_size=8))
