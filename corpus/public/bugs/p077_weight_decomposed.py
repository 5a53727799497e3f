"""Two ways of low-rank tuning; the second one is trained here."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(480, 12)
y = (x @ torch.randn(12, 3)).argmax(1)


class LinearWithLoRA(nn.Module):
    def __init__(self, linear, rank=4):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(linear.in_features, rank) / rank**0.5)
        self.b = nn.Parameter(torch.zeros(rank, linear.out_features))

    def forward(self, x):
        return self.linear(x) + x @ self.a @ self.b


model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))
model_lora = copy.deepcopy(model)
model_lora[0], model_lora[2] = LinearWithLoRA(model_lora[0]), LinearWithLoRA(model_lora[2])
model_dora = copy.deepcopy(model)
model_dora[0], model_dora[2] = LinearWithLoRA(model_dora[0], 6), LinearWithLoRA(model_dora[2], 6)

optimizer_dora = torch.optim.Adam(model_lora.parameters(), lr=5e-3)


def train(num_epochs, model, optimizer):
    for epoch in range(num_epochs):
        for rows in torch.randperm(480).split(40):
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


train(4, model_dora, optimizer_dora)
