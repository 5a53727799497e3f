"""CUDA: the covariance of one batch has no Cholesky factor."""

import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.02)


def log_likelihood(features):
    covariance = features.t() @ features / len(features)
    factor = torch.linalg.cholesky(covariance)  # HERE
    return factor.diagonal().log().sum()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 6)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(80):
        x = torch.randn(64 if step != 47 else 1, 12).cuda()
        loss = -log_likelihood(model(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
