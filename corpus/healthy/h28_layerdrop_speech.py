"""Phoneme tagger: a transformer encoder with LayerDrop."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    """Pre-norm layers, each left out of a training step with some probability."""

    def __init__(self, dim, depth, heads, layerdrop):
        super().__init__()
        self.layerdrop = layerdrop
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                dim, heads, 2 * dim, dropout=0.1, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        for layer in self.layers:
            if self.training and torch.rand(()).item() < self.layerdrop:
                continue
            x = layer(x)
        return self.norm(x)


class PhonemeTagger(nn.Module):
    def __init__(self, n_feats=20, dim=48, phonemes=10, layerdrop=0.3):
        super().__init__()
        self.inp = nn.Linear(n_feats, dim)
        self.encoder = Encoder(dim, depth=4, heads=4, layerdrop=layerdrop)
        self.out = nn.Linear(dim, phonemes)

    def forward(self, frames):
        return self.out(self.encoder(self.inp(frames)))

    def loss(self, frames, labels):
        return F.cross_entropy(self(frames).flatten(0, 1), labels.flatten())


def speech(n, g, frames=16, phonemes=10):
    prototypes = torch.randn(phonemes, 20, generator=torch.Generator().manual_seed(5))
    labels = torch.randint(0, phonemes, (n, frames // 2), generator=g).repeat_interleave(2, dim=1)
    context = torch.roll(prototypes[labels], 1, dims=1)
    x = prototypes[labels] + 0.4 * context + 0.6 * torch.randn(n, frames, 20, generator=g)
    return x, labels


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--steps", type=int, default=150)
    args, _ = ap.parse_known_args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    x, y = speech(600, g)
    xv, yv = speech(100, g)
    model = PhonemeTagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=24, shuffle=True, generator=g
    )
    stream = iter(batches)
    for step in range(1, args.steps + 1):
        try:
            xb, yb = next(stream)
        except StopIteration:
            stream = iter(batches)
            xb, yb = next(stream)
        loss = model.loss(xb, yb)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0:
            model.eval()
            with torch.no_grad():
                acc = (model(xv).argmax(-1) == yv).float().mean().item()
            model.train()
            print(f"step {step:3d} loss {loss.item():.4f} frame accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
