"""Lightning: a callback reads a metric that was never logged."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5, 1)

    def training_step(self, batch, batch_idx):
        (x,) = batch
        return (self.net(x) - x.sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Printer(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == 14:
            print(trainer.callback_metrics["accuracy"])  # HERE


if __name__ == "__main__":
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[Printer()],
    )
    trainer.fit(Net(), DataLoader(TensorDataset(torch.randn(400, 5)), batch_size=16))
