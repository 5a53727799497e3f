import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()

seq = torch.randn(40, 16, 8)
model = nn.GRU(8, 8)
head = nn.Linear(8, 2)
opt = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
hidden = torch.zeros(1, 16, 8)
for i in range(0, 40, 5):
    out, hidden = model(seq[i : i + 5], hidden)
    loss = F.cross_entropy(head(out[-1]), y[:16])
    opt.zero_grad()
    loss.backward()
    opt.step()
