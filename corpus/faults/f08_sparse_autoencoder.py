"""Sparse autoencoder over activations, with a fused-style hand-written optimizer."""

import argparse

import torch
from torch import nn
from torch.optim import Optimizer


class FlatRMSprop(Optimizer):
    """RMSprop working on one-dimensional views of each tensor."""

    def __init__(self, params, lr=1e-3, alpha=0.98, eps=1e-8):
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                flat_grad = p.grad.reshape(-1)
                if "sq" not in state:
                    state["sq"] = torch.zeros_like(flat_grad)
                sq = state["sq"]
                sq.mul_(group["alpha"]).addcmul_(flat_grad, flat_grad, value=1 - group["alpha"])
                flat = p.data.contiguous().view(-1)
                flat.addcdiv_(flat_grad, sq.sqrt().add_(group["eps"]), value=-group["lr"])


class SparseAutoencoder(nn.Module):
    def __init__(self, d_in=32, d_hidden=128):
        super().__init__()
        decoder = torch.randn(d_hidden, d_in)
        decoder = decoder / decoder.norm(dim=1, keepdim=True)
        self.decoder = nn.Parameter(decoder)
        self.encoder = nn.Parameter(decoder.t().clone())
        self.b_enc = nn.Parameter(torch.zeros(d_hidden))
        self.b_dec = nn.Parameter(torch.zeros(d_in))

    def forward(self, x):
        codes = torch.relu((x - self.b_dec) @ self.encoder + self.b_enc)
        return codes @ self.decoder + self.b_dec, codes


def activations(n, d=32, n_features=60, generator=None):
    dictionary = torch.randn(n_features, d, generator=generator)
    on = (torch.rand(n, n_features, generator=generator) < 0.05).float()
    return on * torch.rand(n, n_features, generator=generator) @ dictionary


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--l1", type=float, default=3e-3)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)

    data = activations(4096, generator=g)
    sae = SparseAutoencoder()
    optim = FlatRMSprop(sae.parameters(), lr=2e-3)
    for step, idx in enumerate(torch.randint(0, 4096, (200, 128), generator=g)):
        x = data[idx]
        recon, codes = sae(x)
        mse = (recon - x).pow(2).mean()
        sparsity = codes.abs().sum(-1).mean()
        loss = mse + args.l1 * sparsity
        optim.zero_grad()
        loss.backward()
        optim.step()
        if step % 20 == 0:
            active = (codes > 0).float().sum(-1).mean()
            print(
                f"{step:4d}  loss {loss.item():.5f}  mse {mse.item():.5f}  "
                f"l0 {active.item():.1f}  |enc| {sae.encoder.norm().item():.4f}"
            )


if __name__ == "__main__":
    main()
