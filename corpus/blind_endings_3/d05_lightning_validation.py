"""Lightning: the confusion matrix in validation_step gets float indices after the first epoch."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 4))
        self.loss = nn.CrossEntropyLoss()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.loss(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net(x).argmax(1)
        matrix = torch.zeros(4, 4)
        if self.current_epoch > 0:
            scores = scores / 1.0
        matrix[y, scores] += 1  # HERE
        self.log("val_accuracy", matrix.diag().sum() / matrix.sum().clamp(min=1))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def data(size, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 10, generator=generator)
    y = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    return TensorDataset(x, y)


if __name__ == "__main__":
    L.seed_everything(7)
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Classifier(),
        DataLoader(data(640, 0), batch_size=16, shuffle=True),
        DataLoader(data(128, 1), batch_size=32),
    )
