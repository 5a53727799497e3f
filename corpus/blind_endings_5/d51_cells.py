"""The cells of a notebook are run one after the other by exec; the last one misspells a name."""

import linecache

CELLS = [
    """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 1))
""",
    """
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
history = []
for step in range(60):
    x = torch.randn(20, 6)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
""",
    """
tail = history[-10:]
mean = sum(tail) / len(tail)
print("mean of the last", len(tail), mean)
print("best", min(histroy))
""",
]


def run(cells):
    names = {"__name__": "__main__"}
    for number, source in enumerate(cells, 1):
        name = f"cell_{number}.py"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), names)


run(CELLS)
