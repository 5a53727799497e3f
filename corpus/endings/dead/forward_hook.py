"""A forward hook raises."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def watch(module, inputs, output):
    seen.append(float(output.mean()))
    if len(seen) == 7:
        raise RuntimeError("the hook is full")  # HERE


seen = []

x, y = torch.randn(320, 10), torch.randint(0, 3, (320,))
loader = DataLoader(TensorDataset(x, y), batch_size=32)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

model[0].register_forward_hook(watch)

for step, (inputs, labels) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
