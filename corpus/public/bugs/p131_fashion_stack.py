"""Ten kinds of small pictures with the stack of layers from the quick start."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
kinds = torch.randn(6, 8, 8)
labels = torch.randint(6, (360,))
pictures = (kinds[labels] + 0.8 * torch.randn(360, 8, 8))[:, None]
train_dataloader = DataLoader(TensorDataset(pictures, labels), batch_size=30, shuffle=True)


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear_relu_stack = nn.Sequential(
            nn.Linear(8 * 8, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 6),
            nn.ReLU(),
        )

    def forward(self, x):
        return self.linear_relu_stack(self.flatten(x))


model = NeuralNetwork()
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def train(dataloader, model, loss_fn, optimizer):
    for X, y in dataloader:
        pred = model(X)
        loss = loss_fn(pred, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


for t in range(3):
    train(train_dataloader, model, loss_fn, optimizer)
