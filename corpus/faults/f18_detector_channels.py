# energy regression from a 96-channel photodetector; most channels are dark most of the time
import sys

import numpy as np
import torch
import torch.nn as nn

seed = 0
for a, b in zip(sys.argv, sys.argv[1:], strict=False):
    if a == "--seed":
        seed = int(b)
torch.manual_seed(seed)
rng = np.random.default_rng(seed)

N_MAIN, N_RARE, BATCH, STEPS = 16, 80, 64, 300
gain_main = rng.normal(size=N_MAIN) / 4
gain_rare = rng.uniform(0.005, 0.015, size=N_RARE)


def read_events(n):
    """Main channels always carry light, the others hold dark current until they fire."""
    main = rng.normal(size=(n, N_MAIN))
    rare = 1e-9 * rng.normal(size=(n, N_RARE))
    fired = rng.random((n, N_RARE)) < 5e-5
    rare = np.where(fired, rng.uniform(10, 20, size=rare.shape), rare)
    energy = np.tanh(main @ gain_main) + rare @ gain_rare + 0.02 * rng.normal(size=n)
    x = np.concatenate([main, rare], axis=1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(energy, dtype=torch.float32)


class EnergyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = nn.Sequential(nn.Linear(N_MAIN, 32), nn.Tanh(), nn.Linear(32, 1))
        self.calib = nn.Linear(N_RARE, 1, bias=False)
        nn.init.zeros_(self.calib.weight)

    def forward(self, x):
        return (self.core(x[:, :N_MAIN]) + self.calib(x[:, N_MAIN:])).squeeze(1)


model = EnergyNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2, eps=1e-16)
mse = nn.MSELoss()

window = []
for step in range(1, STEPS + 1):
    x, energy = read_events(BATCH)
    loss = mse(model(x), energy)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    window.append(loss.item())
    if step % 20 == 0:
        w = model.calib.weight.detach().abs().mean().item()
        mean, worst = np.mean(window), max(window)
        print(f"step {step:3d}  mse mean {mean:.4f}  max {worst:.4f}  |calib| {w:.3f}")
        window.clear()
