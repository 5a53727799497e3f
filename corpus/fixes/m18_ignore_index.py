import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()

tokens = torch.randint(1, 12, (64, 9))
tokens[:, 6:] = 0
labels = tokens[:, 1:].clone()
labels[labels == 0] = -1  # padding
loader = DataLoader(TensorDataset(tokens[:, :-1], labels), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(4):
    for a, b in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(a).flatten(0, 1), b.flatten())
        loss.backward()
        opt.step()
