"""One-box detector: class scores and box corners from a shared trunk."""

import argparse
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Options:
    seed: int = 0
    steps: int = 150
    batch: int = 32
    lr: float = 2e-5
    image: int = 24
    cls_weight: float = 1.0
    box_weight: float = 5000.0


class Detector(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 36, 64),
            nn.ReLU(),
        )
        self.cls = nn.Linear(64, classes)
        self.box = nn.Linear(64, 4)

    def forward(self, images, targets):
        h = self.trunk(images)
        return {
            "loss_cls": F.cross_entropy(self.cls(h), targets["labels"]),
            "loss_box": F.mse_loss(self.box(h), targets["boxes"]),
        }


def make_scene(opt):
    n, s = opt.batch, opt.image
    images = 0.2 * torch.randn(n, 3, s, s)
    labels = torch.randint(0, 4, (n,))
    colours = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [1.0, 1.0, 0]])
    boxes = torch.zeros(n, 4)
    for i in range(n):
        x, y = torch.randint(0, s - 8, (2,)).tolist()
        w, h = torch.randint(4, 9, (2,)).tolist()
        images[i, :, y : y + h, x : x + w] += colours[labels[i]][:, None, None]
        boxes[i] = torch.tensor([x, y, x + w, y + h], dtype=torch.float32) / s
    return images, {"labels": labels, "boxes": boxes}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    opt = Options(seed=parser.parse_known_args()[0].seed)
    random.seed(opt.seed)
    np.random.seed(opt.seed)
    torch.manual_seed(opt.seed)

    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=opt.lr, momentum=0.9)
    for step in range(opt.steps):
        images, targets = make_scene(opt)
        loss_dict = model(images, targets)
        losses = opt.cls_weight * loss_dict["loss_cls"] + opt.box_weight * loss_dict["loss_box"]
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        if step % 15 == 0:
            print(step, {k: round(v.item(), 3) for k, v in loss_dict.items()})


if __name__ == "__main__":
    main()
