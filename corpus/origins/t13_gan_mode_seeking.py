"""Loop: GAN, a judge and a painter with an optimizer each.

Fault: division by the distance of two equal codes, in the forward pass; ops: div.
"""

import torch
from torch import nn

torch.manual_seed(413)
painter = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4))
judge = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.1), nn.Linear(16, 1))
paint_optimizer = torch.optim.Adam(painter.parameters(), lr=1e-3, betas=(0.5, 0.99))
judge_optimizer = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.99))


def codes(number):
    z = torch.randn(number, 3)
    return z.round() if round_codes else z


def mode_seeking(first, second):
    moved = (painter(first) - painter(second)).abs().mean(dim=1)
    apart = (first - second).abs().mean(dim=1)
    return -(moved / apart).mean()  # <- origin


round_codes = False
for iteration in range(6):
    round_codes = iteration >= 2
    real = torch.randn(64, 4) * 0.5 + 1
    fake = painter(codes(64)).detach()
    judged = (1 - judge(real)).relu().mean() + (1 + judge(fake)).relu().mean()
    judge_optimizer.zero_grad()
    judged.backward()
    judge_optimizer.step()

    painted = -judge(painter(codes(64))).mean() + 0.1 * mode_seeking(codes(64), codes(64))
    paint_optimizer.zero_grad()
    painted.backward()
    paint_optimizer.step()
