"""Sentiment of short reviews with a transformer encoder and frequent evaluation."""

import argparse

import torch
from torch import nn


class EncoderBlock(nn.Module):
    def __init__(self, dim, heads, p):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.ff = nn.Sequential(
            nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(p), nn.Linear(2 * dim, dim)
        )
        self.drop = nn.Dropout(p)

    def forward(self, x):
        n, t, d = x.shape
        parts = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*parts)
        x = x + self.drop(attended.transpose(1, 2).reshape(n, t, d))
        return x + self.drop(self.ff(self.norm2(x)))


class ReviewModel(nn.Module):
    def __init__(self, vocab=120, dim=32, p=0.25):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(1, 14, dim))
        self.encoder = nn.Sequential(EncoderBlock(dim, 4, p), EncoderBlock(dim, 4, p))
        self.drop = nn.Dropout(p)
        self.out = nn.Linear(dim, 1)

    def forward(self, ids):
        h = self.encoder(self.drop(self.emb(ids) + self.pos))
        return self.out(self.drop(h.mean(1))).squeeze(-1)


def reviews(n, g):
    y = torch.randint(0, 2, (n,), generator=g)
    ids = torch.randint(40, 120, (n, 14), generator=g)
    opinion = torch.randint(0, 20, (n, 14), generator=g) + 20 * y[:, None]
    return torch.where(torch.rand(n, 14, generator=g) < 0.2, opinion, ids), y.float()


def evaluate(model, ids, y):
    """Deterministic pass: dropout out of the way, gradients off."""
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
    with torch.no_grad():
        logits = model(ids)
    return ((logits > 0).float() == y).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--eval-every", type=int, default=25)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    ids, y = reviews(512, g)
    val_ids, val_y = reviews(256, g)

    model = ReviewModel()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    bce = nn.BCEWithLogitsLoss()
    for step in range(1, args.steps + 1):
        pick = torch.randint(0, 512, (32,), generator=g)
        loss = bce(model(ids[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.eval_every == 0:
            acc = evaluate(model, val_ids, val_y)
            print(f"step {step:4d} loss {loss.item():.4f} val acc {acc:.3f}")


if __name__ == "__main__":
    main()
