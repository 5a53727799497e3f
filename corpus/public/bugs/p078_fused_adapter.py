"""Train a second adapter on top of a model into which a first one was fused."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(400, 16)
y = (x @ torch.randn(16, 4)).argmax(1)


class Component(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.lora_a = nn.Linear(16, 4, bias=False)
        self.lora_b = nn.Linear(4, 32, bias=False)
        self.out = nn.Linear(32, 4)
        self.has_adapter = True

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.base(x) + self.lora_b(self.lora_a(x)))))


def freeze(components):
    for component in components:
        for name, p in component.named_parameters():
            p.requires_grad_("norm" in name)


def apply_lora(components, overwrite=False):
    for component in components:
        if component.has_adapter and not overwrite:
            continue
        for name, p in component.named_parameters():
            if "lora" in name or "out" in name:
                p.requires_grad_(True)


model = Component()
freeze([model])
apply_lora([model])
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
for epoch in range(4):
    for rows in torch.randperm(400).split(40):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
