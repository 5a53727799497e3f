"""Semi-supervised text classifier: few labels, plus agreement between two noisy views."""

import random
import sys
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

cfg = SimpleNamespace(
    seed=int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 0,
    vocab=80,
    length=12,
    n_labelled=96,
    n_unlabelled=1024,
    consistency_percent=80,
    steps=180,
)


class BagEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, tokens, drop=0.3):
        e = self.emb(tokens)
        mask = torch.rand(tokens.shape, device=tokens.device) > drop
        pooled = (e * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return self.mlp(pooled)


def texts(n):
    y = torch.randint(0, 3, (n,))
    topical = torch.randint(0, 20, (n, cfg.length)) + 20 * y.unsqueeze(1)
    common = torch.randint(60, 80, (n, cfg.length))
    return torch.where(torch.rand(n, cfg.length) < 0.35, topical, common), y


class SemiSupervised:
    def __init__(self):
        self.model = BagEncoder()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.weight = cfg.consistency_percent // 100

    def supervised(self, x, y):
        return F.cross_entropy(self.model(x), y)

    def consistency(self, u):
        a = F.log_softmax(self.model(u), dim=-1)
        b = F.log_softmax(self.model(u), dim=-1)
        return 0.5 * (
            F.kl_div(a, b, log_target=True, reduction="batchmean")
            + F.kl_div(b, a, log_target=True, reduction="batchmean")
        )

    def step(self, x, y, u):
        sup, cons = self.supervised(x, y), self.consistency(u)
        loss = sup + self.weight * cons
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return sup.item(), cons.item()


def main():
    random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)
    xl, yl = texts(cfg.n_labelled)
    xu, _ = texts(cfg.n_unlabelled)
    xt, yt = texts(400)
    run = SemiSupervised()
    for i in range(1, cfg.steps + 1):
        li = torch.randint(0, len(xl), (32,))
        ui = torch.randint(0, len(xu), (64,))
        sup, cons = run.step(xl[li], yl[li], xu[ui])
        if i % 20 == 0:
            with torch.no_grad():
                acc = (run.model(xt, drop=0.0).argmax(1) == yt).float().mean().item()
            print(f"{i:4d} supervised {sup:.4f} consistency {cons:.4f} test acc {acc:.3f}")


main()
