"""Invertible blocks with their own autograd function, trained in mixed precision."""

import torch
from torch import nn
from torch.amp import custom_bwd, custom_fwd

torch.manual_seed(0)


class CheckpointLinear(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        gradient = gradient.to(weight.dtype)
        return gradient @ weight, gradient.t() @ x.to(weight.dtype), gradient.sum(0)


class InvertibleBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, dim) / dim**0.5)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        a, b = x.chunk(2, 1)
        b = b + torch.tanh(CheckpointLinear.apply(a, self.weight, self.bias))
        return torch.cat([b, a], 1)


class Network(nn.Module):
    def __init__(self, dim=16, depth=4):
        super().__init__()
        self.blocks = nn.Sequential(*(InvertibleBlock(dim // 2) for _ in range(depth)))

    def forward(self, x):
        return self.blocks(x)


model = Network()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
x = torch.randn(256, 16)
y = torch.roll(torch.tanh(x), 3, 1)
for epoch in range(3):
    for rows in torch.randperm(256).split(32):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x[rows])
        loss = nn.functional.mse_loss(out.float(), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
