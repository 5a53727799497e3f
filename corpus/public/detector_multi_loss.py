"""A tiny anchor-free detector: box, class and distribution losses, EMA weights, warm-up.

Every cell of a coarse grid predicts class scores and, for each side of the box, a distribution
over distances. Cells whose centre lies inside a box are responsible for it.
"""

from __future__ import annotations

import argparse
import copy
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class LossWeights:
    box: float = 7.5
    cls: float = 0.5
    dfl: float = 1.5


@dataclass
class DetectorConfig:
    seed: int = 0
    image_size: int = 32
    stride: int = 4
    classes: int = 3
    reg_max: int = 6
    width: int = 12
    epochs: int = 8
    batch_size: int = 16
    n_train: int = 256
    n_val: int = 48
    lr0: float = 4e-3
    lrf: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_steps: int = 16
    ema_decay: float = 0.98
    clip_norm: float = 10.0
    weights: LossWeights = field(default_factory=LossWeights)


# ------------------------------------------------------------------------------------ data


class ShapesDataset(Dataset):
    """Filled squares, discs and plus signs on a noisy background; one or two per image."""

    def __init__(self, cfg: DetectorConfig, n: int, seed: int):
        rng = np.random.default_rng(seed)
        self.images, self.targets = [], []
        for _ in range(n):
            image = 0.2 * rng.standard_normal((3, cfg.image_size, cfg.image_size))
            boxes = []
            corners = rng.permutation(4)[: rng.integers(1, 3)]
            for corner in corners:
                size = int(rng.integers(8, 14))
                lo_y, lo_x = (corner // 2) * 16 + 1, (corner % 2) * 16 + 1
                y0 = int(lo_y + rng.integers(0, 15 - size + 1))
                x0 = int(lo_x + rng.integers(0, 15 - size + 1))
                kind = int(rng.integers(0, cfg.classes))
                self._stamp(image, kind, y0, x0, size, rng)
                boxes.append([kind, x0, y0, x0 + size, y0 + size])
            self.images.append(torch.tensor(image, dtype=torch.float32))
            self.targets.append(torch.tensor(boxes, dtype=torch.float32))

    @staticmethod
    def _stamp(image, kind, y0, x0, size, rng) -> None:
        v, u = np.mgrid[0:size, 0:size] - (size - 1) / 2
        if kind == 0:
            mask = np.ones((size, size), dtype=bool)
        elif kind == 1:
            mask = np.hypot(u, v) <= size / 2
        else:
            mask = (abs(u) < size / 6 + 0.5) | (abs(v) < size / 6 + 0.5)
        colour = rng.uniform(0.7, 1.3, (3, 1, 1)) * np.roll([1.0, 0.6, 0.3], kind)[:, None, None]
        image[:, y0 : y0 + size, x0 : x0 + size] += mask[None] * colour

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.images[i], self.targets[i]


def collate(samples) -> tuple[Tensor, Tensor]:
    """Stack the images; put all boxes in one table with their image index in front."""
    images = torch.stack([s[0] for s in samples])
    rows = [F.pad(s[1], (1, 0), value=float(i)) for i, s in enumerate(samples)]
    return images, torch.cat(rows)


# ----------------------------------------------------------------------------------- model


def conv(cin: int, cout: int, k: int = 3, s: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(cin, cout, k, s, k // 2, bias=False), nn.BatchNorm2d(cout), nn.SiLU(inplace=True)
    )


class Detector(nn.Module):
    def __init__(self, cfg: DetectorConfig):
        super().__init__()
        w = cfg.width
        self.cfg = cfg
        self.backbone = nn.Sequential(conv(3, w, 3, 2), conv(w, 2 * w, 3, 2), conv(2 * w, 2 * w))
        self.reg_head = nn.Sequential(conv(2 * w, 2 * w), nn.Conv2d(2 * w, 4 * cfg.reg_max, 1))
        self.cls_head = nn.Sequential(conv(2 * w, 2 * w), nn.Conv2d(2 * w, cfg.classes, 1))
        nn.init.constant_(self.cls_head[-1].bias, -math.log((1 - 0.05) / 0.05))
        self.register_buffer("bins", torch.arange(cfg.reg_max).float(), persistent=False)
        cells = cfg.image_size // cfg.stride
        ys, xs = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
        centres = torch.stack([xs, ys], -1).view(-1, 2).float() + 0.5
        self.register_buffer("centres", centres, persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        h = self.backbone(images)
        reg = self.reg_head(h).flatten(2).transpose(1, 2)
        cls = self.cls_head(h).flatten(2).transpose(1, 2)
        return reg.view(*reg.shape[:2], 4, self.cfg.reg_max), cls

    def decode(self, reg: Tensor) -> Tensor:
        """Distances (left, top, right, bottom) to boxes, in units of the stride."""
        dist = reg.softmax(-1) @ self.bins
        return torch.cat([self.centres - dist[..., :2], self.centres + dist[..., 2:]], -1)


def giou(a: Tensor, b: Tensor, eps: float = 1e-7) -> Tensor:
    lo, hi = torch.max(a[:, :2], b[:, :2]), torch.min(a[:, 2:], b[:, 2:])
    inter = (hi - lo).clamp(min=0).prod(1)
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(1), (b[:, 2:] - b[:, :2]).prod(1)
    union = area_a + area_b - inter + eps
    hull = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).prod(1) + eps
    return inter / union - (hull - union) / hull


class DetectionLoss:
    def __init__(self, model: Detector):
        self.model, self.cfg = model, model.cfg

    def assign(self, table: Tensor, n_images: int) -> tuple[Tensor, Tensor]:
        """For every cell: its class (or -1) and its box in units of the stride."""
        centres = self.model.centres
        label = torch.full((n_images, len(centres)), -1, dtype=torch.long)
        boxes = torch.zeros(n_images, len(centres), 4)
        for row in table:
            image, kind, box = int(row[0]), int(row[1]), row[2:] / self.cfg.stride
            inside = (centres > box[:2] + 0.2).all(1) & (centres < box[2:] - 0.2).all(1)
            label[image, inside] = kind
            boxes[image, inside] = box
        return label, boxes

    def dfl(self, reg: Tensor, distance: Tensor) -> Tensor:
        distance = distance.clamp(0, self.cfg.reg_max - 1.01)
        left = distance.long()
        weight = left + 1 - distance
        flat = reg.reshape(-1, self.cfg.reg_max)
        lo = F.cross_entropy(flat, left.view(-1), reduction="none").view_as(weight)
        hi = F.cross_entropy(flat, left.view(-1) + 1, reduction="none").view_as(weight)
        return (lo * weight + hi * (1 - weight)).mean()

    def __call__(self, outputs: tuple[Tensor, Tensor], table: Tensor) -> dict[str, Tensor]:
        reg, cls = outputs
        label, boxes = self.assign(table, len(cls))
        positive = label >= 0
        wanted = F.one_hot(label.clamp(min=0), self.cfg.classes) * positive.unsqueeze(-1)
        count = positive.sum().clamp(min=1)
        bce = F.binary_cross_entropy_with_logits(cls, wanted.float(), reduction="sum") / count
        predicted = self.model.decode(reg)[positive]
        centres = self.model.centres.expand(len(cls), -1, -1)[positive]
        target = boxes[positive]
        distance = torch.cat([centres - target[:, :2], target[:, 2:] - centres], 1)
        return {
            "box": self.cfg.weights.box * (1 - giou(predicted, target)).mean(),
            "cls": self.cfg.weights.cls * bce,
            "dfl": self.cfg.weights.dfl * self.dfl(reg[positive], distance),
        }


# --------------------------------------------------------------------------------- trainer


class ModelEMA:
    """A slowly following copy of the weights, used for evaluation."""

    def __init__(self, model: nn.Module, decay: float):
        self.module = copy.deepcopy(model).eval()
        self.module.requires_grad_(False)
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        d = self.decay * (1 - math.exp(-self.updates / 20))
        for e, m in zip(self.module.parameters(), model.parameters(), strict=True):
            e.mul_(d).add_(m.detach(), alpha=1 - d)
        for e, m in zip(self.module.buffers(), model.buffers(), strict=True):
            e.copy_(m)


class DetectionTrainer:
    def __init__(self, cfg: DetectorConfig, workdir: Path):
        self.cfg, self.workdir = cfg, workdir
        self.model = Detector(cfg)
        self.ema = ModelEMA(self.model, cfg.ema_decay)
        self.criterion = DetectionLoss(self.model)
        self.train_loader = DataLoader(
            ShapesDataset(cfg, cfg.n_train, cfg.seed),
            cfg.batch_size,
            shuffle=True,
            collate_fn=collate,
        )
        self.val_loader = DataLoader(
            ShapesDataset(cfg, cfg.n_val, cfg.seed + 1), cfg.batch_size, collate_fn=collate
        )
        self.optimizer = self.build_optimizer()
        self.step, self.best = 0, -1.0

    def build_optimizer(self) -> torch.optim.Optimizer:
        groups: tuple[list, list, list] = ([], [], [])
        for module in self.model.modules():
            for name, p in module.named_parameters(recurse=False):
                if name == "bias":
                    groups[2].append(p)
                elif isinstance(module, nn.BatchNorm2d):
                    groups[1].append(p)
                else:
                    groups[0].append(p)
        cfg = self.cfg
        optimizer = torch.optim.AdamW(
            groups[2], lr=cfg.lr0, betas=(cfg.momentum, 0.999), weight_decay=0.0
        )
        optimizer.add_param_group({"params": groups[0], "weight_decay": cfg.weight_decay})
        optimizer.add_param_group({"params": groups[1], "weight_decay": 0.0})
        return optimizer

    def set_lr(self) -> float:
        total = self.cfg.epochs * len(self.train_loader)
        lr = self.cfg.lr0 * (1 - (1 - self.cfg.lrf) * self.step / total)
        if self.step < self.cfg.warmup_steps:
            lr *= self.step / self.cfg.warmup_steps
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def train_epoch(self) -> Iterator[dict[str, float]]:
        self.model.train()
        for images, table in self.train_loader:
            self.set_lr()
            losses = self.criterion(self.model(images), table)
            total = torch.stack(list(losses.values())).sum()
            self.optimizer.zero_grad()
            total.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip_norm)
            self.optimizer.step()
            self.ema.update(self.model)
            self.step += 1
            yield {k: v.item() for k, v in losses.items()}

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """Share of responsible cells with the right class, and their mean overlap."""
        model = self.ema.module
        right = overlap = count = 0.0
        for images, table in self.val_loader:
            reg, cls = model(images)
            label, boxes = self.criterion.assign(table, len(images))
            positive = label >= 0
            right += (cls.argmax(-1)[positive] == label[positive]).sum().item()
            overlap += giou(model.decode(reg)[positive], boxes[positive]).sum().item()
            count += positive.sum().item()
        return right / count, overlap / count

    def save(self, name: str) -> None:
        state = {"ema": self.ema.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state | {"step": self.step, "best": self.best}, self.workdir / name)

    def fit(self) -> None:
        for epoch in range(self.cfg.epochs):
            start, rows = time.time(), list(self.train_epoch())
            means = {k: float(np.mean([r[k] for r in rows])) for k in rows[0]}
            acc, overlap = self.validate()
            if overlap > self.best:
                self.best = overlap
                self.save("best.pt")
            self.save("last.pt")
            shown = " ".join(f"{k} {v:.3f}" for k, v in means.items())
            print(
                f"epoch {epoch + 1}/{self.cfg.epochs} {shown} | acc {acc:.3f} "
                f"giou {overlap:.3f} ({time.time() - start:.1f}s)"
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=8)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        DetectionTrainer(DetectorConfig(args.seed, epochs=args.epochs), Path(folder)).fit()


if __name__ == "__main__":
    main()
