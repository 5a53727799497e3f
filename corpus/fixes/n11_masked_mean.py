import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(10)
x = torch.randn(64, 8)
y = torch.randn(64, 4)
valid = torch.ones(64, 1)
valid[16:32] = 0.0
x = torch.cat([x[:, :7], valid], dim=1)
model = nn.Linear(8, 4, bias=False)

opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = iter(DataLoader(TensorDataset(x, y), batch_size=16))
for i in range(4):
    a, b = next(batches)
    opt.zero_grad(set_to_none=True)
    weight = a[:, 7:]
    error = (model(a) - b).square() * weight
    loss = error.sum() / weight.sum()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
