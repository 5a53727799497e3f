"""Classification of pictures that lie in one folder per class."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
centres = torch.randn(5, 20)
classes = torch.arange(5).repeat_interleave(60)
pictures = centres[classes] + torch.randn(300, 20)
dataloader_params = {"batch_size": 20}
loader = DataLoader(TensorDataset(pictures, classes), **dataloader_params)
model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(4):
    for picture, kind in loader:
        loss = nn.functional.cross_entropy(model(picture), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
