"""Pretrain an encoder by reconstruction, then fine-tune it for classification."""

import argparse
import os
import random
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self, inputs=32, dim=48):
        super().__init__()
        self.fc1 = nn.Linear(inputs, 64)
        self.fc2 = nn.Linear(64, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(self.fc2(F.gelu(self.fc1(x))))


class Classifier(nn.Module):
    def __init__(self, encoder, classes):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(48, classes)
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module):
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)

    def forward(self, x):
        return self.head(F.gelu(self.encoder(x)))


def make_data(n):
    labels = torch.randint(0, 6, (n,))
    centres = torch.randn(6, 8)
    latent = centres[labels] + 0.7 * torch.randn(n, 8)
    x = torch.tanh(latent @ torch.randn(8, 32) / 2) + 0.2 * torch.randn(n, 32)
    return (x - x.mean(0)) / x.std(0), labels


def pretrain(x, path, steps=50):
    encoder, decoder = Encoder(), nn.Sequential(nn.GELU(), nn.Linear(48, 32))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
    for step in range(steps):
        batch = x[torch.randint(0, len(x), (64,))]
        loss = F.mse_loss(decoder(encoder(batch)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"pretrained, reconstruction loss {loss.item():.4f}")
    torch.save(encoder.state_dict(), path)


def finetune(x, labels, path, steps=90):
    encoder = Encoder()
    encoder.load_state_dict(torch.load(path))
    model = Classifier(encoder, classes=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        rows = torch.randint(0, len(x), (32,))
        loss = F.cross_entropy(model(x[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"fine-tuning step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    x, labels = make_data(2000)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "encoder.pt")
        pretrain(x, path)
        finetune(x, labels, path)
