"""A recursive model over trees; one tree of the set is a long chain."""

import torch
from torch import nn


class Tree:
    def __init__(self, value, children=()):
        self.value = value
        self.children = list(children)


def chain(length):
    node = Tree(0)
    for number in range(length):
        node = Tree(number % 10, [node])
    return node


class TreeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.values = nn.Embedding(10, 8)
        self.merge = nn.Linear(16, 8)
        self.head = nn.Linear(8, 1)

    def encode(self, node):
        below = [self.encode(child) for child in node.children]  # HERE
        total = torch.stack(below).sum(0) if below else torch.zeros(8)
        own = self.values(torch.tensor(node.value))
        return torch.tanh(self.merge(torch.cat([own, total])))

    def forward(self, node):
        return self.head(self.encode(node))


def main():
    torch.manual_seed(0)
    trees = [chain(int(n)) for n in torch.randint(2, 10, (100,))]
    trees[64] = chain(3000)
    model = TreeModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for tree in trees:
        target = torch.tensor([tree.value / 10])
        loss = (model(tree) - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
