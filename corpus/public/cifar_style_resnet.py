"""Train a small ResNet on CIFAR-like images.

The images are synthetic (coloured waves of ten classes, 3x16x16 by default), so nothing is
downloaded; the rest follows the usual recipe: random crops and flips, SGD with Nesterov momentum,
weight decay on the weights alone, a multi-step or one-cycle schedule, validation after each
epoch, and checkpoints that a later run can resume from.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR, OneCycleLR
from torch.utils.data import DataLoader, Dataset

MEAN, STD = 0.47, 0.25


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ResNet on synthetic images")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--schedule", choices=["multistep", "onecycle"], default="multistep")
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--depth", type=int, default=1, help="residual blocks per stage")
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--print-freq", type=int, default=10)
    parser.add_argument("--save-dir", default=None)
    parser.add_argument("--resume", default="", help="path of a checkpoint to go on from")
    parser.add_argument("--evaluate", action="store_true", help="validate and leave")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_known_args()[0]


class SyntheticImages(Dataset):
    """Ten classes of coloured waves, stored as bytes like the original."""

    def __init__(self, n: int, size: int, classes: np.ndarray, train: bool):
        self.size = size
        self.train = train
        self.labels = np.random.randint(0, len(classes), n)
        yy, xx = np.mgrid[0:size, 0:size] / size
        images = np.empty((n, 3, size, size), dtype=np.uint8)
        for i, label in enumerate(self.labels):
            fx, fy, *colour = classes[label]
            wave = np.sin(2 * np.pi * (fx * xx + fy * yy) + np.random.rand() * 2 * np.pi)
            tint = np.array(colour)[:, None, None]
            image = 120 + 50 * wave * tint + 45 * np.random.randn(3, size, size)
            images[i] = image.clip(0, 255)
        self.images = images

    def __len__(self) -> int:
        return len(self.labels)

    def augment(self, image: torch.Tensor) -> torch.Tensor:
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        padded = F.pad(image, (2, 2, 2, 2), mode="reflect")
        top, left = torch.randint(0, 5, (2,)).tolist()
        return padded[:, top : top + self.size, left : left + self.size]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(self.images[index]).float().div(255)
        image = (image - MEAN) / STD
        if self.train:
            image = self.augment(image)
        return image, int(self.labels[index])


class BasicBlock(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.shortcut = nn.Sequential()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride=stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, width: int, depth: int, classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = self.stage(width, width, depth, stride=1)
        self.layer2 = self.stage(width, 2 * width, depth, stride=2)
        self.layer3 = self.stage(2 * width, 4 * width, depth, stride=2)
        self.linear = nn.Linear(4 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @staticmethod
    def stage(cin: int, cout: int, depth: int, stride: int) -> nn.Sequential:
        blocks = [BasicBlock(cin, cout, stride)]
        blocks += [BasicBlock(cout, cout) for _ in range(depth - 1)]
        return nn.Sequential(*blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        return self.linear(F.adaptive_avg_pool2d(out, 1).flatten(1))


class AverageMeter:
    def __init__(self, name: str):
        self.name = name
        self.sum, self.count, self.value = 0.0, 0, 0.0

    def update(self, value: float, n: int = 1) -> None:
        self.value = value
        self.sum += value * n
        self.count += n

    @property
    def average(self) -> float:
        return self.sum / max(self.count, 1)

    def __str__(self) -> str:
        return f"{self.name} {self.value:.3f} ({self.average:.3f})"


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]


def train(loader, model, criterion, optimizer, scheduler, epoch, args) -> float:
    losses, top1 = AverageMeter("loss"), AverageMeter("acc")
    model.train()
    for i, (images, target) in enumerate(loader):
        output = model(images)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.schedule == "onecycle":
            scheduler.step()
        losses.update(loss.item(), len(target))
        top1.update((output.argmax(1) == target).float().mean().item() * 100, len(target))
        if i % args.print_freq == 0:
            print(f"epoch [{epoch}][{i}/{len(loader)}] {losses} {top1}")
    if args.schedule == "multistep":
        scheduler.step()
    return losses.average


@torch.no_grad()
def validate(loader, model, criterion) -> tuple[float, float]:
    losses, top1 = AverageMeter("loss"), AverageMeter("acc")
    model.eval()
    for images, target in loader:
        output = model(images)
        losses.update(criterion(output, target).item(), len(target))
        top1.update((output.argmax(1) == target).float().mean().item() * 100, len(target))
    return losses.average, top1.average


def save_checkpoint(state: dict, is_best: bool, folder: str) -> None:
    torch.save(state, os.path.join(folder, "last.pt"))
    if is_best:
        torch.save(state, os.path.join(folder, "best.pt"))


def main() -> None:
    args = parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    classes = np.column_stack(
        [np.random.uniform(-3, 3, (10, 2)), np.random.uniform(-1, 1, (10, 3))]
    )
    train_set = SyntheticImages(args.images, args.size, classes, train=True)
    valid_set = SyntheticImages(args.images // 4, args.size, classes, train=False)
    train_loader = DataLoader(
        train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers
    )
    valid_loader = DataLoader(valid_set, batch_size=2 * args.batch_size)

    model = ResNet(args.width, args.depth, classes=10)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        parameter_groups(model, args.weight_decay),
        lr=args.lr,
        momentum=args.momentum,
        nesterov=True,
    )
    if args.schedule == "onecycle":
        total = args.epochs * len(train_loader)
        scheduler = OneCycleLR(optimizer, max_lr=args.lr, total_steps=total)
    else:
        steps = [args.epochs // 2, (3 * args.epochs) // 4]
        scheduler = MultiStepLR(optimizer, milestones=steps, gamma=0.2)

    start_epoch, best = 0, 0.0
    if args.resume:
        checkpoint = torch.load(args.resume)
        start_epoch, best = checkpoint["epoch"], checkpoint["best"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        print(f"resumed from {args.resume} at epoch {start_epoch}")
    if args.evaluate:
        loss, accuracy = validate(valid_loader, model, criterion)
        print(f"loss {loss:.4f} accuracy {accuracy:.2f}")
        return

    with tempfile.TemporaryDirectory() as scratch:
        folder = args.save_dir or scratch
        os.makedirs(folder, exist_ok=True)
        for epoch in range(start_epoch, args.epochs):
            began = time.time()
            train(train_loader, model, criterion, optimizer, scheduler, epoch, args)
            loss, accuracy = validate(valid_loader, model, criterion)
            is_best = accuracy > best
            best = max(best, accuracy)
            state = {
                "epoch": epoch + 1,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "best": best,
            }
            save_checkpoint(state, is_best, folder)
            seconds = time.time() - began
            print(f"* epoch {epoch} loss {loss:.4f} accuracy {accuracy:.2f} ({seconds:.1f} s)")
    print(f"best accuracy {best:.2f}")


if __name__ == "__main__":
    main()
