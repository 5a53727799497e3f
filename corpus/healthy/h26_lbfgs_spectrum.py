"""Fit a sum of absorption lines to a measured spectrum with L-BFGS."""

import argparse

import torch


class LineModel(torch.nn.Module):
    def __init__(self, n_lines):
        super().__init__()
        self.centre = torch.nn.Parameter(torch.linspace(-0.8, 0.8, n_lines))
        self.log_width = torch.nn.Parameter(torch.full((n_lines,), -2.0))
        self.depth = torch.nn.Parameter(torch.full((n_lines,), 0.3))
        self.continuum = torch.nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, wave):
        z = (wave[:, None] - self.centre) / self.log_width.exp()
        base = self.continuum[0] + self.continuum[1] * wave
        return base - (self.depth * torch.exp(-0.5 * z**2)).sum(1)


def measured(seed, n=400):
    g = torch.Generator().manual_seed(seed)
    wave = torch.linspace(-1, 1, n)
    truth = LineModel(6)
    with torch.no_grad():
        truth.centre += 0.06 * torch.randn(6, generator=g)
        truth.log_width += 0.4 * torch.randn(6, generator=g)
        truth.depth += 0.25 * torch.rand(6, generator=g)
        truth.continuum += torch.tensor([0.1, 0.05])
        flux = truth(wave) + 0.01 * torch.randn(n, generator=g)
    return wave, flux


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--iterations", type=int, default=40)
    args, _ = ap.parse_known_args()
    torch.manual_seed(args.seed)
    wave, flux = measured(args.seed)
    model = LineModel(6)
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.8, max_iter=4, history_size=10, line_search_fn="strong_wolfe"
    )
    calls = 0

    def closure():
        nonlocal calls
        optimizer.zero_grad()
        loss = ((model(wave) - flux) ** 2).mean() / 0.01**2
        loss.backward()
        calls += 1
        return loss

    for it in range(args.iterations):
        chi2 = optimizer.step(closure)
        if it % 4 == 0:
            print(f"iteration {it:2d} reduced chi2 {chi2.item():10.4f} closure calls {calls}")


if __name__ == "__main__":
    main()
