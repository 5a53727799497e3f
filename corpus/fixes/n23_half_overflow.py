import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(22)
x = torch.randn(64, 8)
y = torch.randn(64, 4)
x[26] *= 900.0
model = nn.Linear(8, 4, bias=False)

opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for number, (a, b) in enumerate(DataLoader(TensorDataset(x, y), batch_size=8)):
    with torch.autocast("cpu", dtype=torch.float16):
        h = model(a)
        energy = (h * h).sum(dim=1)
    loss = torch.log1p(energy.float()).mean() + (h.float() - b).square().clamp(max=10).mean()
    (loss / 2).backward()
    if number % 2 == 1:
        opt.step()
        opt.zero_grad()
