"""Dense detector: classification and box heads on a small feature map."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Detector(nn.Module):
    def __init__(self, prior=0.01):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
        )
        self.cls_head = nn.Conv2d(32, 1, 1)
        self.box_head = nn.Conv2d(32, 2, 1)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.normal_(m.weight, std=0.05)
                nn.init.constant_(m.bias, -math.log((1 - prior) / prior))

    def forward(self, x):
        f = self.backbone(x)
        return self.cls_head(f), self.box_head(f)


def scenes(n):
    img = 0.3 * torch.randn(n, 1, 16, 16)
    cls, box = torch.zeros(n, 1, 8, 8), torch.zeros(n, 2, 8, 8)
    for i in range(n):
        r, c = torch.randint(0, 6, (2,)).tolist()
        h, w = torch.randint(3, 6, (2,)).tolist()
        img[i, 0, 2 * r : 2 * r + h, 2 * c : 2 * c + w] += 1.5
        cls[i, 0, r, c] = 1.0
        box[i, :, r, c] = torch.tensor([h / 4, w / 4])
    return TensorDataset(img, cls, box)


def losses(out, cls, box):
    logit, pred = out
    cls_loss = F.binary_cross_entropy_with_logits(logit, cls, pos_weight=torch.tensor(20.0))
    mask = cls.expand_as(box)
    box_loss = (F.smooth_l1_loss(pred, box, reduction="none") * mask).sum() / mask.sum()
    return {"cls": cls_loss, "box": box_loss}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(scenes(320), batch_size=16, shuffle=True)
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(3):
        for img, cls, box in loader:
            parts = losses(model(img), cls, box)
            loss = sum(parts.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} " + " ".join(f"{k} {v.item():.4f}" for k, v in parts.items()))


if __name__ == "__main__":
    main()
