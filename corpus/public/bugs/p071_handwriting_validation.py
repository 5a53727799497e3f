"""Recognise pen strokes; validate after each epoch."""

import torch
from torch import nn

torch.manual_seed(0)
strokes = torch.randn(352, 10, 2)
kind = (strokes[:, :5].sum((1, 2)) > strokes[:, 5:].sum((1, 2))).long()


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(2, 32, batch_first=True)
        self.drop = nn.Dropout(0.4)
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.drop(self.rnn(x)[0][:, -1]))


def train(model, optimizer):
    model.train()
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(strokes[rows]), kind[rows]).backward()
        optimizer.step()


@torch.no_grad()
def validate(model):
    right = 0
    for rows in torch.arange(256, 352).split(32):
        out = model(strokes[rows])
        right += int((out.argmax(1) == kind[rows]).sum())
    return right / 96


model = Recogniser()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(6):
    train(model, optimizer)
    print(epoch, validate(model))
