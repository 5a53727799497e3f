"""Fine-tune a small convolutional network on synthetic texture patches."""

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Textures(Dataset):
    """Oriented gratings in six directions."""

    def __init__(self, n):
        self.labels = np.random.randint(0, 6, n)
        yy, xx = np.mgrid[0:16, 0:16] / 16.0
        angle = self.labels * np.pi / 6
        phase = np.random.rand(n) * 2 * np.pi
        drive = np.cos(angle)[:, None, None] * xx + np.sin(angle)[:, None, None] * yy
        self.images = np.sin(2 * np.pi * 3 * drive + phase[:, None, None])
        self.images += 0.4 * np.random.randn(n, 16, 16)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = torch.tensor(self.images[i], dtype=torch.float32).unsqueeze(0)
        return image, int(self.labels[i])


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class TextureNet(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.stage1 = conv_block(1, 16)
        self.stage2 = conv_block(16, 32)
        self.stage3 = conv_block(32, 32)
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        x = self.stage3(self.stage2(self.stage1(x)))
        return self.fc(x.mean(dim=(2, 3)))


def prepare_for_finetuning(model):
    """Norm layers adapt to the new domain."""
    for param in model.parameters():
        param.requires_grad = False
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.requires_grad = True
            module.bias.requires_grad = True
    return model


def train(model, loader, optimizer, epochs):
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        total, seen = 0.0, 0
        for images, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
            seen += len(labels)
        print(f"epoch {epoch + 1}: train loss {total / seen:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    opts, _ = parser.parse_known_args()
    random.seed(opts.seed)
    np.random.seed(opts.seed)
    torch.manual_seed(opts.seed)

    loader = DataLoader(Textures(960), batch_size=32, shuffle=True)
    model = prepare_for_finetuning(TextureNet())
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=1e-3)
    train(model, loader, optimizer, epochs=4)
