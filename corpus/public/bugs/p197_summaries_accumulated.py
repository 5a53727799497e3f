"""Gradients of four micro-batches for each update, over several epochs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(176, 20)
y = torch.tanh(x @ torch.randn(20, 6) / 4)
train_dataloader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 6))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
gradient_accumulation_steps = 4

for epoch in range(8):
    for step, (inputs, targets) in enumerate(train_dataloader):
        loss = nn.functional.mse_loss(model(inputs), targets)
        (loss / gradient_accumulation_steps).backward()
        if (step + 1) % gradient_accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(epoch, loss.item())
