"""A recursive tree model meets a tree with a cycle."""

import torch
from torch import nn


class Tree:
    def __init__(self, value, children=()):
        self.value = value
        self.children = list(children)


class TreeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def sum_up(self, tree):
        if not tree.children:
            return self.scale * tree.value
        return self.scale * tree.value + sum(self.sum_up(child) for child in tree.children)  # HERE

    def forward(self, tree):
        return self.sum_up(tree)


torch.manual_seed(0)
model = TreeModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(50):
    leaves = [Tree(float(n)) for n in torch.rand(3)]
    tree = Tree(1.0, leaves)
    if step == 33:
        leaves[2].children.append(tree)
    loss = (model(tree) - 2 * (1.0 + sum(leaf.value for leaf in leaves))) ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
