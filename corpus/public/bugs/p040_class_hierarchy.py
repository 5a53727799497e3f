"""Two levels of classes with a penalty for answers that contradict each other."""

import torch
from torch import nn

torch.manual_seed(0)
parent_of = torch.tensor([0, 0, 1, 1, 2, 2])
x = torch.randn(480, 16)
fine_label = (x @ torch.randn(16, 6)).argmax(1)
coarse_label = parent_of[fine_label]
trunk = nn.Sequential(nn.Linear(16, 48), nn.ReLU())
fine_head, coarse_head = nn.Linear(48, 6), nn.Linear(48, 3)
modules = nn.ModuleList([trunk, fine_head, coarse_head])
optimizer = torch.optim.Adam(modules.parameters(), lr=3e-3)


def hierarchical_loss(fine, coarse, rows):
    lloss = nn.functional.cross_entropy(fine, fine_label[rows])
    lloss = lloss + nn.functional.cross_entropy(coarse, coarse_label[rows])
    mismatch = (parent_of[fine.argmax(1)] != coarse.argmax(1)).float()
    dloss = (mismatch * (2.0**mismatch - 1)).mean()
    return lloss + 0.5 * dloss


for epoch in range(5):
    for rows in torch.randperm(480).split(40):
        h = trunk(x[rows])
        loss = hierarchical_loss(fine_head(h), coarse_head(h), rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
