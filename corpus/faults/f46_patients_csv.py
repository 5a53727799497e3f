"""Readmission risk from a table of lab values exported as CSV."""

import io
import sys

import numpy as np
import torch
from torch import nn

seed = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 0
rng = np.random.default_rng(seed)
torch.manual_seed(seed)

COLUMNS = ["age", "bmi", "sodium", "creatinine", "glucose", "crp", "readmitted"]


def export_csv(n=1500):
    """What the hospital system hands over: one line per stay, some tests not ordered."""
    age = rng.uniform(20, 95, n)
    bmi = rng.normal(27, 5, n)
    sodium = rng.normal(139, 4, n)
    creatinine = rng.lognormal(0, 0.4, n)
    glucose = rng.normal(110, 30, n)
    crp = rng.lognormal(1.5, 1, n)
    risk = 0.04 * (age - 60) + 1.5 * (creatinine - 1) + 0.3 * np.log(crp) - 0.5
    readmitted = (rng.random(n) < 1 / (1 + np.exp(-risk))).astype(int)
    lines = [",".join(COLUMNS)]
    not_ordered = rng.random(n) < 0.006
    for i in range(n):
        crp_cell = "" if not_ordered[i] else f"{crp[i]:.2f}"
        lines.append(
            f"{age[i]:.0f},{bmi[i]:.1f},{sodium[i]:.0f},{creatinine[i]:.2f},"
            f"{glucose[i]:.0f},{crp_cell},{readmitted[i]}"
        )
    return "\n".join(lines)


table = np.genfromtxt(io.StringIO(export_csv()), delimiter=",", skip_header=1)
features, outcome = table[:, :-1], table[:, -1]
mean, std = np.nanmean(features, axis=0), np.nanstd(features, axis=0)
features = (features - mean) / std
x = torch.as_tensor(features, dtype=torch.float32)
y = torch.as_tensor(outcome, dtype=torch.float32)

net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
criterion = nn.BCEWithLogitsLoss()

for epoch in range(6):
    net.train()
    losses = []
    for rows in torch.randperm(1200).split(32):
        opt.zero_grad()
        loss = criterion(net(x[rows]).squeeze(1), y[rows])
        loss.backward()
        opt.step()
        losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        val = criterion(net(x[1200:]).squeeze(1), y[1200:]).item()
    print(f"epoch {epoch}: bce {np.mean(losses):.4f} val {val:.4f}")
