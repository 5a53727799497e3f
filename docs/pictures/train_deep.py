"""A training of a few seconds for the pictures: from batch 300 on the inputs grow, then one is NaN.

python train_deep.py RUN_DIR [RATE SEED STEPS]     # with a rate: a short one that stays healthy
"""

import sys
import time

import torch

from headway import Guard


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(32, 64)
        self.down = torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Readings(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sixteen readings of a sensor, and what they add up to."""

    def __init__(self, steps: int, healthy: bool) -> None:
        self.x = torch.randn(steps * 16, 32)
        self.y = self.x[:, :4].sum(dim=1, keepdim=True) + 0.1 * torch.randn(steps * 16, 1)
        if not healthy:
            late = torch.arange(steps * 16) // 16 - 300
            self.x *= 10 ** (late.clamp(min=0) / 30)[:, None]
            self.x[16 * 400 + 5] = torch.nan

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.0005)
        return self.x[at], self.y[at]


folder, *rest = sys.argv[1:]
rate, seed, steps = (float(rest[0]), int(rest[1]), int(rest[2])) if rest else (1e-3, 0, 450)
torch.manual_seed(seed)
data = Readings(steps, healthy=bool(rest))
loader = torch.utils.data.DataLoader(data, batch_size=16)
blocks = [Block() for _ in range(4)]
model = torch.nn.Sequential(torch.nn.Linear(32, 32), *blocks, torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
with Guard(model, optimizer, run_dir=folder) as guard:
    for x, y in guard(loader):
        loss = torch.nn.functional.smooth_l1_loss(model(x), y)
        guard.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
