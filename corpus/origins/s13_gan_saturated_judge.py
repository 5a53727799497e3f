"""Loop: GAN with two optimizers.

Fault: log of 1 minus a sigmoid that is 1, in the forward pass; ops: log.
"""

import torch
from torch import nn

torch.manual_seed(313)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
judge = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
judge_optimizer = torch.optim.Adam(judge.parameters(), lr=1e-3)
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)


def judge_loss(real, fake):
    wrong = torch.log(1 - judge(fake))  # <- origin
    return -(judge(real).log().clamp_min(-50) + wrong).mean()


for step in range(6):
    real = torch.randn(16, 2) + 2
    fake = generator(torch.randn(16, 4))
    if step == 3:
        fake = fake * 1000
    loss = judge_loss(real, fake.detach())
    judge_optimizer.zero_grad()
    loss.backward()
    judge_optimizer.step()

    fooled = -judge(generator(torch.randn(16, 4))).clamp_min(1e-6).log().mean()
    generator_optimizer.zero_grad()
    fooled.backward()
    generator_optimizer.step()
