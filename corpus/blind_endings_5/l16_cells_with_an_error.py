"""Notebook cells run by exec, one of which fails; the user corrects it and runs the rest."""

import traceback

CELLS = [
    "import torch\nfrom torch import nn\ntorch.manual_seed(0)\nmodel = nn.Linear(6, 1)\n",
    "optimizer = torch.optim.Adam(modle.parameters(), lr=1e-3)\n",
    "optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)\n",
    """
for step in range(80):
    x = torch.randn(16, 6)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "print('final', loss.item())\n",
]

names = {}
for number, source in enumerate(CELLS):
    try:
        exec(compile(source, f"<cell {number}>", "exec"), names)
    except Exception:
        traceback.print_exc()
