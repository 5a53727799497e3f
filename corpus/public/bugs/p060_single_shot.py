"""Boxes and classes on a grid, with losses per matched box."""

import torch
from torch import nn

torch.manual_seed(0)
features = torch.randn(240, 16)
present = features[:, 0] > -0.2
present[::8] = False
label = torch.where(present, 1 + (features[:, 1] > 0).long(), 0)
boxes = torch.tanh(features[:, 2:6])
order = torch.randperm(240)
empty = (~present).nonzero().squeeze(1)[:12]
batches = [*order.split(24)[:6], empty, *order.split(24)[6:]]


class SSDLoss(nn.Module):
    def forward(self, loc, conf, rows):
        pos = label[rows] > 0
        num_pos = pos.sum()
        loc_loss = nn.functional.smooth_l1_loss(loc[pos], boxes[rows][pos], reduction="sum")
        weight = torch.tensor([0.3, 1.0, 1.0])
        cls = nn.functional.cross_entropy(conf, label[rows], weight, reduction="none")
        cls_loss = cls[pos].sum()
        return (loc_loss + cls_loss) / num_pos


trunk = nn.Sequential(nn.Linear(16, 48), nn.ReLU())
loc_head, conf_head = nn.Linear(48, 4), nn.Linear(48, 3)
net = nn.ModuleList([trunk, loc_head, conf_head])
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
criterion = SSDLoss()
for epoch in range(4):
    for rows in batches:
        h = trunk(features[rows])
        loss = criterion(loc_head(h), conf_head(h), rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
