"""Cell segmentation with a two-level U-Net and bfloat16 mixed precision."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.BatchNorm2d(cout),
        nn.ReLU(),
        nn.Conv2d(cout, cout, 3, padding=1),
        nn.BatchNorm2d(cout),
        nn.ReLU(),
    )


class TinyUNet(nn.Module):
    def __init__(self, base=8):
        super().__init__()
        self.enc1, self.enc2 = double_conv(1, base), double_conv(base, 2 * base)
        self.up = nn.ConvTranspose2d(2 * base, base, 2, stride=2)
        self.dec = double_conv(2 * base, base)
        self.out = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        return self.out(self.dec(torch.cat([a, self.up(b)], 1)))


def cells(n, g, size=24):
    grid = torch.arange(size).float()
    cy, cx = torch.rand(2, n, 1, 1, generator=g) * 12 + 6
    radius = torch.rand(n, 1, 1, generator=g) * 3 + 3
    mask = ((grid[None, :, None] - cy) ** 2 + (grid[None, None] - cx) ** 2 < radius**2).float()
    image = mask + 0.5 * torch.randn(n, size, size, generator=g)
    return image.unsqueeze(1), mask.unsqueeze(1)


def dice(logits, mask):
    p = torch.sigmoid(logits)
    return 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)


class AmpTrainer:
    def __init__(self, model, lr=2e-3, amp_dtype=torch.bfloat16):
        self.model = model
        self.amp_dtype = amp_dtype
        self.optimizer = torch.optim.RMSprop(model.parameters(), lr=lr)

    def step(self, images, masks):
        logits = self.model(images)
        with torch.autocast("cpu", dtype=self.amp_dtype):
            loss = F.binary_cross_entropy_with_logits(logits, masks) + dice(logits, masks)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=100)
    args, _ = ap.parse_known_args()
    torch.manual_seed(args.seed)
    images, masks = cells(128, torch.Generator().manual_seed(args.seed))
    trainer = AmpTrainer(TinyUNet())
    for step in range(1, args.steps + 1):
        idx = torch.randint(0, len(images), (8,))
        loss = trainer.step(images[idx], masks[idx])
        if step % 10 == 0:
            print(f"step {step:3d} loss {loss:.4f}")


if __name__ == "__main__":
    main()
