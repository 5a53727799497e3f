"""Two heads over two views of each picture predict labelled classes."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
classes = torch.randn(6, 24)


class MultiHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, 64), nn.ReLU())
        self.head = nn.Linear(64, 6, bias=False)

    def forward(self, views):
        return torch.stack([self.head(self.body(view)) for view in views])


def cross_entropy_loss(preds, targets, temperature=0.5):
    preds = F.log_softmax(preds / temperature, dim=1)
    return -(targets * preds).sum(-1).mean()


def batch(count=36):
    label = torch.randint(6, (count,))
    picture = classes[label] + 0.5 * torch.randn(count, 24)
    views = [picture + 0.3 * torch.randn(count, 24) for _ in range(2)]
    return views, F.one_hot(label, 6).float().expand(2, -1, -1)


model = MultiHead()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(40):
    views, targets = batch()
    loss = cross_entropy_loss(model(views), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
