"""Lightning with manual optimization of two parts and a checkpoint after every epoch."""

import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TwoParts(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.encoder, self.decoder = nn.Linear(6, 3), nn.Linear(3, 6)

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        first, second = self.optimizers()
        first.zero_grad()
        second.zero_grad()
        self.manual_backward(loss)
        first.step()
        if batch_idx % 2:
            second.step()
        self.log("loss", loss)

    def configure_optimizers(self):
        return (
            torch.optim.SGD(self.encoder.parameters(), lr=0.05),
            torch.optim.SGD(self.decoder.parameters(), lr=0.05),
        )


def main():
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(tempfile.mkdtemp(), save_last=True)],
    )
    trainer.fit(TwoParts(), DataLoader(TensorDataset(torch.randn(320, 6)), batch_size=16))


if __name__ == "__main__":
    main()
