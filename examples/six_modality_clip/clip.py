"""Train six small encoders to find each other: synthetic views in place of an image and captions.

python clip.py OUT --loss nway --batch 64
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from published import FORMS, SCALE, dense_loss, needed_bytes, readable
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import headway
from headway.integrations.lightning import HeadwayCallback
from headway.numerics import nway_contrastive

VIEWS, LATENT, WIDTH, EMBED = 6, 8, 24, 512
MEMORY = 2 * 2**30
"""Maximum size of one tensor in bytes."""

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def six_views(count: int, seed: int, missing: float) -> list[Tensor]:
    """Nonlinear views of the same hidden points; missing captions are rows of zeros."""
    maps = torch.Generator().manual_seed(0)
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, LATENT, generator=draw)
    views = []
    for view in range(VIEWS):
        bend = torch.randn(LATENT, WIDTH, generator=maps) / LATENT**0.5
        noise = 0.2 * torch.randn(count, WIDTH, generator=draw)
        there = torch.rand(count, 1, generator=draw) >= (missing if view else 0)
        views.append((torch.tanh(hidden @ bend) + noise) * there)
    return views


class Encoder(nn.Module):
    """An encoder that maps zeros to zeros before training."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 64, bias=False)
        self.second = nn.Linear(64, 64)
        nn.init.zeros_(self.second.bias)
        self.last = nn.Linear(64, EMBED, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.second(F.gelu(self.first(x)))))


class SixWay(L.LightningModule):
    def __init__(self, loss: str, half: bool) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(Encoder() for _ in range(VIEWS))
        self.kind, self.half_precision = loss, half
        self.losses: list[str] = []

    def forward(self, views: list[Tensor]) -> list[Tensor]:
        return [encoder(view) for encoder, view in zip(self.encoders, views, strict=True)]

    def training_step(self, views: list[Tensor], _: int) -> Tensor:
        with torch.autocast(self.device.type, torch.float16, enabled=self.half_precision):
            features = self(views)
            if self.kind == "nway":
                loss = nway_contrastive(features, scale=SCALE)
            else:
                loss = dense_loss(FORMS[self.kind](features))
        self.losses.append(loss.item().hex())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=2e-3)

    @torch.no_grad()
    def found(self, views: list[Tensor]) -> float:
        """The share of samples whose first view is retrieved by the other five."""
        features = [F.normalize(feature, dim=1) for feature in self(views)]
        picked = (torch.stack(features[1:]).sum(0) @ features[0].T).argmax(1)
        return (picked == torch.arange(len(picked))).float().mean().item()

    @torch.no_grad()
    def narrowness(self, views: list[Tensor]) -> float:
        """The share of the features' squared length on a single coordinate."""
        features = torch.stack([F.normalize(feature, dim=1) for feature in self(views)])
        return features.square().mean((0, 1)).max().item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--loss", default="nway", choices=["nway", *FORMS])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--half", action="store_true", help="autocast to fp16")
    parser.add_argument("--missing", type=float, default=0.1, help="share of missing captions")
    parser.add_argument("--guard", action="store_true", help="guarded, and shown in trackers")
    parser.add_argument("--checkpointing", action="store_true", help="recompute in backward")
    parser.add_argument("--dead", action="store_true", help="spoil one encoder")
    args = parser.parse_args()
    torch.set_num_threads(1)  # for a model this small, more threads make it slower
    L.seed_everything(0, verbose=False)

    needed = needed_bytes(args.loss, args.batch, EMBED) if args.loss in FORMS else 0
    if needed > MEMORY:
        sys.exit(
            f"the {args.loss} form of batch {args.batch} needs {readable(needed)} for one tensor; "
            f"{readable(MEMORY)} are allowed. Take --loss nway."
        )
    model = SixWay(args.loss, args.half)
    if args.dead:
        nn.init.constant_(model.encoders[3].second.bias, -20)
    if args.checkpointing:
        headway.checkpoint_activations(model, classes=Encoder)
    data = TensorDataset(*six_views(args.batch * args.steps, 1, args.missing))
    unseen = six_views(128, 2, 0.0)
    callbacks: list[Any] = []
    if args.guard:
        trackers = [f"tensorboard:{args.out / 'tensorboard'}", "wandb"]
        callbacks = [HeadwayCallback(run_dir=args.out / "run", trackers=trackers)]
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    before = model.found(unseen)
    trainer.fit(model, DataLoader(data, batch_size=args.batch))
    after = model.found(unseen)
    losses = [float.fromhex(loss) for loss in model.losses]
    narrow = model.narrowness(unseen)
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}; found {before:.2f} before, {after:.2f} after")
    print(f"{narrow:.1%} of the features lie on one coordinate of {EMBED}")
    args.out.mkdir(parents=True, exist_ok=True)
    result = {"losses": model.losses, "before": before, "after": after, "narrow": narrow}
    (args.out / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
