"""Fit a reward model with accelerate and accumulated gradients."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
states = torch.randn(640, 12)
scores = torch.tanh(states @ torch.randn(12, 1) / 2)
policy = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-3)
loader = DataLoader(TensorDataset(states, scores), batch_size=8, shuffle=True)
policy, optimizer, loader = accelerator.prepare(policy, optimizer, loader)
for epoch in range(1):
    for state, score in loader:
        with accelerator.accumulate(policy):
            loss = nn.functional.mse_loss(policy(state), score)
            accelerator.backward(loss)
            optimizer.step()
            policy.zero_grad(set_to_none=True)
