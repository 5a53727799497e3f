"""Low-rank layers on a frozen denoiser."""

import torch
from torch import nn

torch.manual_seed(0)


class LoraLinear(nn.Module):
    def __init__(self, inputs, outputs, rank=4):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Denoiser(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.inp, self.mid = LoraLinear(dim + 1, 64), LoraLinear(64, 64)
        self.out = LoraLinear(64, dim)

    def forward(self, x, t):
        h = torch.nn.functional.silu(self.inp(torch.cat([x, t], dim=1)))
        return self.out(torch.nn.functional.silu(self.mid(h)))


transformer = Denoiser()
lora_layers = filter(lambda p: p.requires_grad, transformer.parameters())
optimizer = torch.optim.AdamW(lora_layers, lr=1e-3)
max_grad_norm = 0.05
for step in range(40):
    latents = torch.sin(torch.linspace(0, 3, 16) * (1 + torch.rand(32, 1)))
    t = torch.rand(32, 1)
    noise = torch.randn_like(latents)
    noisy = (1 - t) * latents + t * noise
    loss = nn.functional.mse_loss(transformer(noisy, t), noise)
    optimizer.zero_grad()
    loss.backward()
    params_to_clip = lora_layers
    torch.nn.utils.clip_grad_norm_(params_to_clip, max_grad_norm)
    optimizer.step()
