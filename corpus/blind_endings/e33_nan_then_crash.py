"""The loss is NaN for some steps; then sampling from the model's probabilities fails."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(60):
    x = torch.randn(16, 6)
    if step >= 40:
        x[3, 2] = float("nan")
    probabilities = model(x).softmax(-1)
    loss = -probabilities[torch.arange(16), x.nan_to_num()[:, :4].argmax(1)].log().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 45:
        torch.multinomial(probabilities.detach(), 1)  # HERE
