"""Loop: closures made in a loop, for LBFGS.

Fault: log of the determinant of a singular matrix, in the forward pass; ops: logdet.
"""

import torch
from torch import nn

torch.manual_seed(410)
clouds = torch.randn(6, 20, 3)
clouds[2, :, 2] = 0.0  # a flat one
mixing = nn.Parameter(torch.ones(3) + 0.1 * torch.randn(3))
optimizer = torch.optim.LBFGS([mixing], lr=0.1, max_iter=2)


def make_closure(cloud):
    def closure():
        optimizer.zero_grad()
        moved = cloud * mixing
        covariance = moved.T @ moved / len(moved)
        volume = torch.logdet(covariance)  # <- origin
        loss = covariance.diagonal().sum() - volume
        loss.backward()
        return loss

    return closure


for closure in [make_closure(cloud) for cloud in clouds]:
    optimizer.step(closure)
