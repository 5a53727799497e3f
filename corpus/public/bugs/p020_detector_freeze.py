"""Fine-tune the head of a grid detector; the first layers stay as they are."""

import torch
from torch import nn

torch.manual_seed(0)
images = torch.randn(160, 3, 12, 12)
boxes = nn.functional.adaptive_avg_pool2d(images, 3)

model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.SiLU(),
    nn.Conv2d(16, 16, 3, padding=1),
    nn.SiLU(),
    nn.AdaptiveAvgPool2d(3),
    nn.Conv2d(16, 3, 1),
)
freeze = ["0.weight", "0.bias"]
for k, v in model.named_parameters():
    if k in freeze:
        v.requires_grad = False

decay, plain = [], []
for k, v in model.named_parameters():
    v.requires_grad = True
    if k.endswith(".bias"):
        plain.append(v)
    else:
        decay.append(v)
optimizer = torch.optim.SGD(plain, lr=0.02, momentum=0.9, nesterov=True)
optimizer.add_param_group({"params": decay, "weight_decay": 5e-4})
for epoch in range(5):
    for rows in torch.randperm(160).split(16):
        loss = nn.functional.mse_loss(model(images[rows]), boxes[rows] * 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
