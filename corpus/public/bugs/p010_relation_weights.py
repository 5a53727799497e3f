"""Aggregate neighbours of a node over three kinds of edges."""

import torch
from torch import nn

torch.manual_seed(0)
nodes = torch.randn(200, 16)
edges = torch.rand(3, 200, 200) < 0.03
label = (nodes[:, :8].sum(1) > 0).long()


class RelationNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.relations = {r: nn.Linear(16, 16) for r in range(3)}
        self.scale = {r: nn.Parameter(torch.ones(16)) for r in range(3)}
        self.out = nn.Linear(16, 2)

    def forward(self, x, adjacency):
        total = x
        for r in range(3):
            share = adjacency[r].float() / adjacency[r].sum(1, keepdim=True).clamp(min=1)
            total = total + self.scale[r] * (share @ self.relations[r](x))
        return self.out(torch.relu(total))


net = RelationNet()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
for epoch in range(50):
    opt.zero_grad()
    loss = nn.functional.cross_entropy(net(nodes, edges), label)
    loss.backward()
    opt.step()
