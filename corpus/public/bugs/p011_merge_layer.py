"""Text convolution with kernels of several widths whose outputs are merged."""

import torch
from torch import nn

torch.manual_seed(2)
tokens = torch.randint(1, 60, (300, 16))
target = ((tokens < 20).sum(1) > 5).float()


class MergeLayer(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self._layers = []
        for layer in layers:
            self._layers.append(layer)

    def forward(self, x):
        return torch.cat([torch.relu(layer(x)).amax(-1) for layer in self._layers], dim=1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(60, 24)
        self.merge = MergeLayer([nn.Conv1d(24, 16, k) for k in (2, 3, 4)])
        self.dense = nn.Linear(48, 1)

    def forward(self, ids):
        return self.dense(self.merge(self.embed(ids).transpose(1, 2))).squeeze(1)


net = Classifier()
optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
lossfn = nn.BCEWithLogitsLoss()
for epoch in range(4):
    for rows in torch.randperm(300).split(30):
        optimizer.zero_grad()
        lossfn(net(tokens[rows]), target[rows]).backward()
        optimizer.step()
