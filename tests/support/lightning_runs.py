"""Runs of a real Lightning Trainer on a small regression, for the tests of the adapter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.bad_samples import BATCH, loader
from support.trainings import Net, squared_error, state_of

try:
    import lightning.pytorch as pl
except ModuleNotFoundError:  # the older name may be there alone
    import pytorch_lightning as pl

STEPS = 40


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = Net()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = squared_error(self.net, batch)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * STEPS)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class ByHand(Regression):
    """Manual optimization: two optimizers, each for a part, stepped one after the other."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            loss = squared_error(self.net, batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return (
            torch.optim.AdamW([*self.net.inner.parameters(), *self.net.norm.parameters()], lr=1e-2),
            torch.optim.SGD(self.net.head.parameters(), lr=1e-2),
        )


class Witness(pl.Callback):
    """Copies weights, buffers and moments before and after every batch."""

    def __init__(self) -> None:
        self.before: list[dict[str, Any]] = []
        self.after: list[dict[str, Any]] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.before.append(everything(trainer))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.after.append(everything(trainer))


def everything(trainer: Any) -> dict[str, Any]:
    states = [state_of(trainer.lightning_module, item) for item in trainer.optimizers]
    return {str(at): state for at, state in enumerate(states)}


def fit(
    *callbacks: pl.Callback,
    bad: Sequence[int] = (),
    module: pl.LightningModule | None = None,
    ckpt_path: Path | None = None,
    data: Any = None,
    **options: Any,
) -> Any:
    """A Trainer that has fitted a module: `trainer.lightning_module`."""
    per_step = BATCH * options.get("accumulate_grad_batches", 1)
    trainer = pl.Trainer(
        **{
            "max_epochs": 1,
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "log_every_n_steps": 1,
            "callbacks": list(callbacks),
            **options,
        }
    )
    trainer.fit(
        module or Regression(),
        data or loader(STEPS * per_step, bad),
        ckpt_path=ckpt_path,
        **({"weights_only": False} if ckpt_path else {}),
    )
    return trainer


def loss_on_clean_data(trainer: Any) -> float:
    [batch] = torch.utils.data.DataLoader(loader(256).dataset, batch_size=256)
    module = trainer.lightning_module
    dtype = next(module.parameters()).dtype
    with torch.no_grad():
        return float(squared_error(module.net.eval(), tuple(part.to(dtype) for part in batch)))
