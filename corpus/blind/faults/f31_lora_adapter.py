"""LoRA fine-tuning of a small attention classifier."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad = False
        self.A = nn.Parameter(torch.randn(r, base.in_features) * 0.02)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.A.T @ self.B.T) * self.scale


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.proj_layers = [self.q, self.k, self.v]
        self.out = nn.Linear(d, d)

    def forward(self, x):
        q, k, v = [layer(x) for layer in self.proj_layers]
        return self.out(F.scaled_dot_product_attention(q, k, v))


class Model(nn.Module):
    def __init__(self, vocab=30, d=32, classes=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.attn = Attention(d)
        self.norm = nn.LayerNorm(d)
        self.classifier = nn.Linear(d, classes)

    def forward(self, x):
        h = self.emb(x)
        return self.classifier(self.norm(h + self.attn(h)).mean(1))


def add_lora(model):
    for p in model.parameters():
        p.requires_grad = False
    for name in ("q", "v"):
        setattr(model.attn, name, LoRALinear(getattr(model.attn, name)))
    for p in model.classifier.parameters():
        p.requires_grad = True
    return model


parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args, _ = parser.parse_known_args()
torch.manual_seed(args.seed)

model = add_lora(Model())
trainable = [p for p in model.parameters() if p.requires_grad]
print("trainable:", sum(p.numel() for p in trainable))
optimizer = torch.optim.AdamW(trainable, lr=5e-3)
for step in range(80):
    y = torch.randint(0, 3, (32,))
    x = torch.randint(0, 30, (32, 10))
    x[:, ::2] = (y * 10).unsqueeze(1) + torch.randint(0, 10, (32, 5))
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}")
print("B norm", model.attn.q.B.norm().item())
