"""Lightning: validation_step divides by the number of positives, which is 0."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5, 2)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        hits = int(((self.net(x).argmax(1) == 1) & (y == 1)).sum())
        self.log("recall", hits / int(y.sum()))  # HERE

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


if __name__ == "__main__":
    L.seed_everything(0)
    x = torch.randn(320, 5)
    y = (x[:, 0] > 0).long()
    validation = TensorDataset(x[:32], torch.zeros(32, dtype=torch.long))
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    training = DataLoader(TensorDataset(x, y), batch_size=16)
    trainer.fit(Classifier(), training, DataLoader(validation, batch_size=8))
