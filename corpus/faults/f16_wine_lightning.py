"""Wine cultivar classifier in Lightning."""

import argparse
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class WineData(L.LightningDataModule):
    def __init__(self, seed, n=900):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        centres = torch.randn(4, 13, generator=g)
        y = torch.randint(0, 4, (n,), generator=g)
        x = centres[y] + 0.7 * torch.randn(n, 13, generator=g)
        self.train_set = TensorDataset(x[:700], y[:700])
        self.val_set = TensorDataset(x[700:], y[700:])

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=50, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=100)


class WineModel(L.LightningModule):
    def __init__(self, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(13, 48), nn.ReLU(), nn.Linear(48, 4))
        self.seen = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        self.seen.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(1) == y).float().mean())

    def on_train_epoch_end(self):
        mean = sum(self.seen) / len(self.seen)
        acc = self.trainer.callback_metrics.get("val_acc", torch.tensor(0.0))
        print(f"epoch {self.current_epoch}: loss {mean:.4f} val_acc {acc.item():.3f}")
        self.seen.clear()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--seed", type=int, default=0)
    seed = cli.parse_known_args()[0].seed
    L.seed_everything(seed, verbose=False)
    trainer = L.Trainer(
        max_epochs=10,
        accelerator="cpu",
        gradient_clip_val=0.001,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(WineModel(), datamodule=WineData(seed))
