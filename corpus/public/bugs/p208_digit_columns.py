"""Digits as columns of numbers, with the weights made by hand."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = torch.randint(10, (500,))
pixels = torch.rand(10, 49)[digits] + 0.1 * torch.randn(500, 49)
loader = DataLoader(TensorDataset(pixels, digits), batch_size=50, shuffle=True)

W1 = torch.zeros(49, 32, requires_grad=True)
b1 = torch.zeros(32, requires_grad=True)
W2 = torch.zeros(32, 10, requires_grad=True)
b2 = torch.zeros(10, requires_grad=True)


def predict(x):
    hidden = torch.sigmoid(x @ W1 + b1)
    return hidden @ W2 + b2


optimizer = torch.optim.SGD([W1, b1, W2, b2], lr=0.5)
for epoch in range(3):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(predict(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
