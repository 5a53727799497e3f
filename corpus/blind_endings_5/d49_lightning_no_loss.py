"""Lightning: training_step of the second stage returns a dictionary without a loss."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Stages(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))

    def training_step(self, batch, index):
        x, y = batch
        error = (self.net(x) - y).pow(2).mean()
        if self.current_epoch < 1:
            return {"loss": error}
        return {"error": error}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(240, 6)
    loader = DataLoader(TensorDataset(x, x.mean(1, keepdim=True)), batch_size=12)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Stages(), loader)  # HERE
