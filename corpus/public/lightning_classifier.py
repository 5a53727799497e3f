"""Image classification in Lightning.

A LightningModule with a small residual network, a LightningDataModule over synthetic textures,
accuracy and per-class recall kept by hand-written metrics, AdamW with linear warm-up and cosine
decay, a checkpoint on the best validation accuracy, early stopping, and a test pass from the
best checkpoint.
"""

from __future__ import annotations

import argparse
import logging
import math
import tempfile
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore", category=UserWarning)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

CLASSES = ("stripes", "checks", "dots", "rings", "noise")


# --------------------------------------------------------------------------------------------
# data
# --------------------------------------------------------------------------------------------


def paint(kind: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """One 3-channel texture of the given kind, values roughly in [0, 1]."""
    u, v = np.meshgrid(np.arange(size), np.arange(size))
    phase = rng.uniform(0, 2 * np.pi, 2)
    freq = rng.uniform(0.7, 1.1)
    if kind == 0:
        angle = rng.uniform(0, np.pi)
        base = np.sin(freq * (np.cos(angle) * u + np.sin(angle) * v) + phase[0])
    elif kind == 1:
        base = np.sign(np.sin(freq * u + phase[0]) * np.sin(freq * v + phase[1]))
    elif kind == 2:
        base = 2.0 * (np.sin(freq * u + phase[0]) + np.sin(freq * v + phase[1]) > 1.1) - 1
    elif kind == 3:
        cy, cx = rng.uniform(size * 0.3, size * 0.7, 2)
        base = np.sin(1.4 * freq * np.hypot(u - cx, v - cy) + phase[0])
    else:
        base = rng.uniform(-1, 1, (size, size))
    tint = rng.uniform(0.5, 1.0, (3, 1, 1))
    image = 0.5 + 0.4 * tint * base[None]
    return (image + 0.08 * rng.standard_normal(image.shape)).astype(np.float32)


class TextureDataset(Dataset):
    def __init__(self, n: int, size: int, seed: int, augment: bool = False):
        rng = np.random.default_rng(seed)
        self.labels = torch.as_tensor(rng.integers(0, len(CLASSES), n))
        self.images = torch.as_tensor(np.stack([paint(int(k), size, rng) for k in self.labels]))
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[i]
        if self.augment:
            if torch.rand(()) < 0.5:
                image = image.flip(-1)
            if torch.rand(()) < 0.5:
                image = image.flip(-2)
            image = image * (0.9 + 0.2 * torch.rand(()))
        return (image - 0.5) / 0.3, self.labels[i]


class TextureData(L.LightningDataModule):
    def __init__(self, n_train: int = 640, size: int = 16, batch_size: int = 32, seed: int = 0):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str | None = None) -> None:
        h = self.hparams
        if stage in (None, "fit"):
            self.train_set = TextureDataset(h.n_train, h.size, h.seed, augment=True)
            self.val_set = TextureDataset(h.n_train // 4, h.size, h.seed + 10_000)
        if stage in (None, "test"):
            self.test_set = TextureDataset(h.n_train // 4, h.size, h.seed + 20_000)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(
            self.train_set, self.hparams.batch_size, shuffle=True, drop_last=True, num_workers=0
        )

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val_set, 2 * self.hparams.batch_size)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.test_set, 2 * self.hparams.batch_size)


# --------------------------------------------------------------------------------------------
# model
# --------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int = 1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(cin, cout, 3, stride, 1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, 1, 1, bias=False),
            nn.BatchNorm2d(cout),
        )
        if stride != 1 or cin != cout:
            self.skip: nn.Module = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )
        else:
            self.skip = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.skip(x))


class Confusion:
    """Counts predictions per true class until reset."""

    def __init__(self, n: int):
        self.table = torch.zeros(n, n, dtype=torch.long)

    def update(self, logits: torch.Tensor, target: torch.Tensor) -> None:
        n = self.table.shape[0]
        flat = target.cpu() * n + logits.detach().argmax(-1).cpu()
        self.table += torch.bincount(flat, minlength=n * n).view(n, n)

    def compute(self) -> tuple[float, list[float]]:
        accuracy = self.table.diag().sum().item() / max(1, self.table.sum().item())
        recall = (self.table.diag() / self.table.sum(1).clamp(min=1)).tolist()
        return accuracy, recall

    def reset(self) -> None:
        self.table.zero_()


class TextureClassifier(L.LightningModule):
    def __init__(
        self,
        width: int = 12,
        lr: float = 4e-3,
        weight_decay: float = 5e-2,
        warmup_steps: int = 10,
        label_smoothing: float = 0.05,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            Residual(width, width),
            Residual(width, 2 * width, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(2 * width, len(CLASSES)),
        )
        self.criterion = nn.CrossEntropyLoss(label_smoothing=label_smoothing)
        self.confusion = Confusion(len(CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        x, y = batch
        logits = self(x)
        loss = self.criterion(logits, y)
        acc = (logits.argmax(-1) == y).float().mean()
        self.log_dict({"train/loss": loss, "train/acc": acc}, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx: int) -> None:
        x, y = batch
        logits = self(x)
        self.confusion.update(logits, y)
        self.log("val/loss", F.cross_entropy(logits, y), prog_bar=True)

    def on_validation_epoch_end(self) -> None:
        accuracy, _ = self.confusion.compute()
        self.log("val/acc", accuracy, prog_bar=True)
        self.confusion.reset()

    def test_step(self, batch, batch_idx: int) -> None:
        x, y = batch
        self.confusion.update(self(x), y)

    def on_test_epoch_end(self) -> None:
        accuracy, recall = self.confusion.compute()
        self.log("test/acc", accuracy)
        for name, value in zip(CLASSES, recall, strict=True):
            print(f"  recall {name:8s} {value:.3f}")
        self.confusion.reset()

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.ndim > 1]
        plain = [p for p in self.parameters() if p.ndim <= 1]
        optimizer = torch.optim.AdamW(
            [
                {"params": decay, "weight_decay": self.hparams.weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=self.hparams.lr,
        )
        total = int(self.trainer.estimated_stepping_batches)
        warm = self.hparams.warmup_steps

        def factor(step: int) -> float:
            if step < warm:
                return (step + 1) / warm
            progress = (step - warm) / max(1, total - warm)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class EpochPrinter(Callback):
    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        m = trainer.callback_metrics
        shown = {k: float(m[k]) for k in ("train/loss", "val/loss", "val/acc") if k in m}
        print(
            f"epoch {trainer.current_epoch} " + " ".join(f"{k} {v:.4f}" for k, v in shown.items())
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-epochs", type=int, default=6)
    args, _ = parser.parse_known_args()
    L.seed_everything(args.seed, verbose=False)

    with tempfile.TemporaryDirectory() as folder:
        best = ModelCheckpoint(
            dirpath=Path(folder), filename="best", monitor="val/acc", mode="max", save_top_k=1
        )
        trainer = L.Trainer(
            max_epochs=args.max_epochs,
            accelerator="cpu",
            gradient_clip_val=1.0,
            callbacks=[best, EarlyStopping("val/loss", patience=4), EpochPrinter()],
            logger=False,
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        data = TextureData(seed=args.seed)
        trainer.fit(TextureClassifier(), datamodule=data)
        restored = TextureClassifier.load_from_checkpoint(best.best_model_path)
        result = trainer.test(restored, datamodule=data, verbose=False)
        print(f"test accuracy {result[0]['test/acc']:.3f}")


if __name__ == "__main__":
    main()
